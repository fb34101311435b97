#include "halflin/measure/path_time.h"

#include <algorithm>

#include "halflin/measure/paths.h"
#include "halflin/measure/speed.h"

namespace halflin {

namespace {

constexpr size_t kTokens = 272;  // of a prompt, and behind it one by one
constexpr size_t kGenerated = 16;

}  // namespace

std::vector<PathTime> time_paths(ThreadPool& pool, const std::function<Model(size_t window)>& load,
                                 size_t positions, const MenuOptions& menu, size_t repetitions,
                                 bool quiet) {
  const size_t tokens = std::min(kTokens, positions);
  const size_t generated = std::min(kGenerated, tokens / 2);
  const size_t prompt = tokens - generated;
  std::vector<PathTime> times;
  std::vector<PlainPath> shapes;
  {
    const Config config = load(tokens).config;
    shapes = menu_shapes(menu, config.d_model, config.d_mlp, config.gated_mlp);
  }
  Progress progress("paths by the clock", static_cast<double>(shapes.size() * (repetitions + 1)),
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
    times.push_back({share(speed.speed.prefill_seconds, speed.dense.prefill_seconds),
                     share(speed.speed.decode_seconds, speed.dense.decode_seconds)});
  }
  return times;
}

}  // namespace halflin
