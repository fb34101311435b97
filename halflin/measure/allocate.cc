#include "halflin/measure/allocate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "halflin/base/error.h"
#include "halflin/measure/allocation_controls.h"
#include "halflin/measure/perplexity.h"

namespace halflin {

namespace {

std::vector<Batch> batches_of(std::span<const Sample> samples) {
  std::vector<Batch> batches;
  for (const Sample& sample : samples) batches.push_back(sample.batch);
  return batches;
}

// Sums of losses by sequence, and predictions.
struct SequenceLosses {
  std::vector<double> loss, predictions;

  void add(std::span<const float> losses, std::span<const size_t> offsets) {
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      double sum = 0;
      for (size_t t = offsets[s]; t + 1 < offsets[s + 1]; ++t) {
        sum += static_cast<double>(losses[t]);
      }
      loss.push_back(sum);
      predictions.push_back(static_cast<double>(offsets[s + 1] - offsets[s] - 1));
    }
  }
};

double mean_loss(const SequenceLosses& losses) {
  double sum = 0, count = 0;
  for (size_t i = 0; i < losses.loss.size(); ++i) {
    sum += losses.loss[i];
    count += losses.predictions[i];
  }
  return sum / count;
}

// Text that routed models run on, against the unchanged model.
struct RoutedText {
  ThreadPool& pool;
  const Model& model;
  size_t window;
  const std::atomic<bool>& stop;
  bool quiet;
  std::vector<Batch> batches;
  SequenceLosses base;

  RoutedText(ThreadPool& p, const Model& m, std::span<const Sample> samples, size_t w,
             const std::atomic<bool>& s, bool q)
      : pool(p), model(m), window(w), stop(s), quiet(q), batches(batches_of(samples)) {
    Progress progress("unchanged model", static_cast<double>(count_rows(samples)), quiet);
    const auto losses = batch_losses(pool, model, batches, {}, progress);
    for (size_t b = 0; b < batches.size(); ++b) base.add(losses[b], batches[b].offsets);
  }

  struct Run {
    std::vector<RoutedBatch> routed;
    SequenceLosses losses;
    Saving saving;
  };
  // `routed` is the model with the paths in its MLPs' places.
  Run run(const Model& routed, std::span<const MlpPath> paths, const std::string& what,
          const Router& router = {}) const {
    double rows = 0;
    for (const Batch& batch : batches) rows += static_cast<double>(batch.rows());
    Progress progress(what, rows, quiet);
    Run out;
    out.routed = route_batches(pool, routed, batches, paths, stop, progress, router);
    for (size_t b = 0; b < batches.size(); ++b) {
      out.losses.add(out.routed[b].losses, batches[b].offsets);
    }
    out.saving = halflin::saving(route_costs(routed, paths, window), out.routed);
    return out;
  }
  double delta_ppl_pct(const Run& run) const {
    return 100 * std::expm1(mean_loss(run.losses) - mean_loss(base));
  }
};

LayerStore layers_in(const FitStore* store, const Model& model, const std::string& fit) {
  if (store == nullptr) return {};
  return {[=, &model](size_t l) { return store->layer(model, fit, l); },
          [=, &model](size_t l, const FittedLayer& fitted) {
            store->save_layer(model, fit, l, fitted);
          }};
}

TimeSaved time_saved(const FittedLayers& layers, std::span<const MlpPath> paths,
                     const Saving& saving) {
  TimeSaved time;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t i = 0; i < paths[l].options.size(); ++i) {
      for (const FittedOption& option : layers[l].options) {
        const auto& [packed, gate] = paths[l].options[i];
        if (option.packed != packed) continue;
        const double rate = saving.rates[l][i];
        time.prefill +=
            100 * (gate ? rate * option.time.token - option.time.fixed : option.time.whole);
        time.decode += 100 * rate * option.time.decode;
      }
    }
  }
  return time;
}

PriceSearch calibrate(const RoutedText& calibration, const Model& model, const FittedLayers& layers,
                      const AllocateOptions& options, double first_price, const FitStore* store,
                      const std::string& fit) {
  return search_price(
      [&](double price) {
        if (store != nullptr) {
          if (auto point = store->point(fit, price)) return std::move(*point);
        }
        const std::vector<MlpPath> paths =
            priced_paths(layers, price, options.whole_layers, options.most_paths);
        const RoutedText::Run run =
            calibration.run(model, paths, fmt::format("price {:.3g}", price));
        PricePoint point{price, calibration.delta_ppl_pct(run), run.saving, run.saving.flops_pct};
        if (!options.times.empty()) {
          const TimeSaved time = time_saved(layers, paths, run.saving);
          point.saved_pct = (time.prefill + time.decode) / 2;
        }
        if (store != nullptr) store->save_point(fit, point);
        return point;
      },
      options.budget_pct, first_price);
}

size_t count_sinks_routed(std::span<const RoutedBatch> routed, const Sinks& sinks) {
  size_t count = 0;
  for (size_t b = 0; b < routed.size(); ++b) {
    for (size_t l = 0; l < routed[b].routes.rows(); ++l) {
      for (size_t t = 0; t < routed[b].routes.cols(); ++t) {
        count += routed[b].routes(l, t) != 0 && sinks.token[b][t] != 0;
      }
    }
  }
  return count;
}

// The last fit, if nothing saved more before, or as much at a lower loss.
void keep_if_better(FittedLayers fitted, AllocateResult& result) {
  const PricePoint& best = result.tried.back().search.best;
  const auto rank = [](const PricePoint& point) {
    return std::pair(point.saved_pct, -point.delta_ppl_pct);
  };
  if (!result.tried.back().search.kept()) return;
  if (!result.fitted.empty() && rank(best) <= rank(result.calibrated)) return;
  result.chosen = result.tried.size() - 1;
  result.calibrated = best;
  result.fitted = std::move(fitted);
}

// Heals the best fit with one path a layer at the price at which it loses what healing begins with.
void try_healing(ThreadPool& pool, const Model& model, const Splits& splits,
                 std::span<const Sinks> sinks, const SampledGradients& gradients,
                 const RoutedText& calibration, const FitStore* store,
                 const AllocateOptions& options, AllocateResult& result) {
  const Healing& healing = *options.healing;
  AllocateOptions single = options;
  single.most_paths = 1;
  single.budget_pct = healing.from_pct;
  const std::string fit = fit_name(result.tried[result.chosen].fit) + "-single";
  result.before_healing =
      calibrate(calibration, model, result.fitted, single, result.calibrated.price, store, fit);
  check_kept(*result.before_healing, healing.from_pct);
  const double price = result.before_healing->best.price;
  Healed healed = heal_layers(pool, model, result.fitted, price, options.whole_layers, healing,
                              calibration.stop);
  const Model& routed = healed.model ? *healed.model : model;
  const LayerStore given{[&](size_t l) { return std::move(healed.layers[l]); }, {}};
  // Trained gates have seen sinks: what they let pass, the routed model has learned to bear.
  const JointFitOptions scores{.menu = {}, .spare_sinks = false};
  healed.layers = joint_fit(pool, routed, splits.fit, splits.train, sinks[0], sinks[1], gradients,
                            options.window, scores, given, calibration.stop, calibration.quiet);
  result.tried.push_back(
      {Fit::kHealed, calibrate(calibration, routed, healed.layers, options, price, store,
                               fmt::format("healed-{:g}", healing.from_pct))});
  keep_if_better(std::move(healed.layers), result);
  const bool kept = result.chosen + 1 == result.tried.size();
  if (kept) result.model = std::move(healed.model);
}

}  // namespace

std::span<const Sample> first_tokens(std::span<const Sample> samples, size_t tokens) {
  size_t count = 0;
  for (size_t rows = 0; count < samples.size() && rows < tokens; ++count) {
    rows += samples[count].batch.rows();
  }
  return samples.first(count);
}

std::string fit_name(Fit fit) {
  return fit == Fit::kDense    ? "dense"
         : fit == Fit::kRouted ? "routed"
         : fit == Fit::kHealed ? "healed"
                               : "original";
}

AllocateResult allocate(ThreadPool& pool, const Model& model, const Splits& splits,
                        const SampledGradients& gradients, const FitStore* store,
                        const AllocateOptions& options, const std::atomic<bool>& stop, bool quiet) {
  AllocateResult result;
  const std::span<const Sample> fit_splits[] = {splits.fit, splits.train, splits.calibration};
  const std::vector<Sinks> sinks = find_sinks(pool, model, fit_splits, stop, quiet);
  const RoutedText calibration(pool, model, splits.calibration, options.window, stop, quiet);

  // The fits, each with its own price; what saves most within the budget is kept.
  for (const Fit fit : options.fits) {
    // A nat for all FLOPs where a percent is allowed: what was seen to be near.
    const double first_price = result.tried.empty() ? options.budget_pct : result.calibrated.price;
    const JointFitOptions joint{
        .menu = options.menu,
        .whole_layers = options.whole_layers,
        .trim = options.trim,
        .most_paths = options.most_paths,
        .price = fit == Fit::kDense || result.tried.empty() ? 0 : result.calibrated.price,
        .times = options.times,
        .target = fit == Fit::kRoutedOriginal ? FitTarget::kOriginal : FitTarget::kOwn};
    const std::string name =
        joint.price > 0 ? fmt::format("{}-{}", fit_name(fit), joint.price) : fit_name(fit);
    FittedLayers fitted =
        joint_fit(pool, model, splits.fit, splits.train, sinks[0], sinks[1], gradients,
                  options.window, joint, layers_in(store, model, name), stop, quiet);
    result.tried.push_back(
        {fit, calibrate(calibration, model, fitted, options, first_price, store, name)});
    check_kept(result.tried.back().search, options.budget_pct);
    keep_if_better(std::move(fitted), result);
  }
  if (options.healing != nullptr) {
    try_healing(pool, model, splits, sinks, gradients, calibration, store, options, result);
  }
  const Model& routed = result.model ? *result.model : model;
  const double price = result.calibrated.price;
  JointPaperGates paper;
  if (options.controls) {
    const std::span<const Sample> train = first_tokens(splits.train, options.control_tokens);
    paper = train_joint_paper_gates(pool, model, result.fitted, train, splits.calibration,
                                    first_sinks(sinks[1], train.size()), sinks[2], stop, quiet);
  }

  // From here on the test split, which has decided nothing.
  const std::span<const Sample> test_split[] = {splits.test};
  const Sinks test_sinks = find_sinks(pool, model, test_split, stop, quiet).front();
  const RoutedText test(pool, model, splits.test, options.window, stop, quiet);
  const BootstrapDraws draws = draw_windows(test.base.loss.size(), options.draws, options.seed);
  const auto interval = [&](const RoutedText::Run& run) {
    return delta_ppl(draws, test.base.loss, run.losses.loss, test.base.predictions,
                     options.interval);
  };
  result.baseline_ppl = perplexity(draws, test.base.loss, test.base.predictions, options.interval);
  result.test_windows = test.base.loss.size();
  for (const double n : test.base.predictions) result.test_predictions += static_cast<size_t>(n);
  result.test_tokens = count_rows(splits.test);
  result.test_sinks = test_sinks.count;

  std::vector<double> prices;
  for (const double multiple : options.multiples) prices.push_back(price * multiple);
  prices.push_back(price);
  std::sort(prices.begin(), prices.end());
  prices.erase(std::unique(prices.begin(), prices.end()), prices.end());
  const FittedLayers& layers = result.fitted;
  // The same steps on the model without paths, and the healed weights where no token takes one.
  std::optional<RoutedText::Run> healed_alone, healed_full;
  if (options.controls && result.model) {
    const std::vector<MlpPath> none(layers.size());
    const Model control = heal_control(pool, model, *options.healing, stop);
    healed_alone = test.run(control, none, "healed without paths");
    healed_full = test.run(routed, none, "healed, full MLPs");
  }
  for (const double p : prices) {
    const std::vector<MlpPath> paths =
        priced_paths(layers, p, options.whole_layers, options.most_paths);
    const RoutedText::Run run = test.run(routed, paths, fmt::format("test, price {:.3g}", p));
    AllocationPoint point{p,
                          interval(run),
                          run.saving,
                          time_saved(layers, paths, run.saving),
                          count_sinks_routed(run.routed, test_sinks),
                          {},
                          {}};
    if (p == price) result.own = result.points.size();
    if (options.controls) {
      const double flops = run.saving.flops_pct;
      const auto compare = [&](const Model& with, const Control& control) {
        const RoutedText::Run other = test.run(with, control.paths, control.name, control.router);
        point.controls.push_back({control.name, interval(other), other.saving.flops_pct});
      };
      if (!options.whole_layers) {
        compare(routed, random_control(paths, run.saving.rates, test_sinks, options.seed));
      }
      std::vector<Control> controls;
      controls.push_back(paper_control(model, layers, paper, flops, options.window, test_sinks));
      controls.push_back(
          whole_linear_control(model, layers, flops, options.window, test_sinks, options.seed));
      controls.push_back(pruned_control(model, layers, flops, options.window, test_sinks));
      for (const Control& control : controls) compare(model, control);
      if (healed_alone) {
        point.controls.push_back({"healed without paths", interval(*healed_alone), 0});
        point.controls.push_back({"healed, full MLPs", interval(*healed_full), 0});
        point.against_control = delta_ppl(draws, healed_alone->losses.loss, run.losses.loss,
                                          test.base.predictions, options.interval);
      }
    }
    result.points.push_back(std::move(point));
  }

  const std::vector<MlpPath> own =
      priced_paths(layers, price, options.whole_layers, options.most_paths);
  for (size_t l = 0; l < own.size(); ++l) {
    result.layers.emplace_back();
    for (const PathOption& chosen : own[l].options) {
      for (const FittedOption& option : result.fitted[l].options) {
        if (option.packed == chosen.path) {
          result.layers.back().push_back({copy_path(*option.path), chosen.gate});
        }
      }
    }
  }
  return result;
}

}  // namespace halflin
