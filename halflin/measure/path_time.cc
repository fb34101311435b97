#include "halflin/measure/path_time.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "halflin/measure/paths.h"
#include "halflin/measure/speed.h"
#include "halflin/model/decode.h"
#include "halflin/model/forward.h"

namespace halflin {

namespace {

constexpr size_t kTokens = 272;  // of a prompt, and behind it one by one
constexpr size_t kGenerated = 16;
constexpr double kFew = 0.25;  // shares of a prompt's tokens
constexpr double kMany = 0.75;
constexpr double kSeconds = 1;  // small models run more often than they are asked to

// Short pieces of work that are run again and again: of each, the least time, since all else that
// the machine does only adds.
class Least {
 public:
  template <class Run>
  void time(size_t piece, const Run& run) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (piece >= least_.size()) least_.resize(piece + 1, std::numeric_limits<double>::infinity());
    least_[piece] = std::min(least_[piece], seconds.count());
  }
  double sum() const {
    double sum = 0;
    for (const double seconds : least_) sum += seconds;
    return sum;
  }

 private:
  std::vector<double> least_;
};

template <class Run>
void repeat(size_t repetitions, const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t r = 0; r <= repetitions; ++r) run();  // one warms up
  while (std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(kSeconds)) run();
}

using Paths = std::vector<MlpPath>;

// Shares of a prompt's time that each of `variants` saves, the first being the full MLPs. They run
// in turns; pieces are layers.
std::vector<double> saved_in_prompt(ThreadPool& pool, const Model& model, const Batch& batch,
                                    std::span<const Paths> variants, size_t repetitions) {
  Workspace workspace(model, batch.rows());
  Matrix<float> residual(batch.rows(), model.config.d_model);
  Least attention;
  std::vector<Least> mlps(variants.size());
  repeat(repetitions, [&] {
    for (size_t v = 0; v < variants.size(); ++v) {
      embed(model, batch, residual.view());
      for (size_t l = 0; l < model.config.layers; ++l) {
        Operand x;
        attention.time(l, [&] {
          x = attention_step(pool, model, l, batch.offsets, residual.view(), workspace);
        });
        mlps[v].time(l, [&] {
          apply_path(pool, model.layers[l].mlp, variants[v][l], x, /*accumulate=*/true,
                     residual.view(), workspace.mlp);
        });
      }
    }
  });
  const double dense = attention.sum() + mlps.front().sum();
  std::vector<double> saved;
  for (const Least& mlp : mlps) saved.push_back((mlps.front().sum() - mlp.sum()) / dense);
  return saved;
}

// The same of tokens behind a prompt, one by one; pieces are tokens.
double saved_in_decoding(ThreadPool& pool, Model model, Paths paths, std::span<const int32_t> ids,
                         size_t prompt, size_t repetitions) {
  Decoder decoder(pool, std::move(model), std::move(paths));
  decoder.prefill(ids.first(prompt));
  Least dense, cheap;
  repeat(repetitions, [&] {
    for (const bool with_paths : {false, true}) {
      decoder.use_paths(with_paths);
      decoder.rewind(prompt);
      for (size_t t = prompt; t < ids.size(); ++t) {
        (with_paths ? cheap : dense).time(t - prompt, [&] { decoder.step(ids[t]); });
      }
    }
  });
  return 1 - cheap.sum() / dense.sum();
}

}  // namespace

std::vector<PathTime> time_paths(ThreadPool& pool, const std::function<Model(size_t window)>& load,
                                 size_t positions, const MenuOptions& menu, size_t repetitions,
                                 bool quiet) {
  const size_t tokens = std::min(kTokens, positions);
  const size_t prompt = tokens - std::min(kGenerated, tokens / 2);
  const Model model = load(tokens);
  const Config& config = model.config;
  const std::vector<PlainPath> shapes =
      menu_shapes(menu, config.d_model, config.d_mlp, config.gated_mlp);
  std::vector<int32_t> ids(tokens);
  for (size_t t = 0; t < tokens; ++t) ids[t] = static_cast<int32_t>(t * 7919 % config.vocab);
  Batch batch;
  batch.add(std::span(ids).first(prompt));
  const auto layers = static_cast<double>(config.layers);
  std::vector<PathTime> times;
  Progress progress("paths by the clock", static_cast<double>(2 * shapes.size()), quiet);
  for (const PlainPath& shape : shapes) {
    Paths all;
    for (size_t l = 0; l < config.layers; ++l) {
      const MlpWeights weights = read_mlp_weights(model, l);
      all.push_back(
          {{{std::make_shared<CheapPath>(pack_path(model, weights, shape)), std::nullopt}}});
    }
    Paths few = all, many = all;
    add_random_gates(pool, model, batch.ids, kFew, /*seed=*/0, few);
    add_random_gates(pool, model, batch.ids, kMany, /*seed=*/0, many);
    const Paths variants[] = {Paths(config.layers), all, few, many};
    const std::vector<double> saved = saved_in_prompt(pool, model, batch, variants, repetitions);
    progress.advance(1);
    PathTime time;
    time.whole = saved[1] / layers;
    time.token = (saved[3] - saved[2]) / (kMany - kFew) / layers;
    time.fixed = std::max(kFew * time.token - saved[2] / layers, 0.0);
    time.decode =
        saved_in_decoding(pool, load(tokens), std::move(all), ids, prompt, repetitions) / layers;
    progress.advance(1);
    times.push_back(time);
  }
  return times;
}

}  // namespace halflin
