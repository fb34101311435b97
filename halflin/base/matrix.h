// Row-major matrices with explicit shapes. A view never owns; a Matrix does.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

namespace halflin {

// Rows are `stride` elements apart; stride >= cols.
template <class T>
struct MatView {
  T* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;

  MatView() = default;
  MatView(T* data, size_t rows, size_t cols) : MatView(data, rows, cols, cols) {}
  MatView(T* data, size_t rows, size_t cols, size_t stride)
      : data(data), rows(rows), cols(cols), stride(stride) {}
  // A mutable view reads as a constant one.
  operator MatView<const T>() const requires(!std::is_const_v<T>) {
    return {data, rows, cols, stride};
  }

  T* row(size_t r) const { return data + r * stride; }
  std::span<T> row_span(size_t r) const { return {row(r), cols}; }
  T& operator()(size_t r, size_t c) const { return data[r * stride + c]; }
  MatView row_range(size_t begin, size_t count) const { return {row(begin), count, cols, stride}; }
  MatView col_range(size_t begin, size_t count) const {
    return {data + begin, rows, count, stride};
  }
};

// Owns rows x cols elements, zeroed, aligned to 64 bytes (a cache line, an AVX-512 vector).
template <class T>
class Matrix {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Matrix() = default;
  Matrix(size_t rows, size_t cols) : rows_(rows), cols_(cols) {
    const size_t bytes = (rows * cols * sizeof(T) + 63) / 64 * 64;
    if (bytes == 0) return;
    // calloc-like zeroing keeps large buffers lazily mapped; aligned_alloc needs the explicit fill.
    void* memory = std::aligned_alloc(64, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    data_.reset(static_cast<T*>(memory));
    std::fill_n(reinterpret_cast<unsigned char*>(memory), bytes, static_cast<unsigned char>(0));
  }

  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  size_t size() const { return rows_ * cols_; }
  bool empty() const { return size() == 0; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T* row(size_t r) { return data() + r * cols_; }
  const T* row(size_t r) const { return data() + r * cols_; }
  T& operator()(size_t r, size_t c) { return data()[r * cols_ + c]; }
  const T& operator()(size_t r, size_t c) const { return data()[r * cols_ + c]; }
  std::span<T> span() { return {data(), size()}; }
  std::span<const T> span() const { return {data(), size()}; }
  MatView<T> view() { return {data(), rows_, cols_}; }
  MatView<const T> view() const { return {data(), rows_, cols_}; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  size_t rows_ = 0;
  size_t cols_ = 0;
  std::unique_ptr<T, Free> data_;
};

}  // namespace halflin
