// halflin run: generates text, or chats.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <iostream>
#include <iterator>
#include <memory>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/io/chat_template.h"
#include "halflin/io/file.h"
#include "halflin/io/printable.h"
#include "halflin/io/text.h"
#include "halflin/measure/paths.h"
#include "halflin/model/end_tokens.h"
#include "halflin/model/generate.h"

namespace halflin::cli {

namespace {

// A context that a prompt seldom needs more of, and that fits any machine's memory.
constexpr size_t kDefaultContext = 4096;

std::atomic<bool> interrupted{false};

// The first Ctrl-C ends the text, the second the program.
void catch_interrupt() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  // A read of a line that is waiting ends, too.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

struct Options {
  Common common;
  CLI::Option* prompt_given = nullptr;
  std::string prompt;
  std::string file;
  std::string system;
  bool chat = false;
  bool no_chat = false;
  size_t context = 0;
  bool ignore_end = false;
  bool show_route = false;
  DecodeChoice decode;
  std::string allocation;
  CLI::Option* max_tokens_given = nullptr;
  SamplingOptions sampling;
  GenerateOptions generate;
};

// --- input ---

void check_utf8(std::string_view text, const std::string& name) {
  const size_t bad = find_invalid_utf8(text);
  if (bad == std::string_view::npos) return;
  fail("{}: byte offset {}: expected UTF-8, found byte 0x{:02x}", name, bad,
       static_cast<unsigned>(static_cast<unsigned char>(text[bad])));
}

// A file's text, or standard input's, without the line feed that ends its last line.
std::string plain_text(std::string text, const std::string& name) {
  check_utf8(text, name);
  text = with_plain_newlines(std::move(text));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// Nothing where a person is to be asked.
std::optional<std::string> read_prompt(const Options& options) {
  if (options.prompt_given->count() > 0) {
    check_utf8(options.prompt, "--prompt");
    return options.prompt;
  }
  if (!options.file.empty()) return plain_text(read_file(options.file), options.file);
  if (isatty(STDIN_FILENO) != 0) return std::nullopt;
  return plain_text(
      std::string((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>()),
      "standard input");
}

// What stands before a prompt that is continued: the BOS where the tokenizer adds one, or where
// there is nothing else to begin with.
std::vector<int32_t> plain_prompt(const Tokenizer& tokenizer, const std::string& prompt,
                                  const std::string& model) {
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  std::optional<int32_t> bos = tokenizer.added_bos();
  if (!bos && ids.empty()) {
    bos = tokenizer.bos();
    if (!bos) fail("{}: the prompt is empty, and the model has no token to begin with", model);
  }
  if (bos) ids.insert(ids.begin(), *bos);
  return ids;
}

// --- output ---

// "3,7:10": the layers where a token did not take the full MLP, as --layers takes them.
std::string short_ways(std::span<const uint8_t> route) {
  std::string text;
  for (size_t l = 0; l < route.size(); ++l) {
    if (route[l] == 0) continue;
    size_t end = l;
    while (end < route.size() && route[end] != 0) ++end;
    if (!text.empty()) text += ",";
    text += end == l + 1 ? fmt::format("{}", l) : fmt::format("{}:{}", l, end);
    l = end;
  }
  return text.empty() ? "-" : text;
}

// What is said while text is generated: the text, or with --show-route a line for each token that
// went through the model.
class Output {
 public:
  Output(const Options& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer) {}

  Session::OnText on_text() const {
    if (options_.common.json || options_.show_route) return {};
    return [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
  }

  Session::OnRoutes on_routes() {
    if (!options_.show_route) return {};
    return [this](std::span<const int32_t> ids, MatView<const uint8_t> routes) {
      for (size_t t = 0; t < ids.size(); ++t) add_route(ids[t], routes.row_span(t));
    };
  }

  void set_part(const char* part) { part_ = part; }
  const nlohmann::json& routes() const { return routes_; }

 private:
  void add_route(int32_t id, std::span<const uint8_t> route) {
    if (options_.common.json) {
      nlohmann::json layers = nlohmann::json::object();
      for (size_t l = 0; l < route.size(); ++l) {
        if (route[l] != 0) layers[std::to_string(l)] = route[l];
      }
      routes_.push_back({{"id", id}, {"part", part_}, {"options", layers}});
      return;
    }
    fmt::print("{:<6}  {:<20}  {}\n", part_, in_quotes(tokenizer_.token_bytes(id)),
               short_ways(route));
    std::fflush(stdout);
  }

  const Options& options_;
  const Tokenizer& tokenizer_;
  const char* part_ = "prompt";
  nlohmann::json routes_ = nlohmann::json::array();
};

std::string describe_end(const Generated& generated, const Session& session) {
  switch (generated.reason) {
    case StopReason::kEnd:
      return "ended by the model";
    case StopReason::kStopString:
      return "stopped before " + in_quotes(generated.stop);
    case StopReason::kLength:
      return "stopped at --max-tokens";
    case StopReason::kContext:
      return fmt::format("stopped: the context of {} tokens is full (--context, --shift)",
                         session.context());
    case StopReason::kInterrupted:
      break;
  }
  return "interrupted";
}

void print_summary(const Generated& generated, const Session& session) {
  const Passed& prompt = session.prompt_passed();
  const Passed& steps = session.generated_passed();
  std::string shifts;
  if (generated.shifts != 0) {
    shifts = fmt::format(", {} times the older half of the context dropped", generated.shifts);
  }
  fmt::print(stderr,
             "halflin: prompt {} tokens, {:.1f} tokens/s; generated {} tokens, {:.1f} tokens/s{}; "
             "{}\n",
             prompt.tokens, prompt.per_second(), generated.ids.size(), steps.per_second(), shifts,
             describe_end(generated, session));
}

void print_json(const Options& options, const Generated& generated, const Session& session,
                double load_seconds, const Output& output) {
  const Passed& prompt = session.prompt_passed();
  const Passed& steps = session.generated_passed();
  nlohmann::json out = {{"model", options.common.model},
                        {"text", generated.text},
                        {"ids", generated.ids},
                        {"stop_reason", stop_reason_name(generated.reason)},
                        {"context", session.context()},
                        {"shifts", generated.shifts},
                        {"seed", options.sampling.seed},
                        {"threads", options.common.threads},
                        {"prompt_tokens", prompt.tokens},
                        {"generated_tokens", generated.ids.size()},
                        {"timing",
                         {{"load_s", load_seconds},
                          {"prompt_s", prompt.seconds},
                          {"prompt_tokens_per_s", prompt.per_second()},
                          {"decode_s", steps.seconds},
                          {"decode_tokens_per_s", steps.per_second()}}}};
  if (generated.reason == StopReason::kStopString) out["stop"] = generated.stop;
  if (options.show_route) out["routes"] = output.routes();
  fmt::print("{}\n", out.dump(2));
}

// --- chatting ---

// Leaves out the oldest turns, but no system message, until the conversation leaves the context
// room for a reply. Returns its tokens and how many messages are gone.
std::pair<std::vector<int32_t>, size_t> fit_conversation(std::vector<ChatMessage>& messages,
                                                         const ChatTemplate& chat,
                                                         const Tokenizer& tokenizer,
                                                         size_t context) {
  const size_t room = std::min<size_t>(context / 4, 256);
  const size_t first = messages.front().role == "system" ? 1 : 0;
  size_t gone = 0;
  for (;;) {
    const std::string text = chat.render(messages, tokenizer, true, std::time(nullptr));
    std::vector<int32_t> ids = tokenizer.encode(text);
    if (ids.size() + room <= context || messages.size() < first + 3) return {std::move(ids), gone};
    const auto from = messages.begin() + static_cast<std::ptrdiff_t>(first);
    messages.erase(from, from + 2);
    gone += 2;
  }
}

// A line from the terminal; nothing at its end (Ctrl-D).
std::optional<std::string> ask() {
  fmt::print(stderr, "> ");
  std::fflush(stderr);
  std::string line;
  if (!std::getline(std::cin, line)) {
    fmt::print(stderr, "\n");
    if (interrupted) throw ExitStatus{130};
    return std::nullopt;
  }
  return line;
}

void converse(const Options& options, const ChatTemplate& chat, const Tokenizer& tokenizer,
              Session& session, Output& output) {
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  if (!options.common.quiet) {
    fmt::print(stderr, "Ctrl-C ends a reply, Ctrl-D the conversation.\n");
  }
  for (;;) {
    interrupted = false;
    catch_interrupt();
    const std::optional<std::string> line = ask();
    if (!line) return;
    if (line->empty()) continue;
    if (find_invalid_utf8(*line) != std::string::npos) {
      fmt::print(stderr, "halflin: this line is not UTF-8\n");
      continue;
    }
    std::vector<ChatMessage> longer = messages;
    longer.push_back({"user", *line});
    const auto [ids, gone] = fit_conversation(longer, chat, tokenizer, session.context());
    if (ids.size() >= session.context()) {
      fmt::print(stderr, "halflin: {} tokens do not fit the context of {}\n", ids.size(),
                 session.context());
      continue;
    }
    messages = std::move(longer);
    if (gone != 0 && !options.common.quiet) {
      fmt::print(stderr, "halflin: the oldest {} messages no longer fit the context of {} tokens\n",
                 gone, session.context());
    }
    output.set_part("prompt");
    session.read(ids, output.on_routes());
    output.set_part("text");
    const Generated reply =
        session.generate(options.generate, output.on_text(), output.on_routes());
    fmt::print("\n");
    std::fflush(stdout);
    if (reply.reason == StopReason::kContext && !options.common.quiet) {
      fmt::print(stderr, "halflin: {}\n", describe_end(reply, session));
    }
    messages.push_back({"assistant", reply.text});
  }
}

// --- the command ---

void check_options(const Options& options, const std::optional<std::string>& prompt, bool chat) {
  if (!prompt && !chat) {
    throw UsageError("no prompt: expected --prompt, --file, or text on standard input");
  }
  if (!prompt && options.common.json) throw UsageError("--json needs a prompt");
  if (!options.system.empty() && !chat) throw UsageError("--system is for chats alone");
  check_utf8(options.system, "--system");
}

// A stop string that is a special token ends the text as that token: special tokens are not in the
// text where it could be found.
void add_end_tokens(const Checkpoint& checkpoint, const Tokenizer& tokenizer, Options& options) {
  if (!options.ignore_end) options.generate.end = end_tokens(checkpoint, tokenizer);
  const StopStrings checked(options.generate.stop);
  for (const std::string& stop : options.generate.stop) {
    const std::vector<int32_t> ids = tokenizer.encode(stop);
    if (ids.size() == 1 && tokenizer.is_special(ids[0])) options.generate.end.push_back(ids[0]);
  }
}

std::optional<ChatTemplate> find_template(const Options& options, const Checkpoint& checkpoint) {
  if (options.no_chat) return std::nullopt;
  std::optional<ChatTemplate> chat;
  try {
    chat = read_chat_template(find_model(options.common.model), checkpoint.file.metadata);
  } catch (const Error& error) {
    if (options.chat) throw;
    fail("{} (--no-chat does without the chat template)", error.what());
  }
  if (!chat && options.chat) fail("{}: the model has no chat template", options.common.model);
  return chat;
}

void run(Options& options) {
  check_sampling(options.sampling);
  Checkpoint checkpoint = read_checkpoint(options.common.model);
  const Tokenizer tokenizer = read_tokenizer(checkpoint);
  const size_t positions = checkpoint.architecture.config.max_positions;
  const size_t context =
      options.context != 0 ? options.context : std::min(positions, kDefaultContext);
  if (context > positions) {
    fail("--context: the model was made for {} positions, found {}", positions, context);
  }
  add_end_tokens(checkpoint, tokenizer, options);

  const std::optional<ChatTemplate> chat = find_template(options, checkpoint);
  const std::optional<std::string> prompt = read_prompt(options);
  check_options(options, prompt, chat.has_value());
  std::vector<int32_t> ids;
  if (prompt && chat) {
    std::vector<ChatMessage> messages;
    if (!options.system.empty()) messages.push_back({"system", options.system});
    messages.push_back({"user", *prompt});
    ids = tokenizer.encode(chat->render(messages, tokenizer, true, std::time(nullptr)));
  } else if (prompt) {
    ids = plain_prompt(tokenizer, *prompt, options.common.model);
  }
  if (ids.size() > context) {
    fail("the prompt's {} tokens do not fit the context of {}", ids.size(), context);
  }
  options.generate.starts_text = chat.has_value();
  if (chat && options.max_tokens_given->count() == 0) options.generate.max_tokens = 0;

  const auto start = std::chrono::steady_clock::now();
  std::optional<Allocation> allocation;
  if (!options.allocation.empty()) {
    allocation = load_allocation_for(options.allocation, options.common.model, checkpoint);
  }
  ThreadPool pool(options.common.threads);
  const Precision precision = prefill_precision(options.decode, checkpoint);
  Model model = load_model(pool, std::move(checkpoint), precision, context);
  std::vector<MlpPath> paths;
  if (allocation) paths = pack_allocation(pool, model, *allocation);
  Decoder decoder(pool, std::move(model), std::move(paths), decode_options(options.decode));
  const std::chrono::duration<double> load = std::chrono::steady_clock::now() - start;

  Output output(options, tokenizer);
  Session session(token_model(decoder), tokenizer, options.sampling, interrupted);
  if (!prompt) {
    converse(options, *chat, tokenizer, session, output);
    return;
  }
  catch_interrupt();
  session.read(ids, output.on_routes());
  output.set_part("text");
  const Generated generated =
      session.generate(options.generate, output.on_text(), output.on_routes());
  if (options.common.json) {
    print_json(options, generated, session, load.count(), output);
  } else {
    if (!options.show_route) fmt::print("\n");
    std::fflush(stdout);
    if (!options.common.quiet) print_summary(generated, session);
  }
  if (generated.reason == StopReason::kInterrupted) throw ExitStatus{130};
}

}  // namespace

void add_run_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("run", "Generate text, or chat");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common,
             "halflin run HuggingFaceTB/SmolLM2-135M-Instruct --prompt 'What is a kettle?'\n"
             "Without a prompt, on a terminal, it is a conversation.");
  options->prompt_given = command->add_option("--prompt", options->prompt, "text to go on from");
  command->add_option("--file", options->file, "file with the prompt; else standard input")
      ->excludes(options->prompt_given);
  CLI::Option* chat = command->add_flag(
      "--chat", options->chat,
      "the prompt is a message to answer (the default where the model has a chat template)");
  command->add_flag("--no-chat", options->no_chat, "the prompt is the beginning of a text to go on")
      ->excludes(chat);
  command->add_option("--system", options->system, "the chat's system message");
  options->max_tokens_given =
      command
          ->add_option("--max-tokens", options->generate.max_tokens,
                       "most tokens to generate (default: 256; in chats as many as come)")
          ->check(CLI::Range(size_t{1}, size_t{1} << 32));
  SamplingOptions& sampling = options->sampling;
  command
      ->add_option("--temperature", sampling.temperature,
                   "0 takes the most probable token each time")
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "draw from so many tokens; 0: all")
      ->capture_default_str();
  command
      ->add_option("--top-p", sampling.top_p,
                   "draw from the fewest tokens that are together this probable")
      ->capture_default_str();
  command
      ->add_option("--min-p", sampling.min_p,
                   "draw from tokens this probable, relative to the most probable")
      ->capture_default_str();
  command
      ->add_option("--repetition-penalty", sampling.repetition_penalty,
                   "above 1 makes tokens that were there less probable")
      ->capture_default_str();
  command
      ->add_option("--repetition-window", sampling.repetition_window,
                   "last tokens that the penalty looks at; 0: all")
      ->capture_default_str();
  command->add_option("--seed", sampling.seed, "of the draws")
      ->capture_default_str()
      ->check(seed_range());
  command->add_option("--stop", options->generate.stop, "end before this text (repeatable)")
      ->allow_extra_args(false);
  command->add_flag("--ignore-end", options->ignore_end, "go on where the model would end");
  command
      ->add_option("--context", options->context,
                   "most tokens of prompt and text (default: the model's, at most 4096)")
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_flag("--shift", options->generate.shift,
                    "where the context is full, drop its older half instead of stopping");
  command->add_flag("--show-route", options->show_route,
                    "a line for each token: the layers where it took the short way");
  add_decode(*command, options->decode);
  command->add_option("--allocation", options->allocation,
                      "route tokens as this allocation file says");
  command->final_callback([options] { run(*options); });
}

}  // namespace halflin::cli
