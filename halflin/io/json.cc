#include "halflin/io/json.h"

#include <unordered_set>
#include <vector>

#include "halflin/base/error.h"
#include "halflin/io/printable.h"

namespace halflin {
namespace {

constexpr int kDeepest = 64;

// What follows the byte offset in nlohmann's message: "[...] parse error at line 1, column 2:
// WHAT".
std::string syntax_problem(const nlohmann::json::parse_error& error) {
  const std::string_view what = error.what();
  const size_t at = what.find(": ");
  const std::string shown = in_quotes(at == what.npos ? what : what.substr(at + 2));
  return shown.substr(1, shown.size() - 2);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& name) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::unordered_set<std::string>> open_objects;
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    if ((event == Event::object_start || event == Event::array_start) && depth >= kDeepest) {
      fail("{}: expected JSON at most {} levels deep, found more", name, kDeepest);
    }
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        fail("{}: key {}: expected once in its JSON object, found twice", name, in_quotes(key));
      }
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    fail("{}: JSON byte {}: {}", name, error.byte, syntax_problem(error));
  } catch (const nlohmann::json::exception& error) {  // a number that no double holds
    const std::string shown = in_quotes(error.what());
    fail("{}: JSON: {}", name, shown);
  }
}

const nlohmann::json* find_member(const nlohmann::json& object, const std::string& key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

}  // namespace halflin
