#include "halflin/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace halflin {

namespace {
double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}
}  // namespace

std::string format_duration(double seconds) {
  const auto s = std::lround(std::max(seconds, 0.0));
  if (s >= 3600) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} s", s);
}

Progress::Progress(std::string label, double total, bool quiet)
    : label_(std::move(label)),
      total_(std::max(total, 1e-9)),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_draw_(start_) {}

Progress::~Progress() {
  const std::lock_guard lock(mutex_);
  if (quiet_ || !drawn_) return;
  if (terminal_) {
    draw(true);
    fmt::print(stderr, "\n");
  }
}

void Progress::advance(double units, const std::string& what) {
  const std::lock_guard lock(mutex_);
  done_ = std::min(done_ + units, total_);
  if (!what.empty()) what_ = what;
  if (quiet_) return;
  const auto now = std::chrono::steady_clock::now();
  const double interval = terminal_ ? 0.1 : 10.0;
  if (drawn_ && seconds_between(last_draw_, now) < interval) return;
  if (!terminal_ && !drawn_ && seconds_between(start_, now) < interval) return;
  draw(false);
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  if (quiet_ || !terminal_ || !drawn_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

void Progress::draw(bool last) {
  last_draw_ = std::chrono::steady_clock::now();
  drawn_ = true;
  const double elapsed = seconds_between(start_, last_draw_);
  const double share = done_ / total_;
  const std::string time =
      last || share <= 0 ? format_duration(elapsed)
                         : fmt::format("{} left", format_duration(elapsed / share * (1 - share)));
  if (terminal_) {
    constexpr int kWidth = 24;
    const int filled = static_cast<int>(share * kWidth);
    fmt::print(stderr, "\r\033[K{} [{:#<{}}{:-<{}}] {:3.0f} %  {}  {}", label_, "", filled, "",
               kWidth - filled, 100 * share, time, what_);
  } else {
    fmt::print(stderr, "{} {:.0f} %, {}{}{}\n", label_, 100 * share, time,
               what_.empty() ? "" : ", ", what_);
  }
  std::fflush(stderr);
}

}  // namespace halflin
