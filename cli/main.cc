#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <system_error>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/measure/sweep.h"

namespace {

// Paths may hold line feeds and escape sequences; a message is one line.
std::string one_line(std::string_view message) {
  std::string line;
  for (const char c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      line += c;
    }
  }
  return line;
}

// CLI11 would take the next word as the value of "--layers=".
void check_values(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("--") && word.ends_with('=')) {
      throw halflin::UsageError(fmt::format("{}: a value is missing", word));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // writing beyond `ulimit -f` is then an error like a full disk
  CLI::App app{
      "halflin measures how much of a transformer's MLP nonlinearity is needed, layer by layer and "
      "token by token.",
      "halflin"};
  app.set_version_flag("--version", std::string("halflin ") + HALFLIN_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Example:\n  halflin sweep gpt2-medium --text wiki.test.raw --layers 8:12 --out results\n"
      "Each command has its own --help.");
  halflin::cli::add_info(app);
  halflin::cli::add_tokenize(app);
  halflin::cli::add_ppl(app);
  halflin::cli::add_run_command(app);
  halflin::cli::add_export(app);
  halflin::cli::add_sweep(app, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  halflin::cli::add_analyze(app, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  halflin::cli::add_allocate(app, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  halflin::cli::add_train(app, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  halflin::cli::add_linearize(app, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  halflin::cli::add_finetune(app, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  halflin::cli::add_bench(app);
  halflin::cli::add_report(app);
  try {
    check_values(argc, argv);
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      halflin::fail("standard output could not be written");
    }
    return 0;
  } catch (const halflin::cli::ExitStatus& exit) {
    return exit.status;
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return 2;
    if (std::cout.flush()) return 0;  // --help and --version are "errors" with status 0
    fmt::print(stderr, "halflin: standard output could not be written\n");
    return 1;
  } catch (const halflin::UsageError& error) {
    fmt::print(stderr, "halflin: {}\n", one_line(error.what()));
    return 2;
  } catch (const halflin::Interrupted&) {
    fmt::print(stderr, "\nhalflin: interrupted; the same command goes on from what was finished\n");
    return 130;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "halflin: out of memory\n");
    return 1;
  } catch (const std::system_error& error) {  // fmt's, which does not say what was written
    fmt::print(stderr, "halflin: {}{}\n", std::ferror(stdout) != 0 ? "standard output: " : "",
               one_line(error.what()));
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "halflin: {}\n", one_line(error.what()));
    return 1;
  }
}
