// What the files that call oneDNN share: its engine, and per thread a stream and scratch memory.
// Included by those .cc files alone, so that oneDNN's headers reach nobody else.
#pragma once

#include <dnnl.hpp>

#include "halflin/base/matrix.h"

namespace halflin {

// Per thread: a oneDNN stream and scratch that primitives may use. oneDNN's own (OpenMP) threads
// are turned off for this thread, since ThreadPool already runs one block a thread.
struct OneDnnThread {
  dnnl::stream stream;
  Matrix<unsigned char> scratch;

  explicit OneDnnThread(const dnnl::engine& engine);

  void* scratch_of(size_t bytes) {
    if (scratch.size() < bytes) scratch = Matrix<unsigned char>(1, bytes);
    return scratch.data();
  }
};

const dnnl::engine& cpu_engine();
OneDnnThread& onednn_thread();

inline dnnl::memory::data_type type_of(bool is_bf16) {
  return is_bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// [rows, cols], rows `stride` elements apart.
inline dnnl::memory::desc rows_desc(size_t rows, size_t cols, size_t stride, bool is_bf16) {
  const auto dim = [](size_t n) { return static_cast<dnnl::memory::dim>(n); };
  return dnnl::memory::desc({dim(rows), dim(cols)}, type_of(is_bf16),
                            dnnl::memory::dims{dim(stride), 1});
}

inline dnnl::memory wrap(const dnnl::memory::desc& desc, const void* data) {
  return dnnl::memory(desc, cpu_engine(), const_cast<void*>(data));
}

}  // namespace halflin
