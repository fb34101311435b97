// What single tokens read: the checkpoint's own bytes where a kernel reads their format, else a
// converted copy.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "halflin/model/decode.h"
#include "halflin/ops/matvec.h"

namespace halflin {

struct DecodeLinear {
  StoredMatrix weight;
  std::vector<float> bias;  // [out] or empty

  bool empty() const { return weight.empty(); }
};

struct DecodeMlp {
  Activation activation = Activation::kNone;
  DecodeLinear gate, up, down;  // gate empty when the MLP is not gated
};

// CheapPath (mlp/path.h) in the format that the layer's own MLP is read in.
struct DecodePath {
  DecodeLinear affine, low_rank_in, low_rank_out;
  DecodeMlp narrow;  // `up` empty: none
  std::vector<float> constant;
};

struct DecodeLayer {
  // Outputs q | k | v in the order that the file stores: one matrix or three.
  std::vector<DecodeLinear> qkv;
  DecodeLinear attention_out;
  DecodeMlp mlp;
  std::vector<DecodePath> options;  // of the layer's MlpPath
};

struct DecodeWeights {
  std::vector<DecodeLayer> layers;
  DecodeLinear head;         // [vocab, d]
  bool reads_codes = false;  // some product reads the input's int8 form

  // Copies that are not in the checkpoint's files.
  std::deque<std::vector<std::byte>> copies;
  size_t copied_bytes = 0;
  // Weights by format: "Q5_K, read as Q8_0" -> how many matrices.
  std::map<std::string, size_t> formats;
};

// Throws Error where the paths are of other shapes than the model's.
void check_paths(const Model& model, const std::vector<MlpPath>& paths);

// The model must outlive what is returned: most of it points into the model's mapped files.
DecodeWeights read_decode_weights(ThreadPool& pool, const Model& model,
                                  const std::vector<MlpPath>& paths, const DecodeOptions& options);

}  // namespace halflin
