// halflin tokenize: text to ids and back.
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>

#include "cli/cli.h"
#include "halflin/base/error.h"

namespace halflin::cli {

namespace {

struct Options {
  Common common;
  bool decode = false;
};

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  std::istringstream words(text);
  std::string word;
  while (words >> word) {
    try {
      size_t used = 0;
      ids.push_back(std::stoi(word, &used));
      if (used != word.size()) throw std::invalid_argument(word);
    } catch (const std::logic_error&) {
      fail("standard input: expected token ids, found \"{}\"", word);
    }
  }
  return ids;
}

void run(const Options& options) {
  const Tokenizer tokenizer = read_tokenizer(read_checkpoint(options.common.model));
  const std::string input((std::istreambuf_iterator<char>(std::cin)),
                          std::istreambuf_iterator<char>());
  if (options.decode) {
    const std::string text = tokenizer.decode(parse_ids(input));
    if (options.common.json) {
      // A JSON string is UTF-8: bytes of cut characters become U+FFFD.
      const nlohmann::json out = {{"text", text}};
      fmt::print("{}\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      std::fwrite(text.data(), 1, text.size(), stdout);
    }
    return;
  }
  const std::vector<int32_t> ids = tokenizer.encode(input);
  if (options.common.json) {
    fmt::print("{}\n", nlohmann::json{{"ids", ids}, {"count", ids.size()}}.dump());
  } else {
    fmt::print("{}\n", fmt::join(ids, " "));
  }
}

}  // namespace

void add_tokenize(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("tokenize", "Text on standard input to token ids, or ids to text");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common,
             "echo 'Half of it is linear.' | halflin tokenize openai-community/gpt2");
  command->add_flag("--decode", options->decode, "ids on standard input to text");
  command->final_callback([options] { run(*options); });
}

}  // namespace halflin::cli
