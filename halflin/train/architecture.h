// A model to be trained from scratch, described by one short JSON file (docs/formats.md,
// "Architectures").
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halflin/train/parameters.h"

namespace halflin {

// What one layer's MLP is to be.
struct PlaceSpec {
  enum class Kind {
    kFull,     // an MLP of `width` neurons
    kLinear,   // x W + b
    kLowRank,  // through `rank` dimensions
    kHybrid,   // linear + an MLP of `width` neurons
    kSkip,     // nothing
    kGated,    // full or cheap, as a learned gate says
  };
  Kind kind = Kind::kFull;
  size_t width = 0;
  size_t rank = 0;
  // Of kGated: what the cheap way is, and the gate.
  Kind cheap = Kind::kLinear;
  size_t cheap_width = 0;
  size_t cheap_rank = 0;
  size_t gate_hidden = 0;  // 0: an affine gate
  float gate_bias = 1;     // the score at the start: above 0 all tokens take the full MLP
  Route route = Route::kHard;
};

struct ArchitectureSpec {
  nlohmann::json config;            // as Hugging Face's config.json, without vocab_size
  size_t vocab = 0;                 // 0: as many as the tokenizer has
  std::filesystem::path tokenizer;  // directory with a tokenizer.json
  double std = 0.02;                // of weights at the start; biases start at 0
  double residual_std = 0.02;       // of those that write into the residual stream
  uint64_t seed = 0;
  std::vector<PlaceSpec> places;  // one a layer
  GatePenalty penalty;
  size_t penalty_from = 1;  // step at which the penalty sets in
};

// `file` is used in messages; "tokenizer" is relative to its folder. Throws Error naming the key
// for keys that are missing, unknown, or contradict each other.
ArchitectureSpec parse_architecture(const nlohmann::json& architecture, const std::string& file);

// A model with weights at their start, all trainable. `vocab` as the tokenizer has them.
TrainModel make_new_model(const ArchitectureSpec& spec, size_t vocab, size_t max_window);

}  // namespace halflin
