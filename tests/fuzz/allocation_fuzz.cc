#include <cstdint>
#include <span>

#include "halflin/base/error.h"
#include "halflin/mlp/allocation.h"

// Any bytes as an allocation file: an Error, or an allocation that passes its own checks. The
// digest, which no mutation survives, is computed but does not end the run.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const halflin::TensorFile file =
        halflin::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
    try {
      halflin::check_allocation_digest(file);
    } catch (const halflin::Error&) {
    }
    const halflin::Allocation allocation = halflin::read_allocation(file);
    halflin::check_allocation(allocation, "fuzz");
    halflin::check_allocation_model(allocation, allocation.model, "fuzz");
  } catch (const halflin::Error&) {
  }
  return 0;
}
