// Attention sinks: the few tokens whose MLP outputs are hundreds of times longer than all others'.
// Routing one is ruinous, and sums over tokens that include it are meaningless.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "halflin/measure/walk.h"

namespace halflin {

// Tokens that carry an MLP output more than 20 times the median norm in some layer (attention
// sinks), 1 for each. They stay on the full path in every layer and out of every fit.
struct Sinks {
  std::vector<std::vector<uint8_t>> token;  // [samples][rows]
  size_t count = 0;
};
// By one pass of the unchanged model over samples of any splits.
std::vector<Sinks> find_sinks(ThreadPool& pool, const Model& model,
                              std::span<const std::span<const Sample>> splits,
                              const std::atomic<bool>& stop, bool quiet);

// Those of the first samples.
Sinks first_sinks(const Sinks& sinks, size_t samples);

}  // namespace halflin
