// How near the forward pass comes to the machine's limit: tokens a second of a whole window, beside
// the rate oneDNN reaches on the very same matrices in the same run, alternating.
//
//   bench_forward MODEL [f32|bf16] [tokens] [threads] [repetitions]
#include "halflin/model/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

namespace {

using namespace halflin;

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Every matrix product of the forward pass and nothing else.
struct Products {
  std::vector<const Linear*> linears;
  size_t widest = 0;
  double flops_per_row = 0;

  explicit Products(const Model& model) {
    for (const Layer& layer : model.layers) {
      for (const Linear* linear :
           {&layer.qkv, &layer.attention_out, &layer.mlp.gate, &layer.mlp.up, &layer.mlp.down}) {
        if (!linear->empty()) linears.push_back(linear);
      }
    }
    for (const Linear& chunk : model.head.chunks) linears.push_back(&chunk);
    for (const Linear* linear : linears) {
      widest = std::max({widest, linear->in(), linear->out()});
      flops_per_row += 2.0 * static_cast<double>(linear->in() * linear->out());
    }
  }
};

int run(int argc, char** argv) {
  const std::string dtype = argc > 2 ? argv[2] : "f32";
  const auto tokens = static_cast<size_t>(argc > 3 ? std::atoi(argv[3]) : 512);
  ThreadPool pool(argc > 4 ? std::atoi(argv[4]) : available_threads());
  const int repetitions = argc > 5 ? std::atoi(argv[5]) : 7;
  const Precision precision = dtype == "bf16" ? Precision::kBF16 : Precision::kF32;
  const Model model = load_model(pool, read_checkpoint(argv[1]), precision, tokens);

  Batch batch;
  std::vector<int32_t> ids(tokens);
  for (size_t i = 0; i < tokens; ++i) {
    ids[i] = static_cast<int32_t>((i * 7919) % (model.config.vocab - 10));
  }
  batch.add(ids);
  Workspace workspace(model, tokens);
  Matrix<float> residual(tokens, model.config.d_model);
  std::vector<float> losses(tokens);
  const auto forward = [&] {
    embed(model, batch, residual.view());
    run_layers(pool, model, 0, batch.offsets, residual.view(), workspace);
    final_losses(pool, model, batch, residual.view(), workspace, losses);
  };

  const Products products(model);
  OperandBuffer x(precision, tokens, products.widest);
  Matrix<float> y(tokens, products.widest);
  const auto multiply = [&] {
    for (const Linear* linear : products.linears) {
      linear->forward(pool, x.view(tokens, linear->in()),
                      MatView<float>(y.data(), tokens, linear->out()));
    }
  };

  forward();
  multiply();
  std::vector<double> forward_seconds, product_seconds;
  for (int r = 0; r < repetitions; ++r) {
    forward_seconds.push_back(seconds_of(forward));
    product_seconds.push_back(seconds_of(multiply));
  }
  const double n = static_cast<double>(tokens);
  const double forward_rate =
      n * flops_per_token(model.config, tokens).total() / median(forward_seconds) / 1e9;
  const double product_rate = n * products.flops_per_row / median(product_seconds) / 1e9;
  fmt::print(
      "{{\"dtype\": \"{}\", \"tokens\": {}, \"threads\": {}, \"tokens_per_s\": {:.1f}, "
      "\"forward_gflops\": {:.1f}, \"onednn_gflops\": {:.1f}, \"share_of_onednn\": {:.3f}, "
      "\"loss\": {:.4f}}}\n",
      dtype, tokens, pool.size(), n / median(forward_seconds), forward_rate, product_rate,
      forward_rate / product_rate, losses[0]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: {} MODEL [f32|bf16] [tokens] [threads] [repetitions]\n", argv[0]);
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", argv[0], error.what());
    return 1;
  }
}
