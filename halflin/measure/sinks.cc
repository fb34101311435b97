#include "halflin/measure/sinks.h"

#include <algorithm>
#include <cmath>

namespace halflin {

std::vector<Sinks> find_sinks(ThreadPool& pool, const Model& model,
                              std::span<const std::span<const Sample>> splits,
                              const std::atomic<bool>& stop, bool quiet) {
  std::vector<std::vector<Stream>> streams;
  std::vector<Sinks> sinks(splits.size());
  size_t most = 0;
  double rows = 0;
  for (size_t s = 0; s < splits.size(); ++s) {
    streams.push_back(make_streams(model, splits[s]));
    for (const Sample& sample : splits[s]) sinks[s].token.emplace_back(sample.batch.rows(), 0);
    most = std::max(most, most_rows(splits[s]));
    rows += static_cast<double>(count_rows(splits[s]));
  }
  Progress progress("sinks", rows * static_cast<double>(model.config.layers), quiet);
  std::vector<WalkWorker> workers;
  workers.reserve(static_cast<size_t>(pool.size()));
  for (int w = 0; w < pool.size(); ++w) workers.emplace_back(model, most);
  WalkContext context{pool, model, workers, stop, progress};
  for (size_t l = 0; l < model.config.layers; ++l) {
    for (size_t s = 0; s < splits.size(); ++s) {
      std::vector<std::vector<double>> norms(splits[s].size());
      each_batch(context, streams[s], l,
                 [&](size_t b, Stream& stream, WalkWorker&, const BatchView& view) {
                   for (size_t t = 0; t < stream.residual.rows(); ++t) {
                     norms[b].push_back(std::sqrt(squared_norm(view.full.row_span(t))));
                   }
                 });
      std::vector<double> all;
      for (const auto& part : norms) all.insert(all.end(), part.begin(), part.end());
      if (all.empty()) continue;
      std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(all.size() / 2),
                       all.end());
      const double limit = kSinkNorms * all[all.size() / 2];
      for (size_t b = 0; b < norms.size(); ++b) {
        for (size_t t = 0; t < norms[b].size(); ++t) {
          if (norms[b][t] > limit) sinks[s].token[b][t] = 1;
        }
      }
    }
  }
  for (Sinks& split : sinks) {
    for (const auto& tokens : split.token) {
      split.count += static_cast<size_t>(std::count(tokens.begin(), tokens.end(), 1));
    }
  }
  return sinks;
}

Sinks first_sinks(const Sinks& sinks, size_t samples) {
  Sinks out;
  out.token.assign(sinks.token.begin(), sinks.token.begin() + static_cast<ptrdiff_t>(samples));
  for (const auto& tokens : out.token) {
    out.count += static_cast<size_t>(std::count(tokens.begin(), tokens.end(), 1));
  }
  return out;
}

}  // namespace halflin
