// Any bytes as a chat template: a text within bounds, or an Error.
#include <cstdint>
#include <string_view>
#include <vector>

#include "halflin/base/error.h"
#include "halflin/io/chat_template.h"
#include "halflin/io/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<halflin::ChatMessage> messages = {
      {"system", "Be brief."}, {"user", " caf\xc3\xa9?\n"}, {"assistant", ""}, {"user", "a,b"}};
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const halflin::ChatTemplate chat(source, "fuzz");
    const std::string text = chat.render(messages, "<s>", "</s>", true, 1700000000);
    if (halflin::find_invalid_utf8(text) != std::string::npos) __builtin_trap();
  } catch (const halflin::Error&) {
  }
  return 0;
}
