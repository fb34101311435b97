// A hash map from 64-bit keys to 64-bit values in one array: built once, read very often.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace halflin {

class FlatMap {
 public:
  // Sets or overwrites. `key` is not 2^64 - 1.
  void set(uint64_t key, uint64_t value) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    Slot& slot = slots_[index_of(key)];
    if (slot.key == kFree) ++size_;
    slot = {key, value};
  }
  // Null where there is none.
  const uint64_t* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[index_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  size_t size() const { return size_; }
  // Calls visit(key, value) for each, in no particular order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.key != kFree) visit(slot.key, slot.value);
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    uint64_t value = 0;
  };

  // The slot that holds `key`, or the free one where it would go.
  size_t index_of(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    const uint64_t mixed = (key ^ (key >> 32)) * 0x9e3779b97f4a7c15u;
    size_t i = static_cast<size_t>(mixed ^ (mixed >> 32)) & mask;
    while (slots_[i].key != key && slots_[i].key != kFree) i = (i + 1) & mask;
    return i;
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kFree) slots_[index_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace halflin
