#include "halflin/report/figures.h"

namespace halflin {

using nlohmann::json;

double number(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_number() ? kNone : found->get<double>();
}

Figure figure(const json& object, const std::string& key, const std::string& prefix) {
  return {number(object, key), number(object, prefix + "ci_lo"), number(object, prefix + "ci_hi")};
}

Figure cost(const json& variant) { return figure(variant, "delta_ppl_pct", ""); }

std::string text(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() ? std::string()
         : found->is_string()  ? found->get<std::string>()
                               : found->dump();
}

const json& list(const json& layer, const std::string& key) {
  static const json kEmpty = json::array();
  return layer.contains(key) ? layer.at(key) : kEmpty;
}

}  // namespace halflin
