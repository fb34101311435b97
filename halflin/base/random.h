// Random numbers that are the same on every platform and standard library.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace halflin {

// xoshiro256** (Blackman and Vigna, 2018), seeded through splitmix64. Integers and uniforms are
// identical everywhere; normals up to the last bit of the platform's log().
class Random {
 public:
  // Each (seed, purpose) is a stream of its own, so that drawing more numbers for one purpose never
  // shifts another: Random(seed, "bootstrap"), Random(seed, "random routing layer 3").
  explicit Random(uint64_t seed, std::string_view purpose = {}) {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (const char c : purpose) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    uint64_t mix = seed;
    mix = splitmix(mix) ^ hash;
    for (uint64_t& s : state_) s = splitmix(mix);
  }

  // 64 random bits.
  uint64_t next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // In [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  // In [0, n), each value equally likely; n >= 1. Takes the fewest bits that hold n - 1 and rejects
  // what is too large (under two tries on average).
  uint64_t below(uint64_t n) {
    if (n <= 1) return 0;
    const int shift = 64 - std::bit_width(n - 1);
    for (;;) {
      const uint64_t v = next() >> shift;
      if (v < n) return v;
    }
  }

  // Mean 0, variance 1: Marsaglia's polar method, one of its two values kept for the next call.
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    double u = 0, v = 0, s = 0;
    do {
      u = 2 * uniform() - 1;
      v = 2 * uniform() - 1;
      s = u * u + v * v;
    } while (s >= 1 || s == 0);
    const double factor = std::sqrt(-2 * std::log(s) / s);
    spare_ = v * factor;
    has_spare_ = true;
    return u * factor;
  }

  // A uniform permutation in place (Fisher and Yates).
  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  static uint64_t splitmix(uint64_t& x) {
    x += 0x9e3779b97f4a7c15u;
    uint64_t z = x;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t state_[4] = {};
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace halflin
