#include "halflin/measure/layer_sweep.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "halflin/base/error.h"
#include "halflin/base/random.h"

namespace halflin {

namespace {

// Moments whose targets are y's columns [first, first + count).
Moments target_columns(const Moments& m, size_t first, size_t count) {
  Moments part(m.xx.rows(), count);
  part.n = m.n;
  part.mean_x = m.mean_x;
  std::copy(m.xx.span().begin(), m.xx.span().end(), part.xx.span().begin());
  for (size_t r = 0; r < part.xy.rows(); ++r) {
    std::copy_n(m.xy.row(r) + first, count, part.xy.row(r));
  }
  for (size_t j = 0; j < count; ++j) {
    part.mean_y[j] = m.mean_y[first + j];
    part.yy[j] = m.yy[first + j];
  }
  return part;
}

// Adds each sequence's losses to sums[first ...].
void add_sequence_losses(std::span<const float> losses, std::span<const size_t> offsets,
                         double* sums) {
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    for (size_t t = offsets[s]; t + 1 < offsets[s + 1]; ++t) {
      sums[s] += static_cast<double>(losses[t]);
    }
  }
}

}  // namespace

LayerSweep::LayerSweep(SweepContext& context, size_t layer) : c_(context), layer_(layer) {}

// PAPER.md, procedure 1.
void LayerSweep::fit(std::span<Stream> streams) {
  const bool neurons = !c_.options.fold.empty() || c_.options.controls;
  const LayerMoments fitted = layer_moments(c_, streams, layer_, neurons);
  median_norm_ = fitted.median_norm;
  fit_paths(fitted.moments);
}

void LayerSweep::fit_paths(const Moments& moments) {
  const Model& model = c_.model;
  const SweepOptions& options = c_.options;
  const size_t d = model.config.d_model;
  const bool neurons = moments.yy.size() > d;
  const Moments outputs = neurons ? target_columns(moments, 0, d) : Moments();
  const Moments& f = neurons ? outputs : moments;
  mean_output_ = f.mean_y;
  surrogate_ = affine_path(ridge(c_.pool, f, options.ridge), model.precision);
  if (!neurons) return;

  const MlpWeights weights = read_mlp_weights(model, layer_);
  if (!options.fold.empty()) {
    Matrix<float> down(weights.down.cols(), d);  // [h, d]
    for (size_t r = 0; r < down.rows(); ++r) {
      for (size_t i = 0; i < d; ++i) down(r, i) = weights.down(i, r);
    }
    const NeuronFit fit = fit_neurons(c_.pool, moments, options.ridge, down.view(), d);
    for (const double fraction : options.fold) {
      const FoldedMlp folded = fold_neurons(c_.pool, fit, down.view(), weights.down_bias, fraction);
      folds_.push_back(
          {fmt::format("fold {:g}", fraction), fraction, folded_path(model, weights, folded)});
    }
  }
  if (options.controls) {
    const size_t rank = options.rank != 0 ? options.rank : std::max<size_t>(d / 4, 1);
    controls_.push_back({"mean output", 0, mean_path(mean_output_)});
    controls_.push_back({"skip", 0, CheapPath()});
    controls_.push_back(
        {fmt::format("rank {}", rank), 0,
         low_rank_path(low_rank(c_.pool, f, options.ridge, rank), model.precision)});
    // As many neurons as cost what the linear surrogate costs.
    const size_t matrices = model.config.gated_mlp ? 3 : 2;
    const size_t kept = std::max<size_t>(d / matrices, 1);
    controls_.push_back(
        {fmt::format("narrow {}", kept), 0, narrow_path(model, weights, moments, d, kept)});
  }
}

// PAPER.md, procedure 3, and "Harm gates".
void LayerSweep::train(std::span<Stream> streams) {
  const size_t d = c_.model.config.d_model;
  std::vector<size_t> first(streams.size() + 1, 0);  // used rows before each batch
  for (size_t b = 0; b < streams.size(); ++b) {
    const std::vector<uint8_t>& use = streams[b].sample->use;
    first[b + 1] = first[b] + static_cast<size_t>(std::count(use.begin(), use.end(), 1));
  }
  Matrix<float> x(first.back(), d);
  std::vector<double> energy(first.back());
  std::vector<float> delta(first.back());
  const bool paper = c_.options.paper_gates();
  each_batch(c_, streams, layer_,
             [&](size_t b, Stream& stream, WalkWorker& worker, const BatchView& view) {
               apply_cheap(c_.pool, surrogate_, view.x, false, view.cheap, worker.workspace.mlp);
               std::span<const float> losses;
               if (paper) {
                 set_residual(stream, view.cheap, worker);
                 losses = suffix_losses(c_, stream, worker, layer_);
               }
               size_t row = first[b];
               for (size_t t = 0; t < stream.residual.rows(); ++t) {
                 if (stream.sample->use[t] == 0) continue;
                 std::copy_n(view.x32.row(t), d, x.row(row));
                 energy[row] = squared_distance(view.cheap.row_span(t), view.full.row_span(t));
                 if (paper) delta[row] = losses[t] - stream.base[t];
                 ++row;
               }
             });
  Moments moments(d, 0);
  moments.add(c_.pool, x.view(), MatView<const float>(nullptr, x.rows(), 0));
  if (paper) {
    std::vector<std::string> names;
    for (const std::string& name : c_.options.gates) {
      if (name != "harm") names.push_back(name);
    }
    PaperGates trained = train_paper_gates(c_.pool, x.view(), delta, names, &moments);
    gates_ = std::move(trained.gates);
    no_gates_reason_ = trained.reason;
    train_delta_ = trained.stats;
  }
  if (c_.options.harm_gate()) {
    gates_.push_back(halflin::harm_gate(c_.pool, x.view(), energy, &moments));
    gates_.back().name = "harm";
  }
}

void LayerSweep::calibrate(std::span<Stream> streams) {
  if (streams.empty()) return;
  std::vector<std::vector<std::vector<float>>> scores(
      gates_.size(), std::vector<std::vector<float>>(streams.size()));
  std::vector<std::vector<double>> energies(streams.size());
  std::vector<Matrix<float>> differences(streams.size());  // g(x) - f(x)
  each_batch(c_, streams, layer_,
             [&](size_t b, Stream& stream, WalkWorker& worker, const BatchView& view) {
               apply_cheap(c_.pool, surrogate_, view.x, false, view.cheap, worker.workspace.mlp);
               for (size_t g = 0; g < gates_.size(); ++g) {
                 scores[g][b] = gate_scores(c_.pool, gates_[g], view.x32);
               }
               const size_t rows = stream.residual.rows();
               differences[b] = Matrix<float>(rows, view.full.cols);
               energies[b].resize(rows);
               for (size_t t = 0; t < rows; ++t) {
                 for (size_t i = 0; i < view.full.cols; ++i) {
                   differences[b](t, i) = view.cheap(t, i) - view.full(t, i);
                 }
                 energies[b][t] = squared_norm({differences[b].row(t), view.full.cols});
               }
             });
  std::vector<double> all_energies;
  for (const auto& part : energies) {
    all_energies.insert(all_energies.end(), part.begin(), part.end());
  }
  rate_thresholds_.resize(gates_.size());
  for (size_t g = 0; g < gates_.size(); ++g) {
    std::vector<float> all;
    for (const auto& part : scores[g]) all.insert(all.end(), part.begin(), part.end());
    for (const double rate : c_.options.rates) {
      rate_thresholds_[g].push_back(threshold_for_rate(all, rate));
    }
    if (gates_[g].name == "harm") {
      budget_threshold(streams, differences, all, all_energies, g);
    }
  }
  std::vector<double> sorted = all_energies;
  std::sort(sorted.begin(), sorted.end());
  for (const double rate : c_.options.rates) {
    const auto k = static_cast<size_t>(rate * static_cast<double>(sorted.size()));
    oracle_thresholds_.push_back(k < sorted.size() ? sorted[k]
                                                   : std::numeric_limits<double>::infinity());
  }
}

void LayerSweep::harm(std::span<Stream> streams, const SampledGradients& gradients) {
  harm_ = layer_harm(c_, streams, layer_, surrogate_, kSinkNorms * median_norm_, gradients);
}

// The harm gate's own threshold: the largest share of calibration tokens whose predicted cost stays
// within the budget. Nats for one unit of error energy are measured by routing the three quarters
// of the tokens with the lowest predicted errors: all tokens would let a few attention sinks, whose
// errors are thousands of times larger, set the scale.
void LayerSweep::budget_threshold(std::span<Stream> streams,
                                  std::span<const Matrix<float>> differences,
                                  std::span<const float> scores, std::span<const double> energies,
                                  size_t gate) {
  constexpr double kScaleRate = 0.75;
  const float scale_threshold = threshold_for_rate(scores, kScaleRate);
  std::vector<double> variant(streams.size());
  std::vector<double> base(streams.size());
  std::vector<size_t> first(streams.size() + 1, 0);
  for (size_t b = 0; b < streams.size(); ++b) {
    first[b + 1] = first[b] + streams[b].residual.rows();
  }
  size_t predictions = 0;
  for (const Stream& stream : streams) {
    predictions += stream.sample->batch.rows() - stream.sample->batch.sequences();
  }
  c_.pool.parallel_for(streams.size(), [&](size_t b, int w) {
    const Stream& stream = streams[b];  // already past the layer, with f(x) added
    WalkWorker& worker = c_.workers[static_cast<size_t>(w)];
    const size_t rows = stream.residual.rows();
    const MatView<float> routed(worker.cheap.data(), rows, stream.residual.cols());
    for (size_t t = 0; t < rows; ++t) {
      const bool linear = scores[first[b] + t] > scale_threshold;
      for (size_t i = 0; i < routed.cols; ++i) routed(t, i) = linear ? differences[b](t, i) : 0.f;
    }
    set_residual(stream, routed, worker);
    const std::span<const float> losses = suffix_losses(c_, stream, worker, layer_);
    const std::vector<size_t>& offsets = stream.sample->batch.offsets;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      for (size_t t = offsets[s]; t + 1 < offsets[s + 1]; ++t) {
        variant[b] += static_cast<double>(losses[t]);
        base[b] += static_cast<double>(stream.base[t]);
      }
    }
  });
  double harm = 0;  // nats a token
  for (size_t b = 0; b < streams.size(); ++b) harm += variant[b] - base[b];
  harm /= static_cast<double>(predictions);

  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  double routed_energy = 0;
  for (size_t t = 0; t < scores.size(); ++t) {
    if (scores[t] > scale_threshold) routed_energy += energies[t];
  }
  Gate& g = gates_[gate];
  g.threshold = std::numeric_limits<float>::lowest();
  if (harm <= 0 || routed_energy <= 0) return;  // costs nothing: every token may go
  const double allowed = std::log1p(c_.options.budget_pct / 100) / harm * routed_energy;
  double energy = 0;
  size_t count = 0;
  while (count < order.size() && energy + energies[order[count]] <= allowed) {
    energy += energies[order[count++]];
  }
  g.threshold =
      threshold_for_rate(scores, static_cast<double>(count) / static_cast<double>(order.size()));
}

struct LayerSweep::Routed {
  enum class Router { kGate, kRandom, kOracle } router = Router::kGate;
  size_t gate = 0;
  double threshold = 0;  // on the score, or on the error energy
  VariantResult result;
};

std::vector<LayerSweep::Routed> LayerSweep::routed_variants() const {
  std::vector<Routed> variants;
  const std::vector<double>& rates = c_.options.rates;
  for (size_t g = 0; g < gates_.size(); ++g) {
    const double own = gates_[g].threshold;
    variants.push_back({Routed::Router::kGate, g, own, {.name = gates_[g].name, .threshold = own}});
    for (size_t r = 0; r < rates.size(); ++r) {
      const double threshold = rate_thresholds_[g][r];
      variants.push_back({Routed::Router::kGate,
                          g,
                          threshold,
                          {.name = gates_[g].name, .rate = rates[r], .threshold = threshold}});
    }
  }
  if (!c_.options.controls) return variants;
  for (size_t r = 0; r < oracle_thresholds_.size(); ++r) {
    variants.push_back(
        {Routed::Router::kRandom, 0, rates[r], {.name = "random", .rate = rates[r]}});
    variants.push_back({Routed::Router::kOracle,
                        0,
                        oracle_thresholds_[r],
                        {.name = "oracle", .rate = rates[r], .threshold = oracle_thresholds_[r]}});
  }
  return variants;
}

LayerResult LayerSweep::test(std::span<Stream> streams, const SweepBaseline& baseline) {
  const Model& model = c_.model;
  const size_t sequences = baseline.loss.size();
  std::vector<size_t> first_sequence(streams.size() + 1, 0);
  std::vector<size_t> first_row(streams.size() + 1, 0);
  for (size_t b = 0; b < streams.size(); ++b) {
    first_sequence[b + 1] = first_sequence[b] + streams[b].sample->batch.sequences();
    first_row[b + 1] = first_row[b] + streams[b].residual.rows();
  }

  // Whole-layer paths: the surrogate first, then folds and controls.
  std::vector<const NamedPath*> named;
  for (const NamedPath& path : folds_) named.push_back(&path);
  for (const NamedPath& path : controls_) named.push_back(&path);
  const double mlp_flops = path_flops(model.layers[layer_].mlp);
  const auto blank = [&](std::string name, double rate, const CheapPath& path) {
    VariantResult result{.name = std::move(name), .rate = rate};
    result.flops_pct = 100 * path_flops(path) / mlp_flops;
    result.loss.assign(sequences, 0.0);
    result.linear = baseline.tokens;
    return result;
  };
  VariantResult all_linear = blank("all_linear", -1, surrogate_);
  std::vector<VariantResult> whole;
  whole.reserve(named.size());
  for (const NamedPath* path : named)
    whole.push_back(blank(path->name, path->fraction, path->path));
  std::vector<Routed> routed = routed_variants();
  for (Routed& variant : routed) {
    variant.result.loss.assign(sequences, 0.0);
    variant.result.linear.assign(sequences, 0.0);
  }

  std::vector<double> without_sinks(harm_ ? sequences : 0);
  std::vector<double> sse(sequences), sst(sequences), sse_plain(sequences), sst_plain(sequences);
  std::vector<size_t> sinks(streams.size());
  std::vector<float> delta(first_row.back(), std::nanf(""));
  std::vector<float> error_energy(first_row.back());
  std::vector<uint32_t> window(first_row.back());
  std::vector<std::vector<float>> scores(gates_.size(), std::vector<float>(first_row.back()));

  each_batch(
      c_, streams, layer_,
      [&](size_t b, Stream& stream, WalkWorker& worker, const BatchView& view) {
        const std::vector<size_t>& offsets = stream.sample->batch.offsets;
        const size_t rows = stream.residual.rows();
        const size_t sequence = first_sequence[b];
        apply_cheap(c_.pool, surrogate_, view.x, false, view.cheap, worker.workspace.mlp);

        std::vector<double> energy(rows);
        std::vector<uint8_t> is_sink(rows, 0);
        const double sink_norm = kSinkNorms * median_norm_;
        for (size_t s = 0; s + 1 < offsets.size(); ++s) {
          for (size_t t = offsets[s]; t < offsets[s + 1]; ++t) {
            energy[t] = squared_distance(view.cheap.row_span(t), view.full.row_span(t));
            double about_mean = 0;
            for (size_t i = 0; i < view.full.cols; ++i) {
              const double difference = static_cast<double>(view.full(t, i)) - mean_output_[i];
              about_mean += difference * difference;
            }
            sse[sequence + s] += energy[t];
            sst[sequence + s] += about_mean;
            if (squared_norm(view.full.row_span(t)) > sink_norm * sink_norm) {
              is_sink[t] = 1;
              ++sinks[b];
            } else {
              sse_plain[sequence + s] += energy[t];
              sst_plain[sequence + s] += about_mean;
            }
            error_energy[first_row[b] + t] = static_cast<float>(energy[t]);
            window[first_row[b] + t] = static_cast<uint32_t>(sequence + s);
          }
        }
        for (size_t g = 0; g < gates_.size(); ++g) {
          const std::vector<float> part = gate_scores(c_.pool, gates_[g], view.x32);
          std::copy(part.begin(), part.end(),
                    scores[g].begin() + static_cast<std::ptrdiff_t>(first_row[b]));
        }

        set_residual(stream, view.cheap, worker);
        const std::span<const float> linear_losses = suffix_losses(c_, stream, worker, layer_);
        add_sequence_losses(linear_losses, offsets, all_linear.loss.data() + sequence);
        for (size_t s = 0; s + 1 < offsets.size(); ++s) {
          for (size_t t = offsets[s]; t + 1 < offsets[s + 1]; ++t) {
            delta[first_row[b] + t] = linear_losses[t] - stream.base[t];
          }
        }
        if (harm_) {  // sinks kept, as the prediction has it
          std::span<const float> losses = linear_losses;
          if (sinks[b] != 0) {
            for (size_t t = 0; t < rows; ++t) {
              std::copy_n((is_sink[t] != 0 ? view.full : view.cheap).row(t), view.full.cols,
                          view.other.row(t));
            }
            set_residual(stream, view.other, worker);
            losses = suffix_losses(c_, stream, worker, layer_);
          }
          add_sequence_losses(losses, offsets, without_sinks.data() + sequence);
        }
        for (size_t v = 0; v < whole.size(); ++v) {
          apply_cheap(c_.pool, named[v]->path, view.x, false, view.other, worker.workspace.mlp);
          set_residual(stream, view.other, worker);
          add_sequence_losses(suffix_losses(c_, stream, worker, layer_), offsets,
                              whole[v].loss.data() + sequence);
        }
        Random random(c_.options.seed,
                      fmt::format("random routing, layer {}, batch {}", layer_, b));
        for (Routed& variant : routed) {
          double* counts = variant.result.linear.data() + sequence;
          for (size_t s = 0; s + 1 < offsets.size(); ++s) {
            for (size_t t = offsets[s]; t < offsets[s + 1]; ++t) {
              bool linear = false;
              switch (variant.router) {
                case Routed::Router::kGate:
                  linear = static_cast<double>(scores[variant.gate][first_row[b] + t]) >
                           variant.threshold;
                  break;
                case Routed::Router::kRandom:
                  // Sinks stay: linearising them is ruinous, and would flatter the gates.
                  linear = random.uniform() < variant.threshold && is_sink[t] == 0;
                  break;
                case Routed::Router::kOracle:
                  linear = energy[t] < variant.threshold;
                  break;
              }
              std::copy_n((linear ? view.cheap : view.full).row(t), view.full.cols,
                          view.other.row(t));
              counts[s] += linear ? 1 : 0;
            }
          }
          set_residual(stream, view.other, worker);
          add_sequence_losses(suffix_losses(c_, stream, worker, layer_), offsets,
                              variant.result.loss.data() + sequence);
        }
      });

  LayerResult result;
  result.layer = layer_;
  result.r2 = r2_interval(baseline.draws, sse, sst, c_.options.interval);
  result.r2_without_sinks = r2_interval(baseline.draws, sse_plain, sst_plain, c_.options.interval);
  result.sinks = std::accumulate(sinks.begin(), sinks.end(), size_t{0});
  result.train_delta = train_delta_;
  result.all_linear = std::move(all_linear);
  result.no_gates_reason = no_gates_reason_;
  result.harm = std::move(harm_);
  result.all_linear_without_sinks = std::move(without_sinks);

  // Rows that predict nothing have no delta: they are left out of labels by their NaN.
  const DeltaLabels labels = label_by_delta(delta);
  result.test_delta = labels.stats;
  result.test_delta.dropped -= sequences;
  for (Routed& variant : routed) {
    if (variant.router != Routed::Router::kGate) {
      result.routing_controls.push_back(std::move(variant.result));
      continue;
    }
    if (variant.result.rate >= 0) {
      result.gates.back().at_rate.push_back(std::move(variant.result));
      continue;
    }
    GateResult gate{.name = variant.result.name, .params = gates_[variant.gate].params};
    gate.own = std::move(variant.result);
    gate.auc = auc_interval(c_.pool, baseline.draws, scores[variant.gate], labels.label, window,
                            c_.options.interval);
    result.gates.push_back(std::move(gate));
  }
  result.delta = std::move(delta);
  result.error_energy = std::move(error_energy);
  result.scores = std::move(scores);
  for (size_t v = 0; v < whole.size(); ++v) {
    (v < folds_.size() ? result.folds : result.controls).push_back(std::move(whole[v]));
  }
  return result;
}

}  // namespace halflin
