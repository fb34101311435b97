// Generation: a prompt in, text out as it comes.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/io/text_stream.h"
#include "halflin/model/decode.h"
#include "halflin/model/sampling.h"

namespace halflin {

// What generation needs of a model; see Decoder for what each does.
struct TokenModel {
  size_t context = 0;
  std::function<std::span<const float>(std::span<const int32_t>)> prefill;
  std::function<std::span<const float>(int32_t)> step;
  std::function<void(size_t)> rewind;
  std::function<MatView<const uint8_t>()> routes;
};
// `decoder` must outlive it.
TokenModel token_model(Decoder& decoder);

struct GenerateOptions {
  size_t max_tokens = 256;        // 0: as many as come
  std::vector<int32_t> end;       // tokens that end the text; they are not part of it
  std::vector<std::string> stop;  // strings before which the text ends
  bool starts_text = false;       // the text begins anew instead of going on (see TextStream)
  // When the context is full: forget the older half of what follows the first kKeptTokens and read
  // the rest anew, instead of stopping.
  bool shift = false;
};
// Attention leans on the first tokens, whatever they are (Xiao et al. 2023).
inline constexpr size_t kKeptTokens = 4;

enum class StopReason : uint8_t { kEnd, kStopString, kLength, kContext, kInterrupted };
// "end", "stop", "length", "context", "interrupted".
std::string_view stop_reason_name(StopReason reason);

struct Generated {
  std::vector<int32_t> ids;  // without a token that ended the text
  std::string text;
  StopReason reason = StopReason::kLength;
  std::string stop;  // the stop string found
  size_t shifts = 0;
};

// Tokens that went through the model, and how long they took.
struct Passed {
  size_t tokens = 0;
  double seconds = 0;

  double per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

// One conversation or text: the tokens in the cache, and the next one's logits.
class Session {
 public:
  // Tokens that went through the model and their routes [tokens, layers], see Decoder::routes.
  using OnRoutes = std::function<void(std::span<const int32_t>, MatView<const uint8_t>)>;
  using OnText = std::function<void(std::string_view)>;

  // `interrupted`, when it turns true, ends reading and generating at the next token or chunk of
  // the prompt.
  Session(TokenModel model, const Tokenizer& tokenizer, const SamplingOptions& sampling,
          const std::atomic<bool>& interrupted);

  // Puts the model behind `ids`. What the cache holds is kept as far as it is the same. Throws
  // Error where there is no id, or more than the context holds.
  void read(std::span<const int32_t> ids, const OnRoutes& on_routes = {});
  // Goes on from what was read. `on_text` gets the text in pieces of whole characters; all of them
  // together are Generated::text.
  Generated generate(const GenerateOptions& options, const OnText& on_text,
                     const OnRoutes& on_routes = {});

  size_t context() const { return model_.context; }
  const Passed& prompt_passed() const { return prompt_passed_; }        // by read()
  const Passed& generated_passed() const { return generated_passed_; }  // one by one

 private:
  void fill(const OnRoutes& on_routes);
  void shift(const OnRoutes& on_routes);

  TokenModel model_;
  const Tokenizer& tokenizer_;
  Sampler sampler_;
  const std::atomic<bool>& interrupted_;
  std::vector<int32_t> ids_;       // read and generated
  size_t cached_ = 0;              // the first of them that are in the cache
  std::span<const float> logits_;  // that follow the cache; the model's, until its next call
  Passed prompt_passed_, generated_passed_;
};

}  // namespace halflin
