#include "halflin/model/end_tokens.h"

#include <filesystem>
#include <set>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/hub.h"
#include "halflin/io/json.h"

namespace halflin {

namespace {

using nlohmann::json;

// Adds the id, or ids, that `object` has under `key`.
void add_ids(const json& object, const std::string& key, const std::string& file, size_t vocab,
             std::set<int32_t>& ids) {
  const json* value = find_member(object, key);
  if (value == nullptr || value->is_null()) return;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_integer()) {
      fail("{}: {}: expected a token id or a list of them, found {}", file, key, id.type_name());
    }
    // Unsigned: what is negative lies beyond the vocabulary as well.
    const auto number = id.get<uint64_t>();
    if (number < vocab) ids.insert(static_cast<int32_t>(number));
  }
}

}  // namespace

std::vector<int32_t> end_tokens(const Checkpoint& checkpoint, const Tokenizer& tokenizer) {
  const size_t vocab = checkpoint.architecture.config.vocab;
  std::set<int32_t> ids;
  if (tokenizer.eos()) ids.insert(*tokenizer.eos());
  const ModelFiles files = find_model(checkpoint.path);
  if (!files.gguf.empty()) {
    for (const char* kind : {"eos", "eot", "eom"}) {
      add_ids(checkpoint.file.metadata, fmt::format("tokenizer.ggml.{}_token_id", kind),
              files.gguf.string(), vocab, ids);
    }
  } else {
    for (const char* name : {"generation_config.json", "config.json"}) {
      const std::filesystem::path path = files.directory / name;
      if (!std::filesystem::exists(path)) continue;
      add_ids(parse_json(read_file(path), path.string()), "eos_token_id", path.string(), vocab,
              ids);
    }
  }
  return {ids.begin(), ids.end()};
}

}  // namespace halflin
