// Any bytes as tokenizer.json, and any JSON as the metadata of a GGUF file: a tokenizer that works,
// or an Error.
#include <cstdint>
#include <string>
#include <string_view>

#include "halflin/base/error.h"
#include "halflin/io/json.h"
#include "halflin/io/tokenizer.h"

namespace {

void use(const halflin::Tokenizer& tokenizer) {
  static const std::string texts[] = {
      "It's 12 o'clock, isn't it?", " a  b\n\n\tc ", "<end> abab<end>aab",
      "caf\xc3\xa9 e\xcc\x81 \xe2\x96\x81x\xf0\x9f\x98\x80", std::string(3, '\0')};
  for (const std::string& text : texts) {
    try {
      const std::vector<int32_t> ids = tokenizer.encode(text);
      tokenizer.decode(ids);
      for (const int32_t id : ids) tokenizer.is_special(id);
    } catch (const halflin::Error&) {
    }
  }
  tokenizer.description();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    use(halflin::Tokenizer::from_json(text, "fuzz"));
  } catch (const halflin::Error&) {
  }
  try {
    use(halflin::Tokenizer::from_gguf(halflin::parse_json(text, "fuzz"), "fuzz"));
  } catch (const halflin::Error&) {
  }
  return 0;
}
