#include "halflin/io/normalizer.h"

#include "halflin/base/error.h"

namespace halflin {
namespace {

// Compatibility forms stretch a character by at most 18; steps that replace may do so again.
constexpr size_t kMostGrowth = 64;
constexpr size_t kSlack = 4096;

std::string replace(const NormalizerStep& step, std::string_view text, size_t most) {
  std::string out;
  size_t done = 0;
  const auto put = [&](size_t begin, size_t end) {
    out.append(text.substr(done, begin - done)).append(step.to);
    if (out.size() > most) fail("normaliser: a replacement makes the text too long");
    done = end;
  };
  if (step.pattern) {
    RegexScan scan(*step.pattern, text);
    size_t begin = 0;
    size_t end = 0;
    while (scan.next(begin, end)) put(begin, end);
  } else if (!step.from.empty()) {
    for (size_t at = text.find(step.from); at != std::string_view::npos;
         at = text.find(step.from, at + step.from.size())) {
      put(at, at + step.from.size());
    }
  }
  return out.append(text.substr(done));
}

}  // namespace

std::string normalize(std::span<const NormalizerStep> steps, std::string_view text) {
  const size_t most = text.size() * kMostGrowth + kSlack;
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::kUnicode:
        out = normalize_unicode(out, step.form);
        break;
      case NormalizerStep::Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.to);
        break;
      case NormalizerStep::Kind::kReplace:
        out = replace(step, out, most);
        break;
    }
    if (out.size() > most) fail("normaliser: a step makes the text too long");
  }
  return out;
}

}  // namespace halflin
