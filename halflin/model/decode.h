// Generation: a prompt in, then one token at a time, with a key-value cache.
//
// The prompt goes through the packed matrix products of the forward pass; single tokens read the
// weights as the checkpoint has them, memory-mapped, since decoding lasts as long as reading them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halflin/model/model.h"

namespace halflin {

// What single tokens read in place of float weights (float32, float16, bfloat16).
enum class Quantize { kNone, kQ8_0, kQ4_0 };

struct DecodeOptions {
  Quantize quantize = Quantize::kNone;
  // Quantised weights are expanded to float32 and the cache is float32: nothing but sums rounds.
  bool exact = false;
  size_t chunk = 512;  // tokens of a prompt that go through the model together
};

// Bytes held.
struct DecodeMemory {
  size_t mapped = 0;     // the checkpoint's files (page cache, shared between processes)
  size_t packed = 0;     // weights packed for the prompt's products
  size_t converted = 0;  // weights of single tokens that are not read from the files
  size_t cache = 0;      // keys and values: float32 where single tokens read float32 weights, else
                         // float16
};

// One sequence being generated. Results do not depend on the number of threads.
class Decoder {
 public:
  // The context is the window the model was loaded for. `paths`: what stands in each layer's MLP's
  // place, one a layer, or none for the full MLPs. Throws Error where the paths are of other
  // shapes.
  Decoder(ThreadPool& pool, Model model, std::vector<MlpPath> paths = {},
          const DecodeOptions& options = {});
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  const Model& model() const;
  size_t context() const;   // most tokens that the cache holds
  size_t position() const;  // tokens in the cache

  // Appends tokens and returns the logits that follow the last one, [vocab], valid until the next
  // call. Throws Error, with nothing appended, where there is no token, an id is outside the
  // vocabulary, or they do not fit into the context.
  std::span<const float> prefill(std::span<const int32_t> ids);
  // The same for one token: the fast way.
  std::span<const float> step(int32_t id);
  // Forgets all tokens from `position` on; Error where there are fewer.
  void rewind(size_t position);

  // Whether tokens from now on take the paths given (as they do at first), or the full MLPs.
  void use_paths(bool on);

  // [tokens of the last call, layers]: 0 where a token took the full MLP, else the number of the
  // path's option, counted from 1.
  MatView<const uint8_t> routes() const;

  // Bytes of weights and cache that the last step read.
  size_t bytes_read() const;
  // Floating-point operations of the last call, multiply-adds as two.
  double flops() const;
  DecodeMemory memory() const;
  // The formats that single tokens read, one line each: "210 x Q4_1", "4 x Q5_K, read as Q8_0".
  std::vector<std::string> formats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace halflin
