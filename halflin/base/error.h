// base/: what everything else stands on: errors, matrices, number formats, threads, progress.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace halflin {

// A failure a person can act on. `what()` is one line: file, place, expected, found.
// The command line prints it and exits with status 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A call that cannot mean anything (unknown option, malformed range): exit status 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Throws Error with a fmt-style message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace halflin
