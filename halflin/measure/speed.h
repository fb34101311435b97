// How fast a model runs: prompts and single tokens a second, beside what the machine can do at most
// in the same run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/progress.h"
#include "halflin/measure/statistics.h"
#include "halflin/model/decode.h"

namespace halflin {

struct SpeedOptions {
  size_t prompt = 512;     // tokens of a prompt
  size_t generate = 96;    // tokens one by one
  size_t depth = 512;      // tokens in the cache when those begin, at most `prompt`
  size_t repetitions = 5;  // after one that warms up
  bool compare = false;    // also with the decoder's paths switched off, in turns
};

// Seconds of each repetition, and what was done in them (the same in each).
struct Speed {
  std::vector<double> prefill_seconds, decode_seconds;
  double prefill_flops = 0, decode_flops = 0;
  double decode_bytes = 0;    // read, weights and cache
  double prefill_routed = 0;  // share of (token, layer) that took a cheap path
  double decode_routed = 0;
};

struct SpeedResult {
  Speed speed;                        // as the decoder is
  Speed dense;                        // with its paths switched off, where asked for
  std::vector<double> read_rates;     // bytes a second, one a repetition
  std::vector<double> product_rates;  // FLOPs a second
};

// Feeds ids[0 .. prompt) and then ids[depth .. depth + generate), whatever the model would have
// said: nothing but the model is timed. `ids` has max(prompt, depth + generate) tokens, all inside
// the decoder's context.
SpeedResult measure_speed(ThreadPool& pool, Decoder& decoder, std::span<const int32_t> ids,
                          const SpeedOptions& options, Progress& progress);

// Stand-ins that make the clock follow a count, not an allocation to generate with: surrogates of
// zeros, as large as real ones. `rate` of each layer's tokens take them, by gates of random weights
// whose thresholds are set on `ids`, bottom to top; a rate of 1 has no gates.
std::vector<MlpPath> stand_in_paths(ThreadPool& pool, const Model& model,
                                    std::span<const int32_t> ids, double rate, uint64_t seed);

// Gives each layer's first option such a gate; ids' tokens as many as `rate` says then take it.
void add_random_gates(ThreadPool& pool, const Model& model, std::span<const int32_t> ids,
                      double rate, uint64_t seed, std::vector<MlpPath>& paths);

double median_of(std::vector<double> values);

}  // namespace halflin
