#include "halflin/measure/windows.h"

#include <charconv>

#include "halflin/base/error.h"

namespace halflin {

namespace {

size_t parse_bound(std::string_view text, const std::string& whole) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw UsageError(fmt::format("\"{}\" is no range of windows: expected A:B", whole));
  }
  return value;
}

}  // namespace

WindowRange parse_window_range(const std::string& text, size_t available, size_t window,
                               const std::string& name) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    throw UsageError(fmt::format("\"{}\" is no range of windows: expected A:B", text));
  }
  const std::string_view view = text;
  const std::string_view first = view.substr(0, colon);
  const std::string_view last = view.substr(colon + 1);
  WindowRange range;
  range.begin = first.empty() ? 0 : parse_bound(first, text);
  range.end = last.empty() ? available : parse_bound(last, text);
  if (range.begin >= range.end) {
    throw UsageError(fmt::format("windows {}: the range holds no window", text));
  }
  if (range.end > available) {
    fail("{}: windows {}: needs {} tokens of text, found {} whole windows of {}", name, text,
         range.end * window, available, window);
  }
  return range;
}

Windows::Windows(std::vector<int32_t> ids, size_t window, std::optional<int32_t> bos,
                 std::string name)
    : ids_(std::move(ids)),
      window_(window),
      bos_(bos),
      name_(std::move(name)),
      step_(bos ? window - 1 : window) {
  if (window < 2) throw UsageError(fmt::format("--window {}: at least 2 tokens", window));
  count_ = ids_.size() / step_;
}

Windows Windows::part(std::span<const WindowRange> ranges) const {
  std::vector<int32_t> ids;
  for (const WindowRange& range : ranges) {
    const std::span<const int32_t> some =
        std::span(ids_).subspan(range.begin * step_, range.count() * step_);
    ids.insert(ids.end(), some.begin(), some.end());
  }
  return {std::move(ids), window_, bos_, name_};
}

Batch Windows::batch(size_t index) const {
  const std::span<const int32_t> part = std::span(ids_).subspan(index * step_, step_);
  Batch batch;
  if (bos_) batch.ids.push_back(*bos_);
  batch.add(part);
  return batch;
}

}  // namespace halflin
