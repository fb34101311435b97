// halflin info: what a checkpoint is.
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/ops/matvec.h"

namespace halflin::cli {

namespace {

struct Options {
  Common common;
  size_t window = 512;
};

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kGeluErf:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kSilu:
      return "silu";
    case Activation::kRelu:
      return "relu";
    case Activation::kNone:
      break;
  }
  return "none";
}

void run(const Options& options) {
  const Checkpoint checkpoint = read_checkpoint(options.common.model);
  const Config& config = checkpoint.architecture.config;
  const Tokenizer tokenizer = read_tokenizer(checkpoint);
  size_t bytes = 0;
  std::map<std::string, size_t> dtypes;  // bytes in each format
  std::set<std::string> converted;       // formats that single tokens cannot read as they are
  for (const auto& [name, tensor] : checkpoint.file.tensors) {
    bytes += tensor.bytes.size();
    const std::string format(dtype_name(tensor.dtype));
    dtypes[format] += tensor.bytes.size();
    if (tensor.dtype != DType::kU8 && !has_matvec(tensor.dtype)) converted.insert(format);
  }
  const size_t window = std::min(options.window, config.max_positions);
  const FlopCount flops = flops_per_token(config, window);
  if (options.common.json) {
    nlohmann::json out;
    out["model"] = options.common.model;
    out["family"] = config.family;
    out["layers"] = config.layers;
    out["d_model"] = config.d_model;
    out["d_mlp"] = config.d_mlp;
    out["heads"] = config.attention.heads;
    out["kv_heads"] = config.attention.kv_heads;
    out["head_dim"] = config.attention.head_dim;
    out["vocab"] = config.vocab;
    out["max_positions"] = config.max_positions;
    out["sliding_window"] = config.attention.window;
    out["activation"] = activation_name(config.activation);
    out["gated_mlp"] = config.gated_mlp;
    out["parallel_residual"] = config.parallel_residual;
    out["tied_head"] = config.tied_head;
    out["parameters"] = checkpoint.parameters;
    out["bytes"] = bytes;
    out["bytes_by_dtype"] = dtypes;
    out["read_as_q8_0"] = converted;
    out["flops_per_token"] = {{"window", window},
                              {"attention", flops.attention},
                              {"mlp", flops.mlp},
                              {"head", flops.head},
                              {"total", flops.total()}};
    out["tokenizer"] = tokenizer.description();
    fmt::print("{}\n", out.dump(2));
    return;
  }
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("{:<12}{}\n", name, value);
  };
  row("model", options.common.model);
  row("family", config.family);
  row("layers", fmt::format("{}", config.layers));
  row("width",
      fmt::format("{} residual stream, {} MLP neurons a layer", config.d_model, config.d_mlp));
  row("attention", fmt::format("{} heads of {}, {} key-value heads{}", config.attention.heads,
                               config.attention.head_dim, config.attention.kv_heads,
                               config.attention.window != 0
                                   ? fmt::format(", sliding window {}", config.attention.window)
                                   : ""));
  row("MLP", fmt::format("{}{}, {} residual", activation_name(config.activation),
                         config.gated_mlp ? ", gated" : "",
                         config.parallel_residual ? "parallel" : "sequential"));
  row("vocabulary", fmt::format("{}, {} head", config.vocab, config.tied_head ? "tied" : "untied"));
  row("positions", fmt::format("{}", config.max_positions));
  row("parameters", fmt::format("{:.1f} M", static_cast<double>(checkpoint.parameters) / 1e6));
  std::string formats;
  for (const auto& [name, size] : dtypes) {
    formats += fmt::format("{}{} {:.1f}", formats.empty() ? "" : ", ", name,
                           static_cast<double>(size) / 1e6);
  }
  row("megabytes", fmt::format("{:.1f} ({})", static_cast<double>(bytes) / 1e6, formats));
  if (!converted.empty()) {
    row("generation", fmt::format("{} converted to Q8_0", fmt::join(converted, ", ")));
  }
  const auto share = [&](double part) {
    return fmt::format("{:.1f} M ({:.0f} %)", part / 1e6, 100 * part / flops.total());
  };
  row("FLOPs/token",
      fmt::format("{:.1f} M in a window of {}: attention {}, MLP {}, head {}", flops.total() / 1e6,
                  window, share(flops.attention), share(flops.mlp), share(flops.head)));
  row("tokenizer", tokenizer.description());
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "Family, shapes, parameters, FLOPs of a model");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common, "halflin info openai-community/gpt2 --json");
  command
      ->add_option("--window", options->window, "context that attention's FLOPs are averaged over")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->final_callback([options] { run(*options); });
}

}  // namespace halflin::cli
