#include "halflin/model/generate.h"

#include <algorithm>
#include <chrono>

#include "halflin/base/error.h"

namespace halflin {

namespace {

using Clock = std::chrono::steady_clock;

// Tokens of a prompt between two looks at whether it was interrupted.
constexpr size_t kChunk = 512;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kEnd:
      return "end";
    case StopReason::kStopString:
      return "stop";
    case StopReason::kLength:
      return "length";
    case StopReason::kContext:
      return "context";
    case StopReason::kInterrupted:
      break;
  }
  return "interrupted";
}

TokenModel token_model(Decoder& decoder) {
  return {decoder.context(), [&](std::span<const int32_t> ids) { return decoder.prefill(ids); },
          [&](int32_t id) { return decoder.step(id); },
          [&](size_t position) { decoder.rewind(position); }, [&] { return decoder.routes(); }};
}

Session::Session(TokenModel model, const Tokenizer& tokenizer, const SamplingOptions& sampling,
                 const std::atomic<bool>& interrupted)
    : model_(std::move(model)),
      tokenizer_(tokenizer),
      sampler_(sampling),
      interrupted_(interrupted) {}

// The model behind all of ids_, unless interrupted on the way.
void Session::fill(const OnRoutes& on_routes) {
  while (cached_ < ids_.size() && !interrupted_) {
    const std::span<const int32_t> rest = std::span<const int32_t>(ids_).subspan(cached_);
    const std::span<const int32_t> chunk = rest.first(std::min(kChunk, rest.size()));
    logits_ = model_.prefill(chunk);
    cached_ += chunk.size();
    if (on_routes) on_routes(chunk, model_.routes());
  }
}

void Session::read(std::span<const int32_t> ids, const OnRoutes& on_routes) {
  if (ids.empty()) fail("there is no token to go on from");
  if (ids.size() > model_.context) {
    fail("the prompt's {} tokens do not fit the context of {}", ids.size(), model_.context);
  }
  const Clock::time_point start = Clock::now();
  const auto known = std::span<const int32_t>(ids_).first(cached_);
  const auto same = static_cast<size_t>(
      std::mismatch(known.begin(), known.end(), ids.begin(), ids.end()).first - known.begin());
  cached_ = std::min(same, ids.size() - 1);  // the last one's logits are needed
  model_.rewind(cached_);
  const size_t kept = cached_;
  ids_.assign(ids.begin(), ids.end());
  fill(on_routes);
  prompt_passed_.tokens += cached_ - kept;
  prompt_passed_.seconds += seconds_since(start);
}

void Session::shift(const OnRoutes& on_routes) {
  const size_t kept = std::min(kKeptTokens, ids_.size());
  const size_t dropped = std::max<size_t>((ids_.size() - kept) / 2, 1);
  const auto from = ids_.begin() + static_cast<std::ptrdiff_t>(kept);
  ids_.erase(from, from + static_cast<std::ptrdiff_t>(dropped));
  cached_ = kept;
  model_.rewind(kept);
  fill(on_routes);
}

Generated Session::generate(const GenerateOptions& options, const OnText& on_text,
                            const OnRoutes& on_routes) {
  TextStream stream(tokenizer_, options.starts_text);
  StopStrings stops(options.stop);
  Generated out;
  const auto put = [&](const std::string& text) {
    out.text += text;
    if (!text.empty() && on_text) on_text(text);
  };
  for (;;) {
    if (interrupted_) {
      out.reason = StopReason::kInterrupted;
      break;
    }
    // Embeddings are often padded with rows that no token has.
    const int32_t id =
        sampler_.next(logits_.first(std::min(logits_.size(), tokenizer_.size())), ids_);
    if (std::find(options.end.begin(), options.end.end(), id) != options.end.end()) {
      out.reason = StopReason::kEnd;
      break;
    }
    out.ids.push_back(id);
    ids_.push_back(id);
    put(stops.add(stream.add(id)));
    if (stops.found()) {
      out.reason = StopReason::kStopString;
      break;
    }
    if (out.ids.size() == options.max_tokens) {
      out.reason = StopReason::kLength;
      break;
    }
    const Clock::time_point start = Clock::now();
    if (cached_ == model_.context) {
      if (!options.shift || model_.context <= kKeptTokens + 1) {
        out.reason = StopReason::kContext;
        break;
      }
      ++out.shifts;
      shift(on_routes);
    } else {
      logits_ = model_.step(id);
      ++cached_;
      if (on_routes) on_routes({&id, 1}, model_.routes());
    }
    generated_passed_.tokens += 1;
    generated_passed_.seconds += seconds_since(start);
  }
  put(stops.add(stream.finish()));
  put(stops.finish());
  if (stops.found()) {
    out.reason = StopReason::kStopString;
    out.stop = *stops.found();
  }
  return out;
}

}  // namespace halflin
