// The token map's data: a test text with each token's figures at every layer, packed.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "halflin/report/run.h"

namespace halflin {

// The bytes of a token id; an empty function where no tokenizer is at hand (ids are shown).
using TokenBytes = std::function<std::string(int32_t)>;

// What one token takes in the page, in bytes, all layers together.
size_t token_map_bytes_per_token(const ReportRun& run);

// The first `tokens` tokens (rounded down to whole sequences, but one at least) of a run that has
// tokens, as halflin/report/assets/tokens.js reads them:
//   run, tokens, of, known     label, tokens here and in all, whether `pieces` are text
//   pieces, ids, piece         text and id of each distinct piece; which piece a token is (u16 or
//   u32) starts                     where each sequence starts (u32) loss f16, of predicting the
//   next token layers                     layer numbers delta, error               f16 for each
//   layer: nats; log10 of the error energy. null: none gates                      [{"name",
//   "layers": [{"bytes", "lo", "threshold", "hi"} or null]}]
nlohmann::json token_map(const ReportRun& run, size_t tokens, const TokenBytes& bytes_of);

}  // namespace halflin
