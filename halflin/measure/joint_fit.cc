#include "halflin/measure/joint_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "halflin/base/error.h"
#include "halflin/measure/paths.h"
#include "halflin/mlp/surrogate.h"

namespace halflin {

namespace {

// One split's streams, held between a layer's attention and its MLP.
struct Held {
  std::span<const Sample> samples;
  const Sinks& sinks;
  std::vector<Stream> streams;
  std::vector<Matrix<float>> x{};       // of each batch [rows, d]
  std::vector<Matrix<float>> full{};    // of each batch [rows, d] f(x)
  std::vector<Matrix<float>> target{};  // of each batch [rows, d] what paths should give, where
                                        // that is not f(x)

  // Rows that fits may use, [batches][rows]: no sinks.
  std::vector<std::vector<uint8_t>> plain() const {
    std::vector<std::vector<uint8_t>> out;
    for (size_t b = 0; b < samples.size(); ++b) {
      out.push_back(samples[b].use);
      for (size_t t = 0; t < out[b].size(); ++t) {
        out[b][t] = out[b][t] != 0 && sinks.token[b][t] == 0;
      }
    }
    return out;
  }
};

Operand operand(const Matrix<float>& x, WalkWorker& worker) {
  const MutableOperand rows = worker.x.view(x.rows(), x.cols());
  convert(x.view(), rows);
  return rows;
}

// The values of the chosen rows, one batch after another.
std::vector<double> chosen(const std::vector<std::vector<double>>& values,
                           const std::vector<std::vector<uint8_t>>& rows) {
  std::vector<double> out;
  for (size_t b = 0; b < values.size(); ++b) {
    for (size_t t = 0; t < values[b].size(); ++t) {
      if (rows[b][t] != 0) out.push_back(values[b][t]);
    }
  }
  return out;
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// The gate's scores of all plain tokens, and their order.
void set_scores(ThreadPool& pool, const Held& train, const std::vector<std::vector<uint8_t>>& plain,
                FittedOption& option) {
  option.score.clear();
  for (size_t b = 0; b < plain.size(); ++b) {
    const std::vector<float> scores = gate_scores(pool, option.gate, train.x[b].view());
    for (size_t t = 0; t < scores.size(); ++t) {
      if (plain[b][t] != 0) option.score.push_back(scores[t]);
    }
  }
  option.order.resize(option.score.size());
  std::iota(option.order.begin(), option.order.end(), 0u);
  std::stable_sort(option.order.begin(), option.order.end(),
                   [&](uint32_t a, uint32_t b) { return option.score[a] > option.score[b]; });
}

// The highest score of a sink.
float sink_score(std::span<const Held> held, const Gate& gate) {
  float highest = std::numeric_limits<float>::lowest();
  for (const Held& part : held) {
    for (size_t b = 0; b < part.x.size(); ++b) {
      for (size_t t = 0; t < part.x[b].rows(); ++t) {
        if (part.sinks.token[b][t] == 0) continue;
        highest = std::max(highest, gate_score(gate, part.x[b].row(t)));
      }
    }
  }
  return highest;
}

// One layer of the walk.
class LayerFit {
 public:
  LayerFit(WalkContext& context, const JointFitOptions& options, size_t layer, double total_flops,
           const SampledGradients& gradients)
      : c_(context),
        options_(options),
        layer_(layer),
        gradients_(gradients),
        mlp_(context.model.layers[layer].mlp),
        weights_(read_mlp_weights(context.model, layer)),
        d_(context.model.config.d_model),
        total_flops_(total_flops) {}

  // `held` are the fit and the train split.
  FittedLayer run(std::span<const Held> held) {
    const Held& fit = held[0];
    const Held& train = held[1];
    const std::vector<std::vector<uint8_t>> use = trimmed(fit);
    const Moments sums = moments(fit, use);
    FittedLayer layer;
    std::vector<FittedOption>& fitted = layer.options;
    std::vector<PlainPath> menu = fit_menu(c_.pool, weights_, sums, options_.menu);
    for (size_t i = 0; i < menu.size(); ++i) {
      PlainPath& path = menu[i];
      const double flops = plain_flops(path, d_, c_.model.config.gated_mlp);
      FittedOption option;
      option.saved = (path_flops(mlp_) - flops) / total_flops_;
      if (!options_.times.empty()) {
        option.time = options_.times[i];
        option.saved =
            (option.time.decode + (options_.whole_layers ? option.time.whole : option.time.token)) /
            2;
        option.fixed_cost = option.time.fixed / 2;
      }
      if (option.saved <= 0) continue;  // costs as much as the MLP itself
      option.packed = std::make_shared<CheapPath>(pack_path(c_.model, weights_, path));
      option.kind = path.kind;
      option.kept = path.neurons.kept.size();
      option.path = std::make_shared<PlainPath>(std::move(path));
      fitted.push_back(std::move(option));
    }
    fit_gates(train, fitted);
    for (FittedOption& option : fitted) option.sink_score = sink_score(held, option.gate);
    fit_controls(sums, train, layer);
    return layer;
  }

 private:
  void fit_controls(const Moments& sums, const Held& train, FittedLayer& layer) {
    const size_t h = c_.model.config.d_mlp;
    layer.neuron_mean.assign(sums.mean_x.begin() + static_cast<ptrdiff_t>(d_), sums.mean_x.end());
    for (size_t j = 0; j < h; ++j) {
      double column = 0;
      for (size_t r = 0; r < d_; ++r) {
        const auto w = static_cast<double>(weights_.down(r, j));
        column += w * w;
      }
      layer.neuron_energy.push_back(sums.xx(d_ + j, d_ + j) / static_cast<double>(sums.n) * column);
    }
    for (const FittedOption& option : layer.options) {
      if (option.kind != "linear") continue;
      layer.linear = option.packed;
      layer.linear_energy = option.energy;
      layer.scale = option.scale;
      return;
    }
    const MenuOptions linear{.linear = true, .ridge = options_.menu.ridge};
    layer.plain_linear =
        std::make_shared<PlainPath>(std::move(fit_menu(c_.pool, weights_, sums, linear).front()));
    layer.linear = std::make_shared<CheapPath>(pack_path(c_.model, weights_, *layer.plain_linear));
    const Errors missed = std::move(errors(train, {&layer.linear, 1}, &gradients_).front());
    layer.linear_energy = mean_of(chosen(missed.energy, train.plain()));
    layer.scale = scale_of(missed, train.plain());
  }

  // Calls body(batch, x, worker) for each batch, one a thread.
  void each(const Held& held, size_t begin, size_t end,
            const std::function<void(size_t b, Operand x, WalkWorker& worker)>& body) {
    c_.pool.parallel_for(end - begin, [&](size_t i, int w) {
      if (c_.stop) throw Interrupted("interrupted");
      WalkWorker& worker = c_.workers[static_cast<size_t>(w)];
      body(begin + i, operand(held.x[begin + i], worker), worker);
    });
  }

  // Of (x | neurons), with the targets where these are not f(x), which follows from the neurons.
  Moments moments(const Held& held, const std::vector<std::vector<uint8_t>>& use) {
    const size_t h = c_.model.config.d_mlp;
    const bool targets = !held.target.empty();
    Moments sums(d_ + h, targets ? d_ : 0);
    const auto group = static_cast<size_t>(c_.pool.size());
    std::vector<Matrix<float>> rows(group);
    for (size_t begin = 0; begin < held.x.size(); begin += group) {
      const size_t end = std::min(held.x.size(), begin + group);
      each(held, begin, end, [&](size_t b, Operand x, WalkWorker& worker) {
        const Matrix<float>& from = held.x[b];
        Matrix<float>& to = rows[b - begin];
        to = Matrix<float>(from.rows(), d_ + h);
        for (size_t t = 0; t < from.rows(); ++t) std::copy_n(from.row(t), d_, to.row(t));
        to_float32(mlp_neurons(c_.pool, mlp_, x, worker.workspace.mlp), to.view().col_range(d_, h));
      });
      for (size_t b = begin; b < end; ++b) {
        const MatView<const float> x = rows[b - begin].view();
        const MatView<const float> none(nullptr, x.rows, 0);
        sums.add(c_.pool, x, targets ? held.target[b].view() : none, use[b]);
      }
    }
    return sums;
  }

  // The linear surrogate of the chosen rows.
  std::shared_ptr<const CheapPath> linear(const Held& held,
                                          const std::vector<std::vector<uint8_t>>& use) {
    Moments sums(d_, d_);
    const std::vector<Matrix<float>>& y = held.target.empty() ? held.full : held.target;
    for (size_t b = 0; b < held.x.size(); ++b) {
      sums.add(c_.pool, held.x[b].view(), y[b].view(), use[b]);
    }
    return std::make_shared<CheapPath>(
        affine_path(ridge(c_.pool, sums, options_.menu.ridge), c_.model.precision));
  }

  // What a path gets wrong against f(x), token by token.
  struct Errors {
    std::vector<std::vector<double>> energy;  // [batches][rows]
    std::vector<std::vector<double>> harm;    // the same in nats; no rows without gradients
  };
  // Of each of `paths`.
  std::vector<Errors> errors(const Held& held,
                             std::span<const std::shared_ptr<const CheapPath>> paths,
                             const SampledGradients* gradients) {
    std::vector<Errors> out(paths.size());
    for (Errors& one : out) {
      one.energy.resize(held.x.size());
      one.harm.resize(held.x.size());
    }
    each(held, 0, held.x.size(), [&](size_t b, Operand x, WalkWorker& worker) {
      const MatView<const float> full = held.full[b].view();
      const MatView<float> cheap(worker.cheap.data(), x.rows, d_);
      const MatView<float> gradient(worker.other.data(), x.rows, d_);
      const bool nats = gradients != nullptr && b < gradients->samples().size();
      if (nats) gradients->read(layer_, b, gradient);
      for (size_t i = 0; i < paths.size(); ++i) {
        apply_cheap(c_.pool, *paths[i], x, false, cheap, worker.workspace.mlp);
        out[i].energy[b] = error_energy(c_.pool, cheap, full);
        if (nats) out[i].harm[b] = token_harm(gradient, full, cheap);
      }
    });
    return out;
  }

  // Nats that a unit of error energy costs, over the plain rows that have gradients.
  double scale_of(const Errors& errors, const std::vector<std::vector<uint8_t>>& plain) const {
    double harm = 0, energy = 0;
    for (size_t b = 0; b < errors.harm.size(); ++b) {
      for (size_t t = 0; t < errors.harm[b].size(); ++t) {
        if (plain[b][t] == 0) continue;
        harm += errors.harm[b][t];
        energy += errors.energy[b][t];
      }
    }
    return energy > 0 ? harm / energy : 0;
  }

  // The rows of the fit split that paths are fitted on: not the sinks, and not the tokens that the
  // linear surrogate serves worst, which will take the full path anyway.
  std::vector<std::vector<uint8_t>> trimmed(const Held& fit) {
    std::vector<std::vector<uint8_t>> use = fit.plain();
    if (options_.whole_layers) {  // all tokens will take the path
      for (size_t b = 0; b < use.size(); ++b) use[b] = fit.samples[b].use;
      return use;
    }
    if (options_.trim <= 0) return use;
    const std::shared_ptr<const CheapPath> surrogate = linear(fit, use);
    const std::vector<uint8_t> keep =
        trim_mask(chosen(errors(fit, {&surrogate, 1}, nullptr).front().energy, use), options_.trim);
    size_t next = 0;
    for (std::vector<uint8_t>& rows : use) {
      for (uint8_t& row : rows) {
        if (row != 0) row = keep[next++];
      }
    }
    return use;
  }

  void fit_gates(const Held& train, std::span<FittedOption> options) {
    const size_t batches = train.x.size();
    const std::vector<std::vector<uint8_t>> plain = train.plain();
    std::vector<Matrix<float>> targets(batches);  // [rows, options] log energies
    for (size_t b = 0; b < batches; ++b) {
      targets[b] = Matrix<float>(train.x[b].rows(), options.size());
    }
    std::vector<std::shared_ptr<const CheapPath>> paths;
    for (const FittedOption& option : options) paths.push_back(option.packed);
    const std::vector<Errors> missed = errors(train, paths, &gradients_);
    for (size_t i = 0; i < options.size(); ++i) {
      const std::vector<double> used = chosen(missed[i].energy, plain);
      if (used.empty()) fail("{}: no tokens to train gates on", c_.model.path);
      options[i].energy = mean_of(used);
      options[i].scale = scale_of(missed[i], plain);
      options[i].energy_all = 0;
      for (const auto& rows : missed[i].energy) {
        options[i].energy_all += mean_of(rows) / static_cast<double>(batches);
      }
      const Matrix<float> log = log_error_energy(used);
      // Sinks are to be told from all others: a target above all that those have.
      float highest = std::numeric_limits<float>::lowest();
      for (const float v : log.span()) highest = std::max(highest, v);
      size_t next = 0;
      for (size_t b = 0; b < batches; ++b) {
        for (size_t t = 0; t < plain[b].size(); ++t) {
          targets[b](t, i) = plain[b][t] != 0 ? log(next++, 0) : highest + 2;
        }
      }
    }
    Moments sums(d_, options.size());
    for (size_t b = 0; b < batches; ++b) {
      sums.add(c_.pool, train.x[b].view(), targets[b].view(), train.samples[b].use);
    }
    for (size_t i = 0; i < options.size(); ++i) {
      options[i].gate = harm_gate(c_.pool, one_target(sums, i));
      options[i].gate_cost = gate_flops(options[i].gate) / total_flops_;
      set_nats(train, plain, chosen(missed[i].energy, plain), options[i]);
    }
  }

  static Moments one_target(const Moments& sums, size_t target) {
    const size_t d = sums.mean_x.size();
    Moments one(d, 1);
    one.n = sums.n;
    one.mean_x = sums.mean_x;
    one.mean_y[0] = sums.mean_y[target];
    one.yy[0] = sums.yy[target];
    std::copy_n(sums.xx.data(), sums.xx.size(), one.xx.data());
    for (size_t j = 0; j < d; ++j) one.xy(j, 0) = sums.xy(j, target);
    return one;
  }

  // The mean of an exponential is not the exponential of the mean: scales the predictions so that
  // they are right on average where it matters, among the half with the lowest ones. Then into
  // nats.
  void set_nats(const Held& train, const std::vector<std::vector<uint8_t>>& plain,
                std::span<const double> energy, FittedOption& option) {
    set_scores(c_.pool, train, plain, option);
    const Matrix<float> target = log_error_energy(energy);
    double squares = 0, residual = 0, mean = 0;
    for (size_t t = 0; t < energy.size(); ++t) {
      const auto value = static_cast<double>(target(t, 0));
      const double missed = value + static_cast<double>(option.score[t]);
      mean += value;
      squares += value * value;
      residual += missed * missed;
    }
    const auto n = static_cast<double>(energy.size());
    option.r2 = 1 - residual / std::max(squares - mean * mean / n, 1e-300);
    double sum = 0, expected = 0;
    for (size_t k = 0; 2 * k < option.order.size(); ++k) {
      const uint32_t t = option.order[k];
      sum += energy[t];
      expected += std::exp(-static_cast<double>(option.score[t]));
    }
    const double factor = option.scale * (sum > 0 ? sum / expected : 1);
    const auto shift = static_cast<float>(std::log(std::max(factor, 1e-300)));
    option.gate.bias -= shift;
    set_scores(c_.pool, train, plain, option);
  }

  WalkContext& c_;
  const JointFitOptions& options_;
  size_t layer_;
  const SampledGradients& gradients_;
  const Mlp& mlp_;
  MlpWeights weights_;
  size_t d_;
  double total_flops_;
};

// Attention of `layer`; x and f(x) are kept.
void enter(WalkContext& c, Held& held, size_t layer) {
  held.x.resize(held.streams.size());
  held.full.resize(held.streams.size());
  each_batch(c, held.streams, layer,
             [&](size_t b, Stream& stream, WalkWorker&, const BatchView& view) {
               const size_t rows = stream.residual.rows();
               const size_t values = rows * view.full.cols;
               held.x[b] = Matrix<float>(rows, view.x32.cols);
               held.full[b] = Matrix<float>(rows, view.full.cols);
               std::copy_n(view.x32.data, values, held.x[b].data());
               std::copy_n(view.full.data, values, held.full[b].data());
               std::fill_n(view.full.data, values, 0.f);  // the stream stays here
             });
}

void leave(WalkContext& c, Held& held, size_t layer, const MlpPath& path) {
  c.pool.parallel_for(held.streams.size(), [&](size_t b, int w) {
    WalkWorker& worker = c.workers[static_cast<size_t>(w)];
    apply_path(c.pool, c.model.layers[layer].mlp, path, operand(held.x[b], worker),
               /*accumulate=*/true, held.streams[b].residual.view(), worker.workspace.mlp);
  });
}

}  // namespace

FittedLayers joint_fit(ThreadPool& pool, const Model& model, std::span<const Sample> fit,
                       std::span<const Sample> train, const Sinks& fit_sinks,
                       const Sinks& train_sinks, const SampledGradients& gradients, size_t window,
                       const JointFitOptions& options, const LayerStore& store,
                       const std::atomic<bool>& stop, bool quiet) {
  std::vector<WalkWorker> workers;
  workers.reserve(static_cast<size_t>(pool.size()));
  for (int w = 0; w < pool.size(); ++w) {
    workers.emplace_back(model, std::max(most_rows(fit), most_rows(train)));
  }
  const auto rows = static_cast<double>(count_rows(fit) + count_rows(train));
  Progress progress("fit", rows * static_cast<double>(model.config.layers), quiet);
  WalkContext context{pool, model, workers, stop, progress};

  Held held[] = {{fit, fit_sinks, make_streams(model, fit)},
                 {train, train_sinks, make_streams(model, train)}};
  // The unchanged model's outputs, where these are the targets.
  Held original{fit, fit_sinks, {}};
  const bool to_original = options.target == FitTarget::kOriginal;
  if (to_original) original.streams = make_streams(model, fit);

  const double total = flops_per_token(model.config, window).total();
  FittedLayers fitted;
  for (size_t l = 0; l < model.config.layers; ++l) {
    progress.advance(0, fmt::format("layer {}", l));
    for (Held& part : held) enter(context, part, l);
    if (to_original) {
      enter(context, original, l);
      leave(context, original, l, {});
      held[0].target = std::move(original.full);
    }
    std::optional<FittedLayer> kept = store.load ? store.load(l) : std::nullopt;
    if (kept) {
      const std::vector<std::vector<uint8_t>> plain = held[1].plain();
      for (FittedOption& option : kept->options) {
        set_scores(pool, held[1], plain, option);
        option.sink_score = options.spare_sinks ? sink_score(held, option.gate)
                                                : std::numeric_limits<float>::lowest();
      }
    } else {
      kept = LayerFit(context, options, l, total, gradients).run(held);
      if (store.save) store.save(l, *kept);
    }
    fitted.push_back(std::move(*kept));
    const std::vector<FittedOption>& menu = fitted.back().options;
    const MlpPath path = options.whole_layers
                             ? whole_layer_path(menu, options.price)
                             : priced_path(menu, options.price, options.most_paths);
    for (Held& part : held) leave(context, part, l, path);
  }
  return fitted;
}

}  // namespace halflin
