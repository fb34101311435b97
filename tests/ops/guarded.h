// Memory that ends where the next access faults: for kernels that must not read past their input.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>

namespace halflin {

class Guarded {
 public:
  explicit Guarded(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t pages = (bytes + page - 1) / page;
    length_ = (pages + 1) * page;
    void* memory =
        mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    start_ = static_cast<std::byte*>(memory);
    mprotect(start_ + pages * page, page, PROT_NONE);
    data_ = start_ + pages * page - bytes;
  }
  ~Guarded() { munmap(start_, length_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* start_ = nullptr;
  std::byte* data_ = nullptr;
  size_t length_ = 0;
};

}  // namespace halflin
