#include "halflin/base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "halflin/base/error.h"

namespace halflin {

namespace {
// True while this thread runs a task of some parallel_for: nested loops then run serially.
thread_local bool inside_task = false;
}  // namespace

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  const std::function<void(size_t, int)>* body = nullptr;
  size_t tasks = 0;
  std::atomic<size_t> next{0};
  int running = 0;         // workers that have not finished the current loop
  unsigned long loop = 0;  // counts loops, so that a worker joins each one once
  bool stop = false;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  void work(int worker) {
    inside_task = true;
    try {
      for (size_t task = next++; task < tasks; task = next++) (*body)(task, worker);
    } catch (...) {
      next = tasks;
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    inside_task = false;
  }

  void join() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void thread_main(int worker) {
    unsigned long seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return stop || loop != seen; });
      if (stop) return;
      seen = loop;
      lock.unlock();
      if (static_cast<size_t>(worker) < tasks) work(worker);  // buffers: min(size, tasks)
      lock.lock();
      if (--running == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads)
    : threads_(std::max(threads, 1)), state_(std::make_unique<State>()) {
  try {
    for (int worker = 1; worker < threads_; ++worker) {
      state_->threads.emplace_back([this, worker] { state_->thread_main(worker); });
    }
  } catch (const std::exception& error) {
    const size_t started = state_->threads.size() + 1;
    state_->join();
    fail("expected {} threads, could start {}: {}", threads_, started, error.what());
  }
}

ThreadPool::~ThreadPool() { state_->join(); }

void ThreadPool::parallel_for(size_t tasks, const std::function<void(size_t, int)>& body) {
  if (inside_task || threads_ == 1 || tasks <= 1) {
    for (size_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  State& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    state.body = &body;
    state.tasks = tasks;
    state.next = 0;
    state.running = threads_ - 1;
    state.error = nullptr;
    ++state.loop;
  }
  state.wake.notify_all();
  state.work(0);
  std::unique_lock lock(state.mutex);
  state.done.wait(lock, [&] { return state.running == 0; });
  if (state.error) std::rethrow_exception(state.error);
}

int available_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

}  // namespace halflin
