// How an instruct model wants a conversation written.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "halflin/io/hub.h"
#include "halflin/io/tokenizer.h"

namespace halflin {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // `source` in Jinja, of which docs/formats.md lists what is supported. `file` is for messages.
  // Throws Error naming the line for what is no template or outside the subset; filters, tests,
  // methods and functions outside of it only where one is reached in render().
  ChatTemplate(std::string_view source, std::string file);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The text of the conversation, as transformers' apply_chat_template(tokenize=False) gives it;
  // special tokens are in it by their text. `reply`: with what makes the model answer next. `now`:
  // the date for templates that ask. Throws Error with what the template itself refuses (roles that
  // do not alternate, say), and where it takes more steps or memory than any chat needs.
  std::string render(std::span<const ChatMessage> messages, const Tokenizer& tokenizer, bool reply,
                     std::time_t now) const;
  std::string render(std::span<const ChatMessage> messages, const std::string& bos,
                     const std::string& eos, bool reply, std::time_t now) const;

 private:
  struct Parsed;
  std::string file_;
  std::unique_ptr<Parsed> parsed_;
};

// The model's template: chat_template.jinja, or "chat_template" of tokenizer_config.json (of
// several that named "default"), or tokenizer.chat_template of a GGUF file's metadata. Nothing
// where there is none.
std::optional<ChatTemplate> read_chat_template(const ModelFiles& files,
                                               const nlohmann::json& metadata);

}  // namespace halflin
