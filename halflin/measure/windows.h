// measure/: what the project measures with these models, and how sure one can be of it.
//
// Text as windows of tokens. A window is the unit of context, of splits and of resampling.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halflin/model/forward.h"

namespace halflin {

// Half-open range of windows.
struct WindowRange {
  size_t begin = 0;
  size_t end = 0;
  size_t count() const { return end - begin; }
};
// "90:106"; either end may be left out. `available` windows exist. Throws UsageError when
// malformed, Error when it holds no window or reaches beyond the text.
WindowRange parse_window_range(const std::string& text, size_t available, size_t window,
                               const std::string& name = "text");

// Consecutive windows that do not overlap; what is left over at the end is dropped. `bos`, where
// set, precedes each window's window - 1 tokens of text. `name` (the file) is used in messages.
class Windows {
 public:
  Windows(std::vector<int32_t> ids, size_t window, std::optional<int32_t> bos,
          std::string name = "text");

  size_t count() const { return count_; }
  size_t window() const { return window_; }
  const std::string& name() const { return name_; }
  Batch batch(size_t index) const;
  // These ranges of windows alone, one after the other.
  Windows part(std::span<const WindowRange> ranges) const;

 private:
  std::vector<int32_t> ids_;
  size_t window_;
  std::optional<int32_t> bos_;
  std::string name_;
  size_t step_;
  size_t count_;
};

}  // namespace halflin
