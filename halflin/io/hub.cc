#include "halflin/io/hub.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/printable.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSafetensors = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Names in a directory, sorted; none where it cannot be read.
std::vector<std::string> list(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> with_extension(const std::vector<std::string>& names,
                                        const std::string& extension) {
  std::vector<std::string> matching;
  for (const std::string& name : names) {
    if (fs::path(name).extension() == extension) matching.push_back(name);
  }
  return matching;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The model in a directory. `hint` ends the message when files are missing.
ModelFiles model_in(const fs::path& directory, const std::string& hint) {
  const bool config = is_there(directory / "config.json");
  if (config && (is_there(directory / kSafetensors) || is_there(directory / kIndex))) {
    return {directory, {}};
  }
  const std::string where = directory.string();
  const std::vector<std::string> names = list(directory);
  const std::vector<std::string> ggufs = with_extension(names, ".gguf");
  if (ggufs.size() == 1) return {{}, directory / ggufs[0]};
  if (ggufs.size() > 1) {
    fail("{}: expected one model, found {} GGUF files: name one of {}", where, ggufs.size(),
         joined(ggufs));
  }
  if (!config) {
    fail("{}: expected config.json (a Hugging Face directory) or a .gguf file, found neither{}",
         where, hint);
  }
  const std::vector<std::string> pickles = with_extension(names, ".bin");
  if (std::find_if(pickles.begin(), pickles.end(), [](const std::string& name) {
        return name.starts_with("pytorch_model");
      }) != pickles.end()) {
    fail(
        "{}: expected {}, found pytorch_model.bin: convert it to safetensors with transformers "
        "(AutoModelForCausalLM.from_pretrained, then save_pretrained)",
        where, kSafetensors);
  }
  fail("{}: expected {} or {}, found neither{}", where, kSafetensors, kIndex, hint);
}

std::optional<fs::path> environment_path(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return fs::path(value);
}

// Nothing where not even HOME says where the cache would be.
std::optional<fs::path> cache_directory() {
  if (const auto path = environment_path("HF_HUB_CACHE")) return *path;
  if (const auto path = environment_path("HF_HOME")) return *path / "hub";
  if (const auto path = environment_path("XDG_CACHE_HOME")) return *path / "huggingface" / "hub";
  if (const auto path = environment_path("HOME")) return *path / ".cache" / "huggingface" / "hub";
  return std::nullopt;
}

// "name" or "organisation/name" as the hub spells them, and so no way out of the cache.
bool is_hub_name(const std::string& model) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  };
  return !model.empty() && std::all_of(model.begin(), model.end(), allowed) &&
         std::count(model.begin(), model.end(), '/') <= 1 && model.front() != '/' &&
         model.back() != '/' && model.front() != '.' && model.find("..") == std::string::npos &&
         fs::path(model).extension() != ".gguf";
}

// "openai-community/gpt2" -> "models--openai-community--gpt2".
std::string cache_name(const std::string& model) {
  std::string name = "models--";
  for (const char c : model) {
    if (c == '/') {
      name += "--";
    } else {
      name += c;
    }
  }
  return name;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// refs/main names the snapshot; a cache filled by hand may hold just one snapshot and no refs.
fs::path snapshot_of(const fs::path& repository, const std::string& hint) {
  const fs::path ref = repository / "refs" / "main";
  const fs::path snapshots = repository / "snapshots";
  if (is_there(ref)) {
    const std::string commit = trimmed(read_file(ref));
    if (commit.empty() || commit.find('/') != std::string::npos || commit.starts_with(".")) {
      fail("{}: expected the name of a snapshot, found {}", ref.string(), in_quotes(commit));
    }
    if (!is_folder(snapshots / commit)) {
      fail("{}: expected the snapshot that refs/main names, found it missing{}",
           (snapshots / commit).string(), hint);
    }
    return snapshots / commit;
  }
  const std::vector<std::string> names = list(snapshots);
  if (names.size() != 1) {
    fail("{}: expected refs/main or one snapshot, found {} snapshots{}", repository.string(),
         names.size(), hint);
  }
  return snapshots / names[0];
}

ModelFiles model_in_cache(const std::string& model) {
  const auto cache = cache_directory();
  if (!cache) {
    fail(
        "{}: expected a directory, a .gguf file, or a cached model; found no such file, and none "
        "of "
        "HF_HUB_CACHE, HF_HOME and HOME is set",
        model);
  }
  const std::string hint = fmt::format("; fetch it with: hf download {}", model);
  const fs::path repository = *cache / cache_name(model);
  if (is_folder(repository)) return model_in(snapshot_of(repository, hint), hint);

  // A name without its organisation, cached with it.
  std::vector<std::string> candidates;
  if (model.find('/') == std::string::npos) {
    for (const std::string& name : list(*cache)) {
      const size_t separator = name.rfind("--");
      if (name.starts_with("models--") && separator > 6 && name.substr(separator + 2) == model) {
        candidates.push_back(name);
      }
    }
  }
  if (candidates.size() == 1) {
    return model_in(snapshot_of(*cache / candidates[0], hint), hint);
  }
  if (candidates.size() > 1) {
    fail("{}: expected one such model in {}, found {}: {}", model, cache->string(),
         candidates.size(), joined(candidates));
  }
  fail(
      "{}: expected a directory, a .gguf file, or a cached model; found no file of that name and "
      "no "
      "{}{}",
      model, repository.string(), hint);
}

}  // namespace

ModelFiles find_model(const std::string& model) {
  if (model.empty()) fail("expected a model (a directory, a .gguf file, or a name), found nothing");
  const fs::path path(model);
  if (is_folder(path)) return model_in(path, "");
  if (is_there(path)) {
    if (path.extension() == ".gguf") return {{}, path};
    fail("{}: expected a Hugging Face directory or a .gguf file, found another file", model);
  }
  if (!is_hub_name(model)) {
    fail("{}: expected a directory or a .gguf file, found no such file", model);
  }
  return model_in_cache(model);
}

TensorFile open_checkpoint(const ModelFiles& files) {
  if (!files.gguf.empty()) return open_gguf(files.gguf);
  // transformers, too, prefers the single file where both are there.
  if (is_there(files.directory / kSafetensors)) {
    return open_safetensors(files.directory / kSafetensors);
  }
  return open_safetensors_index(files.directory / kIndex);
}

}  // namespace halflin
