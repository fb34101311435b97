// GGUF's types of metadata values, as files number them.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstdint>

namespace halflin::gguf {

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

}  // namespace halflin::gguf
