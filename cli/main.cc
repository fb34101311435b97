#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <new>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/measure/sweep.h"

int main(int argc, char** argv) {
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
  halflin::cli::add_sweep(app, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  halflin::cli::add_analyze(app, fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  halflin::cli::add_report(app);
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      halflin::fail("standard output could not be written");
    }
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // --help and --version are "errors" with status 0
  } catch (const halflin::UsageError& error) {
    fmt::print(stderr, "halflin: {}\n", error.what());
    return 2;
  } catch (const halflin::Interrupted&) {
    fmt::print(stderr, "\nhalflin: interrupted; the same command goes on from the layers finished\n");
    return 130;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "halflin: out of memory\n");
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "halflin: {}\n", error.what());
    return 1;
  }
}
