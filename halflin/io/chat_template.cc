#include "halflin/io/chat_template.h"

#include <filesystem>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/jinja/evaluate.h"
#include "halflin/io/json.h"

namespace halflin {

struct ChatTemplate::Parsed {
  std::vector<jinja::Statement> statements;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string file)
    : file_(std::move(file)), parsed_(std::make_unique<Parsed>()) {
  parsed_->statements = jinja::parse(source, file_);
}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const Tokenizer& tokenizer,
                                 bool reply, std::time_t now) const {
  const auto text = [&](const std::optional<int32_t>& id) {
    return id ? tokenizer.token_bytes(*id) : std::string();
  };
  return render(messages, text(tokenizer.bos()), text(tokenizer.eos()), reply, now);
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const std::string& bos,
                                 const std::string& eos, bool reply, std::time_t now) const {
  size_t unbounded = SIZE_MAX;  // making what the template is given is not its work
  const jinja::Place place{file_, 1, unbounded};
  jinja::List list;
  for (const ChatMessage& message : messages) {
    for (const std::string& text : {message.role, message.content}) {
      const size_t bad = find_invalid_utf8(text);
      if (bad == std::string::npos) continue;
      fail("message: byte offset {}: expected UTF-8, found byte 0x{:02x}", bad,
           static_cast<unsigned>(static_cast<unsigned char>(text[bad])));
    }
    list.push_back(jinja::make_dict(place, {{"role", message.role}, {"content", message.content}}));
  }
  // As transformers passes them; a model without such a token has no such name.
  std::map<std::string, jinja::Value> values = {{"messages", jinja::make_list(place, list)},
                                                {"add_generation_prompt", reply},
                                                {"tools", jinja::None{}},
                                                {"documents", jinja::None{}}};
  if (!bos.empty()) values.emplace("bos_token", bos);
  if (!eos.empty()) values.emplace("eos_token", eos);
  return jinja::evaluate(parsed_->statements, file_, values, now);
}

namespace {

using nlohmann::json;

// A template, or a list of {"name", "template"} of which that named "default" is meant.
std::optional<ChatTemplate> template_in(const json* value, const std::string& where) {
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (value->is_array()) {
    for (const json& named : *value) {
      const json* name = find_member(named, "name");
      if (name != nullptr && *name == "default") {
        return template_in(find_member(named, "template"), where);
      }
    }
    fail("{}: of several templates none is named \"default\"", where);
  }
  if (!value->is_string()) {
    fail("{}: expected a template, found {}", where, value->type_name());
  }
  return ChatTemplate(value->get_ref<const std::string&>(), where);
}

}  // namespace

std::optional<ChatTemplate> read_chat_template(const ModelFiles& files, const json& metadata) {
  if (!files.gguf.empty()) {
    return template_in(find_member(metadata, "tokenizer.chat_template"),
                       files.gguf.string() + ": tokenizer.chat_template");
  }
  const std::filesystem::path path = files.directory / "chat_template.jinja";
  if (std::filesystem::exists(path)) return ChatTemplate(read_file(path), path.string());
  const std::filesystem::path config = files.directory / "tokenizer_config.json";
  if (!std::filesystem::exists(config)) return std::nullopt;
  const json document = parse_json(read_file(config), config.string());
  return template_in(find_member(document, "chat_template"), config.string() + ": chat_template");
}

}  // namespace halflin
