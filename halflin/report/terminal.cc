#include "halflin/report/terminal.h"

#include <fmt/format.h>

#include <cmath>

namespace halflin {

using nlohmann::json;

std::string percent(double value) {
  return std::abs(value) >= 1000 ? fmt::format("{:+.0f} %", value)
                                 : fmt::format("{:+.2f} %", value);
}

std::string interval(const json& figure) {
  return fmt::format("[{}, {}]", percent(figure.at("ci_lo")), percent(figure.at("ci_hi")));
}

std::string change(const json& figure) {
  return fmt::format("{} {}", percent(figure.at("delta_ppl_pct")), interval(figure));
}

std::string bar(double share) {
  constexpr int kWidth = 20;
  const int filled = static_cast<int>(std::lround(share * kWidth));
  std::string text;
  for (int i = 0; i < kWidth; ++i) text += i < filled ? "█" : "·";
  return text;
}

}  // namespace halflin
