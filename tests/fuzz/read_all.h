// What the checkpoint fuzzers do with a file that opens.
#pragma once

#include <vector>

#include "halflin/base/error.h"
#include "halflin/io/tensor_file.h"

namespace halflin {

// Every tensor that parsed lies inside the file and reads, or says why not.
inline void read_all(const TensorFile& file) {
  for (const auto& [name, tensor] : file.tensors) {
    std::vector<float> values(tensor.elements());
    try {
      read_f32(tensor, 0, values);
    } catch (const Error&) {
    }
  }
}

}  // namespace halflin
