// Which tokens end a text.
#pragma once

#include <cstdint>
#include <vector>

#include "halflin/io/tokenizer.h"
#include "halflin/model/model.h"

namespace halflin {

// What the checkpoint's files name, rising, without repetition: the tokenizer's end-of-text token;
// eos_token_id (a number or a list) of generation_config.json and config.json; in GGUF the tokens
// that end a text, a turn or a message. Ids beyond the vocabulary are left out: they cannot come.
// Throws Error naming file and key for what is no id.
std::vector<int32_t> end_tokens(const Checkpoint& checkpoint, const Tokenizer& tokenizer);

}  // namespace halflin
