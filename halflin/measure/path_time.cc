#include "halflin/measure/path_time.h"

#include <algorithm>
#include <chrono>

#include "halflin/measure/paths.h"
#include "halflin/measure/speed.h"
#include "halflin/model/forward.h"

namespace halflin {

namespace {

constexpr size_t kTokens = 272;  // of a prompt, and behind it one by one
constexpr size_t kGenerated = 16;
constexpr double kFew = 0.25;  // shares of a prompt's tokens
constexpr double kMany = 0.75;

// The share of a prompt's time that the paths save: the median over pairs of runs, with and without
// them, in turns.
double saved_in_prompt(ThreadPool& pool, const Model& model, const Batch& batch,
                       std::span<const MlpPath> paths, size_t repetitions, Progress& progress) {
  Workspace workspace(model, batch.rows());
  Matrix<float> residual(batch.rows(), model.config.d_model);
  const auto seconds = [&](std::span<const MlpPath> which) {
    const auto begin = std::chrono::steady_clock::now();
    embed(model, batch, residual.view());
    run_layers(pool, model, 0, batch.offsets, residual.view(), workspace, which);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<double> saved;
  for (size_t r = 0; r <= repetitions; ++r) {
    const bool dense_first = r % 2 == 0;
    const double first = seconds(dense_first ? std::span<const MlpPath>() : paths);
    const double second = seconds(dense_first ? paths : std::span<const MlpPath>());
    saved.push_back(1 - (dense_first ? second / first : first / second));
    progress.advance(1);
  }
  saved.erase(saved.begin());  // the first one warms up
  return median_of(saved);
}

}  // namespace

std::vector<PathTime> time_paths(ThreadPool& pool, const std::function<Model(size_t window)>& load,
                                 size_t positions, const MenuOptions& menu, size_t repetitions,
                                 bool gated, bool quiet) {
  const size_t tokens = std::min(kTokens, positions);
  const size_t generated = std::min(kGenerated, tokens / 2);
  const size_t prompt = tokens - generated;
  std::vector<PathTime> times;
  std::vector<PlainPath> shapes;
  {
    const Config config = load(tokens).config;
    shapes = menu_shapes(menu, config.d_model, config.d_mlp, config.gated_mlp);
  }
  Progress progress("paths by the clock",
                    static_cast<double>(shapes.size() * (repetitions + 1) * (gated ? 3 : 1)),
                    quiet);
  for (const PlainPath& shape : shapes) {
    Model model = load(tokens);
    const auto layers = static_cast<double>(model.config.layers);
    std::vector<int32_t> ids(tokens);
    for (size_t t = 0; t < ids.size(); ++t) {
      ids[t] = static_cast<int32_t>(t * 7919 % model.config.vocab);
    }
    std::vector<MlpPath> paths;
    for (size_t l = 0; l < model.config.layers; ++l) {
      const MlpWeights weights = read_mlp_weights(model, l);
      paths.push_back(
          {{{std::make_shared<CheapPath>(pack_path(model, weights, shape)), std::nullopt}}});
    }
    PathTime time;
    if (gated) {
      Batch batch;
      batch.add(std::span(ids).first(prompt));
      const auto saved_at = [&](double rate) {
        std::vector<MlpPath> some = paths;
        add_random_gates(pool, model, batch.ids, rate, /*seed=*/0, some);
        return saved_in_prompt(pool, model, batch, some, repetitions, progress) / layers;
      };
      const double few = saved_at(kFew);
      time.token = (saved_at(kMany) - few) / (kMany - kFew);
      time.fixed = std::max(kFew * time.token - few, 0.0);
    }
    Decoder decoder(pool, std::move(model), std::move(paths));
    const SpeedResult speed = measure_speed(pool, decoder, ids,
                                            {.prompt = prompt,
                                             .generate = generated,
                                             .depth = prompt,
                                             .repetitions = repetitions,
                                             .compare = true},
                                            progress);
    const auto share = [&](const std::vector<double>& cheap, const std::vector<double>& dense) {
      return (1 - median_of(cheap) / median_of(dense)) / layers;
    };
    time.whole = share(speed.speed.prefill_seconds, speed.dense.prefill_seconds);
    time.decode = share(speed.speed.decode_seconds, speed.dense.decode_seconds);
    times.push_back(time);
  }
  return times;
}

}  // namespace halflin
