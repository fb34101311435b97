#include "halflin/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace halflin {
namespace {

// Callers keep a buffer for each of min(size, tasks) workers.
TEST(ThreadPool, UsesNoMoreWorkersThanTasks) {
  ThreadPool pool(16);
  for (size_t round = 0; round < 200; ++round) {
    const size_t tasks = 2 + round % 5;
    std::atomic<size_t> run{0};
    std::atomic<int> highest{0};
    pool.parallel_for(tasks, [&](size_t, int worker) {
      ++run;
      int seen = highest;
      while (seen < worker && !highest.compare_exchange_weak(seen, worker)) {
      }
    });
    EXPECT_EQ(run, tasks);
    EXPECT_LT(static_cast<size_t>(highest), tasks);
  }
}

TEST(ThreadPool, RethrowsWhatATaskThrows) {
  ThreadPool pool(4);
  EXPECT_THROW(pool.parallel_for(8,
                                 [](size_t task, int) {
                                   if (task == 3) throw std::runtime_error("three");
                                 }),
               std::runtime_error);
}

}  // namespace
}  // namespace halflin
