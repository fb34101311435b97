// A fixed set of worker threads. The only parallelism in the project.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace halflin {

class ThreadPool {
 public:
  // `threads` workers in all, the calling thread among them; at least 1. Throws Error where
  // the system starts fewer.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Runs body(task, worker) for each task in [0, tasks), worker in [0, min(size(), tasks)), and
  // waits. Tasks are handed out one by one in increasing order, so uneven tasks balance. Called
  // from inside a task, it runs serially with worker 0: an outer loop over windows makes the inner
  // loops serial. The first exception that a task throws is rethrown here after all workers have
  // stopped.
  void parallel_for(size_t tasks, const std::function<void(size_t task, int worker)>& body);

 private:
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

// Threads this process may run at once (its CPU affinity), at least 1.
int available_threads();

}  // namespace halflin
