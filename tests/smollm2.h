// SmolLM2-135M-Instruct, for tests that need a real model. They are skipped, in words, without it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace halflin {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kTooSlow = true;
#elif defined(__has_feature)
constexpr bool kTooSlow = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kTooSlow = false;
#endif

inline std::string smollm2_path() {
  if (const char* path = std::getenv("HALFLIN_SMOLLM2")) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base =
      cache != nullptr ? std::filesystem::path(cache)
                       : std::filesystem::path(home != nullptr ? home : "") / ".cache";
  return (base / "halflin" / "SmolLM2-135M-Instruct.Q4_1.gguf").string();
}

// Why tests with it cannot run, or nothing.
inline std::string smollm2_missing() {
  if (kTooSlow) return "too slow under a sanitizer";
  if (std::filesystem::exists(smollm2_path())) return "";
  return "no SmolLM2 at " + smollm2_path() + ": run scripts/get-smollm2.sh";
}

}  // namespace halflin
