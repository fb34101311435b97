#include "halflin/base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "halflin/base/error.h"

namespace halflin {

namespace {
// True while this thread runs a task of some parallel_for: nested loops then run serially.
thread_local bool inside_task = false;

// How long a thread watches for work before it sleeps. Waking a sleeper takes some 50 microseconds,
// and decoding starts more than a hundred loops a token.
constexpr std::chrono::microseconds kSpin{100};

// Tells the processor that this thread only waits.
void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
}  // namespace

// A loop is published as one number, its ticket: how many tasks are left in the lower bits, which
// loop it is above them. A task is taken by counting the ticket down, so a worker that comes late,
// when the loop is over or the next one has begun, takes nothing or a task of the next one.
struct ThreadPool::State {
  static constexpr int kLeftBits = 40;
  static constexpr uint64_t kLeft = (uint64_t{1} << kLeftBits) - 1;

  alignas(64) std::atomic<uint64_t> ticket{0};
  std::atomic<size_t> tasks{0};
  const std::function<void(size_t, int)>* body = nullptr;  // stays while one of its tasks is taken
  alignas(64) std::atomic<size_t> finished{0};             // tasks that are over
  std::atomic<bool> stop{false};
  std::atomic<int> sleepers{0};  // workers that wait for `wake`
  std::atomic<bool> caller_sleeps{false};
  std::chrono::nanoseconds spin{0};

  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  bool has_task(int worker) const {
    // A worker beyond the number of tasks stays out: callers keep min(size, tasks) buffers.
    return (ticket & kLeft) != 0 && static_cast<size_t>(worker) < tasks;
  }

  void work(int worker) {
    inside_task = true;
    size_t taken = 0;
    size_t all = 0;
    for (;;) {
      uint64_t seen = ticket;
      const size_t count = tasks;  // of the loop of `seen`, or else the exchange fails
      const size_t left = seen & kLeft;
      if (left == 0 || static_cast<size_t>(worker) >= count) break;
      if (!ticket.compare_exchange_weak(seen, seen - 1)) continue;
      all = count;
      ++taken;
      try {
        (*body)(count - left, worker);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!error) error = std::current_exception();
        }
        // The tasks that nobody has taken are not run.
        uint64_t now = ticket;
        while (!ticket.compare_exchange_weak(now, now & ~kLeft)) {
        }
        taken += now & kLeft;
      }
    }
    inside_task = false;
    if (taken != 0 && (finished += taken) == all && caller_sleeps) {
      const std::lock_guard lock(mutex);
      done.notify_one();
    }
  }

  // Whether the condition came true while spinning.
  template <class Condition>
  bool spin_until(const Condition& condition) const {
    if (condition()) return true;
    if (spin.count() == 0) return false;
    const auto begin = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < 16; ++i) {
        pause();
        if (condition()) return true;
      }
    } while (std::chrono::steady_clock::now() - begin < spin);
    return false;
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
    const auto called = [&] { return stop || has_task(worker); };
    while (!stop) {
      if (!spin_until(called)) {
        std::unique_lock lock(mutex);
        ++sleepers;
        wake.wait(lock, called);
        --sleepers;
      }
      work(worker);
    }
  }
};

ThreadPool::ThreadPool(int threads)
    : threads_(std::max(threads, 1)), state_(std::make_unique<State>()) {
  // Where threads outnumber processors, whoever spins takes the processor from one that works.
  if (threads_ <= available_threads()) state_->spin = kSpin;
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
  state.body = &body;
  state.finished = 0;
  state.error = nullptr;
  state.tasks = tasks;
  state.ticket = (((state.ticket >> State::kLeftBits) + 1) << State::kLeftBits) | tasks;
  if (state.sleepers != 0) {
    { const std::lock_guard lock(state.mutex); }  // whoever was about to sleep now does, or saw it
    state.wake.notify_all();
  }
  state.work(0);
  const auto over = [&] { return state.finished == tasks; };
  if (!state.spin_until(over)) {
    std::unique_lock lock(state.mutex);
    state.caller_sleeps = true;
    state.done.wait(lock, over);
    state.caller_sleeps = false;
  }
  if (state.error) std::rethrow_exception(state.error);
}

int available_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

}  // namespace halflin
