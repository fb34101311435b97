// Whatever bytes config.json holds: an architecture or an Error.
#include "halflin/base/error.h"
#include "halflin/io/json.h"
#include "halflin/model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto architecture =
        halflin::parse_config(halflin::parse_json(text, "config.json"), "config.json");
    halflin::flops_per_token(architecture.config, 64);
  } catch (const halflin::Error&) {
  }
  return 0;
}
