// Progress of long work on stderr: a bar with an estimate on a terminal, a plain line now and then
// elsewhere.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace halflin {

class Progress {
 public:
  // `total` in units of work of about equal cost. Prints nothing when `quiet`.
  Progress(std::string label, double total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Callable from any thread. `what` replaces the text behind the bar unless empty.
  void advance(double units, const std::string& what = "");
  // Clears the bar, so that a line can be printed; the next advance draws it again.
  void clear();

 private:
  void draw(bool last);

  std::mutex mutex_;
  std::string label_;
  std::string what_;
  double total_;
  double done_ = 0;
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

// "1 h 03 min", "2 min 05 s", "12 s".
std::string format_duration(double seconds);

}  // namespace halflin
