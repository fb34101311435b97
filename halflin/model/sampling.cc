#include "halflin/model/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "halflin/base/error.h"

namespace halflin {

namespace {

bool more_probable(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
}

// Keeps the `count` most probable, sorted.
void keep_top(std::vector<Candidate>& candidates, size_t count) {
  if (count < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count),
                     candidates.end(), more_probable);
    candidates.resize(count);
  }
  std::sort(candidates.begin(), candidates.end(), more_probable);
}

double sum(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.probability;
  return total;
}

// Keeps the fewest, most probable candidates that hold `share` of their mass. A vocabulary is
// large and the share is mostly held by few of it: only as many are sorted as it takes.
void keep_mass(std::vector<Candidate>& candidates, double share) {
  const double wanted = share * sum(candidates);
  size_t sorted = 0;
  double mass = 0;
  for (size_t block = 64; sorted < candidates.size(); block *= 8) {
    const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(sorted);
    const auto end = candidates.begin() +
                     static_cast<std::ptrdiff_t>(std::min(sorted + block, candidates.size()));
    std::partial_sort(begin, end, candidates.end(), more_probable);
    for (auto c = begin; c != end; ++c) {
      mass += c->probability;
      ++sorted;
      if (mass >= wanted) {
        candidates.resize(sorted);
        return;
      }
    }
  }
}

void require(bool holds, const char* what, const char* range, double found) {
  if (!holds) throw UsageError(fmt::format("{}: expected {}, found {}", what, range, found));
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  const auto finite = [](double value) { return std::isfinite(value); };
  require(finite(options.temperature) && options.temperature >= 0, "temperature",
          "a number of at least 0", options.temperature);
  require(options.top_p > 0 && options.top_p <= 1, "top-p", "a number above 0, at most 1",
          options.top_p);
  require(options.min_p >= 0 && options.min_p <= 1, "min-p", "a number from 0 to 1", options.min_p);
  require(finite(options.repetition_penalty) && options.repetition_penalty > 0,
          "repetition penalty", "a number above 0", options.repetition_penalty);
}

Sampler::Sampler(const SamplingOptions& options)
    : options_(options), random_(options.seed, "sampling") {
  check_sampling(options);
}

void Sampler::penalise(std::span<const float> logits, std::span<const int32_t> history) {
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isnan(logits[id]) || logits[id] == std::numeric_limits<float>::infinity()) {
      fail("the model's logit of token {} is {}: no token can be chosen", id, logits[id]);
    }
  }
  logits_.assign(logits.begin(), logits.end());
  if (options_.repetition_penalty == 1) return;
  if (options_.repetition_window != 0 && history.size() > options_.repetition_window) {
    history = history.last(options_.repetition_window);
  }
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (const int32_t id : history) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
    const float plain = logits[static_cast<size_t>(id)];  // a token seen twice is penalised once
    logits_[static_cast<size_t>(id)] = plain > 0 ? plain / penalty : plain * penalty;
  }
}

void Sampler::select(std::span<const float> logits, std::span<const int32_t> history) {
  penalise(logits, history);
  candidates_.clear();
  const auto best = std::max_element(logits_.begin(), logits_.end());  // the first of equals
  if (best == logits_.end() || std::isinf(*best)) {
    fail("no token can be chosen: all of the model's {} logits are -inf", logits.size());
  }
  if (options_.temperature == 0) {
    candidates_.push_back({static_cast<int32_t>(best - logits_.begin()), 1.0});
    return;
  }
  for (size_t id = 0; id < logits_.size(); ++id) {
    const double below = static_cast<double>(logits_[id]) - static_cast<double>(*best);
    const double probability = std::exp(below / options_.temperature);
    if (probability > 0) candidates_.push_back({static_cast<int32_t>(id), probability});
  }
  if (options_.top_k != 0) keep_top(candidates_, options_.top_k);
  if (options_.top_p < 1) keep_mass(candidates_, options_.top_p);
  if (options_.min_p > 0) {  // the most probable has exp(0) = 1
    std::erase_if(candidates_, [&](const Candidate& c) { return c.probability < options_.min_p; });
  }
}

std::span<const Candidate> Sampler::candidates(std::span<const float> logits,
                                               std::span<const int32_t> history) {
  select(logits, history);
  std::sort(candidates_.begin(), candidates_.end(), more_probable);
  const double total = sum(candidates_);
  for (Candidate& c : candidates_) c.probability /= total;
  return candidates_;
}

int32_t Sampler::next(std::span<const float> logits, std::span<const int32_t> history) {
  select(logits, history);
  if (candidates_.size() == 1) return candidates_[0].id;
  double rest = random_.uniform() * sum(candidates_);
  for (const Candidate& c : candidates_) {
    rest -= c.probability;
    if (rest < 0) return c.id;
  }
  return candidates_.back().id;  // rounding left a little of the draw
}

}  // namespace halflin
