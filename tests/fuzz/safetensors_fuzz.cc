#include <cstdint>
#include <span>

#include "tests/fuzz/read_all.h"

// Any bytes as a safetensors file: an Error or a file that reads.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    halflin::read_all(halflin::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz"));
  } catch (const halflin::Error&) {
  }
  return 0;
}
