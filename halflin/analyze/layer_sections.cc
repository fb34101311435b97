#include "halflin/analyze/layer_sections.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "halflin/analyze/clusters.h"
#include "halflin/analyze/distribution.h"
#include "halflin/analyze/explained.h"
#include "halflin/analyze/forest.h"
#include "halflin/analyze/resample.h"

namespace halflin {

using nlohmann::json;

namespace {

constexpr size_t kComponents = 50;    // of x, before k-means
constexpr size_t kExtremes = 15;      // tokens shown at either end of the gate's score
constexpr size_t kListed = 25;        // No-Fly tokens kept in the result
constexpr size_t kTokensBefore = 16;  // of context shown
constexpr size_t kTokensAfter = 8;

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string token_text(const AnalysisContext& c, int32_t id) {
  return clean_utf8(c.tokenizer.token_bytes(id));
}

}  // namespace

json distribution_json(const AnalysisContext& c, std::span<const float> delta,
                       std::span<const uint32_t> window, const BootstrapDraws& draws) {
  const DeltaDistribution d = delta_distribution(c.pool, draws, delta, window, c.options.interval);
  json out = {{"tokens", d.count},
              {"mean", d.mean},
              {"sd", d.sd},
              {"skew", d.skew},
              {"excess_kurtosis", d.kurtosis},
              {"positive", figure(d.positive)},
              {"within_0.01", figure(d.near_zero)},
              {"within_0.05", figure(d.small)},
              {"harm", d.harm},
              {"gain", d.gain}};
  for (size_t i = 0; i < d.quantiles.size(); ++i) {
    out["quantiles"].push_back({kDeltaQuantiles[i], d.quantiles[i]});
  }
  for (size_t i = 0; i < d.worst.size(); ++i) {
    json share = figure(d.worst[i]);
    share["tokens"] = kWorstShares[i];
    out["harm_in_worst"].push_back(share);
  }
  for (const auto& [tokens, harm] : d.lorenz) out["lorenz"].push_back({tokens, harm});
  return out;
}

json explained_json(const AnalysisContext& c, const LayerRows& a, MatView<const float> context_part,
                    std::span<const uint32_t> window) {
  const AnalysisText& text = c.texts.a;
  const size_t split = text.train_rows;
  const std::vector<double> y(a.delta.begin(), a.delta.end());
  const auto train = std::span(y).subspan(0, split);
  const auto test = std::span(y).subspan(split);
  const auto train_window = std::span(text.window).subspan(0, split);
  const double mean = mean_of(train);
  const auto r2 = [&](std::span<const double> prediction) {
    return figure(held_out_r2(c.draws_a_test, test, prediction, mean, window, c.options.interval));
  };
  json out;

  const auto by_group = [&](const std::vector<int32_t>& ids, std::span<const double> values) {
    const GroupMeans means = fit_group_means(std::span(ids).subspan(0, split), values);
    std::vector<double> prediction;
    prediction.reserve(text.test_rows());
    for (size_t t = split; t < ids.size(); ++t) prediction.push_back(means.predict(ids[t]));
    return std::pair(means, prediction);
  };
  const auto group_json = [&](const std::vector<int32_t>& ids) {
    const auto [means, prediction] = by_group(ids, train);
    json group = r2(prediction);
    group["variance_between"] = means.between;
    group["variance_within"] = means.within;
    return group;
  };
  out["input_token"] = group_json(text.input);
  out["target_token"] = group_json(text.target);

  const RidgeFit context = fit_ridge(c.pool, context_part.row_range(0, split), train, train_window);
  const auto context_all = predict_rows(c.pool, context, context_part);
  const auto context_test = std::span(context_all).subspan(split);
  out["context"] = r2(context_test);
  out["context"]["penalty"] =
      std::isinf(context.penalty) ? json("infinite") : json(context.penalty);

  // Both: token means of what the context leaves over.
  std::vector<double> left(split);
  for (size_t t = 0; t < split; ++t) left[t] = y[t] - context_all[t];
  std::vector<double> both = by_group(text.input, left).second;
  for (size_t t = 0; t < both.size(); ++t) both[t] += context_test[t];
  out["both"] = r2(both);

  const auto surface = c.surface.view();
  const auto surface_r2 = [&](std::span<const double> target, double centre, json& to) {
    const auto target_train = target.subspan(0, split);
    const auto target_test = target.subspan(split);
    const auto judge = [&](std::span<const double> prediction) {
      return figure(
          held_out_r2(c.draws_a_test, target_test, prediction, centre, window, c.options.interval));
    };
    const RidgeFit line =
        fit_ridge(c.pool, surface.row_range(0, split), target_train, train_window);
    const auto linear = predict_rows(c.pool, line, surface);
    to["ridge"] = judge(std::span(linear).subspan(split));
    const Forest forest =
        fit_forest(c.pool, surface.row_range(0, split), target_train, {.seed = c.options.seed});
    std::vector<double> prediction;
    prediction.reserve(text.test_rows());
    for (size_t t = split; t < y.size(); ++t) {
      prediction.push_back(forest.predict(surface.row_span(t)));
    }
    to["forest"] = judge(prediction);
  };
  surface_r2(y, mean, out["surface"]);
  // The same without the tails, which are most of the variance.
  std::vector<double> sorted(train.begin(), train.end());
  std::sort(sorted.begin(), sorted.end());
  const double low = quantile(sorted, 0.01), high = quantile(sorted, 0.99);
  std::vector<double> clipped;
  clipped.reserve(y.size());
  for (const double v : y) clipped.push_back(std::clamp(v, low, high));
  surface_r2(clipped, mean_of(std::span(clipped).subspan(0, split)), out["surface_clipped"]);
  return out;
}

json no_fly_json(const AnalysisContext& c, const LayerRows& a, const LayerRows& b) {
  const AnalysisText& text_a = c.texts.a;
  const AnalysisText& text_b = c.texts.b;
  const auto list = [&](const std::vector<int32_t>& ids_a, const std::vector<int32_t>& ids_b) {
    const NoFlyResult r =
        no_fly(c.pool, {ids_a, a.delta, text_a.window, text_a.windows()},
               {ids_b, b.delta, text_b.window, text_b.windows()}, c.draws_a, c.draws_b,
               c.options.no_fly, c.options.seed, c.options.interval.confidence);
    const auto of_types = [](const Interval& interval, size_t types) {
      json out = figure(interval);
      if (types < kFewestTypes) out["too_few"] = types;
      return out;
    };
    const auto percent = [](size_t part, size_t whole) {
      return whole == 0 ? json(nullptr)
                        : json(100 * static_cast<double>(part) / static_cast<double>(whole));
    };
    json out = {{"types_frequent", r.frequent},
                {"types_shared", r.shared},
                {"listed", r.listed},
                {"found", r.found},
                {"still", r.still},
                {"still_pct", percent(r.still, r.found)},
                {"flipped", r.flipped},
                {"flipped_pct", percent(r.flipped, r.found)},
                {"still_pct_of_any", percent(r.still_any, r.found_any)},
                {"correlation", of_types(r.correlation, r.shared)},
                {"listed_correlation", of_types(r.listed_correlation, r.found)},
                {"reliability_a", of_types(r.reliability_a, r.shared)},
                {"reliability_b", of_types(r.reliability_b, r.shared)},
                {"ceiling", r.ceiling},
                {"tokens", json::array()}};
    for (size_t i = 0; i < std::min(kListed, r.tokens.size()); ++i) {
      const ListedToken& token = r.tokens[i];
      out["tokens"].push_back({{"id", token.id},
                               {"text", token_text(c, token.id)},
                               {"n", token.n},
                               {"mean", token.mean},
                               {"positive", token.positive},
                               {"n_b", token.n_elsewhere},
                               {"mean_b", token.mean_elsewhere}});
    }
    return out;
  };
  return {{"input", list(text_a.input, text_b.input)},
          {"target", list(text_a.target, text_b.target)}};
}

json surface_json(const AnalysisContext& c, const LayerRows& a) {
  json out;
  std::vector<float> column(c.surface.rows());
  for (size_t j = 0; j < kSurfaceFeatures; ++j) {
    for (size_t t = 0; t < column.size(); ++t) column[t] = c.surface(t, j);
    out["delta_correlation"][kSurfaceNames[j]] = figure(pearson_interval(
        c.pool, c.draws_a, column, a.delta, c.texts.a.window, c.options.interval.confidence));
  }
  return out;
}

json clusters_json(const AnalysisContext& c, const LayerRows& a, std::span<const int8_t> labels,
                   std::span<const uint32_t> window) {
  const size_t split = c.texts.a.train_rows;
  const auto train = a.x.view().row_range(0, split);
  const auto test = a.x.view().row_range(split, a.x.rows() - split);
  Moments moments(a.x.cols(), 0);
  moments.add(c.pool, train, MatView<const float>(nullptr, split, 0));
  const Projection projection = principal_components(moments, kComponents);
  const Matrix<double> z = project(c.pool, projection, train);
  const KMeans found = k_means(c.pool, z.view(), {.seed = c.options.seed});
  const Matrix<double> z_test = project(c.pool, projection, test);
  const std::vector<uint32_t> assigned =
      nearest_centre(c.pool, z_test.view(), found.centres.view());
  const size_t k = found.centres.rows();
  const std::vector<ClusterResult> judged =
      judge_clusters(k, found.assignment, assigned, std::span(a.delta).subspan(split), labels,
                     window, c.draws_a_test, c.options.interval);

  // A token's score is the share of its cluster's training tokens for which linear is fine.
  const DeltaLabels train_labels = label_by_delta(std::span(a.delta).subspan(0, split));
  std::vector<double> ok(k, 0.0), count(k, 0.0);
  for (size_t t = 0; t < split; ++t) {
    if (train_labels.label[t] < 0) continue;
    ok[found.assignment[t]] += train_labels.label[t];
    count[found.assignment[t]] += 1;
  }
  std::vector<float> scores;
  scores.reserve(assigned.size());
  for (const uint32_t cluster : assigned) {
    scores.push_back(static_cast<float>(count[cluster] > 0 ? ok[cluster] / count[cluster] : 0.5));
  }
  json out = {{"components", projection.vectors.cols()},
              {"variance_kept", projection.explained},
              {"clusters", k},
              {"auc", figure(auc_interval(c.pool, c.draws_a_test, scores, labels, window,
                                          c.options.interval))}};
  size_t always = 0, never = 0, mixed = 0, too_few = 0;
  for (const ClusterResult& cluster : judged) {
    always += cluster.always;
    never += cluster.never;
    mixed += cluster.mixed;
    too_few += cluster.too_few;
    json entry = {{"cluster", cluster.cluster},
                  {"train_tokens", cluster.train_tokens},
                  {"test_tokens", cluster.test_tokens},
                  {"mean_delta", figure(cluster.mean_delta)},
                  {"linear_ok", figure(cluster.linear_ok)}};
    if (cluster.too_few) entry["too_few"] = cluster.test_tokens;
    out["list"].push_back(entry);
  }
  out["always"] = always;
  out["never"] = never;
  out["mixed"] = mixed;
  out["too_few"] = too_few;
  return out;
}

json direction_json(const AnalysisContext& c, std::span<const float> scores,
                    std::span<const uint32_t> window) {
  const AnalysisText& text = c.texts.a;
  const size_t split = text.train_rows;
  constexpr size_t kFunctionWord = 6;
  static_assert(std::string_view(kSurfaceNames[kFunctionWord]) == "is_function_word");
  std::vector<float> function_word(scores.size());
  for (size_t t = 0; t < scores.size(); ++t) {
    function_word[t] = c.surface(split + t, kFunctionWord);
  }
  json out;
  out["function_word_correlation"] = figure(pearson_interval(
      c.pool, c.draws_a_test, scores, function_word, window, c.options.interval.confidence));
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t l, size_t r) { return scores[l] > scores[r]; });
  const auto sentence = [&](size_t t) {
    const std::vector<int32_t>& ids = text.samples[text.window[split + t]].batch.ids;
    const size_t at = text.position[split + t];
    const size_t begin = at - std::min(at, kTokensBefore);
    const size_t end = std::min(ids.size(), at + 1 + kTokensAfter);
    return json{
        {"score", scores[t]},
        {"position", at},
        {"before", clean_utf8(c.tokenizer.decode(std::span(ids).subspan(begin, at - begin)))},
        {"token", token_text(c, ids[at])},
        {"after", clean_utf8(c.tokenizer.decode(std::span(ids).subspan(at + 1, end - at - 1)))}};
  };
  out["most_linear"] = json::array();
  out["most_nonlinear"] = json::array();
  for (size_t i = 0; i < std::min(kExtremes, order.size()); ++i) {
    out["most_linear"].push_back(sentence(order[i]));
    out["most_nonlinear"].push_back(sentence(order[order.size() - 1 - i]));
  }
  return out;
}

json stability_json(const AnalysisContext& c, const LayerRows& a, const LayerRows& b,
                    const Gate& whole, const HeldOut& held_out) {
  const AnalysisText& text_a = c.texts.a;
  const AnalysisText& text_b = c.texts.b;
  const size_t split = text_a.train_rows;
  const auto test = a.x.view().row_range(split, a.x.rows() - split);
  const auto on_a = [&](const Gate& gate) {
    return figure(auc_interval(c.pool, held_out.draws, gate_scores(c.pool, gate, test),
                               held_out.labels, held_out.window, held_out.options));
  };
  const auto likeness = [&](const Gate& l, const Gate& r) {
    const GateLikeness like = gate_likeness(c.pool, l, r, test);
    return json{{"cosine", like.cosine}, {"score_correlation", like.score_correlation}};
  };
  const auto part_of_a = [&](const std::function<bool(size_t)>& use) {
    return train_gate_on(c.pool, a.x.view(), a.delta, split, use);
  };
  json out;

  const auto other =
      train_gate_on(c.pool, b.x.view(), b.delta, text_b.train_rows, [](size_t) { return true; });
  if (other) {
    out["texts"] = likeness(whole, *other);
    out["texts"]["auc_of_b_on_a"] = on_a(*other);
    const size_t split_b = text_b.train_rows;
    const DeltaLabels labels = label_by_delta(std::span(b.delta).subspan(split_b));
    std::vector<uint32_t> window;
    for (size_t t = split_b; t < text_b.rows(); ++t) {
      window.push_back(text_b.window[t] - static_cast<uint32_t>(text_b.train_windows));
    }
    const auto on_b = [&](const Gate& gate) {
      const auto rows = b.x.view().row_range(split_b, b.x.rows() - split_b);
      return figure(auc_interval(c.pool, c.draws_b_test, gate_scores(c.pool, gate, rows),
                                 labels.label, window, c.options.interval));
    };
    out["texts"]["auc_of_a_on_b"] = on_b(whole);
    out["texts"]["auc_of_b_on_b"] = on_b(*other);
  }
  const auto pair = [&](const char* name, const std::function<bool(size_t)>& first) {
    const auto l = part_of_a(first);
    const auto r = part_of_a([&](size_t t) { return !first(t); });
    if (!l || !r) return;
    out[name] = likeness(*l, *r);
    out[name]["auc_first"] = on_a(*l);
    out[name]["auc_second"] = on_a(*r);
  };
  pair("halves", [&](size_t t) { return text_a.window[t] % 2 == 0; });
  pair("positions", [&](size_t t) {
    return size_t{2} * text_a.position[t] < text_a.samples[text_a.window[t]].batch.rows();
  });
  return out;
}

}  // namespace halflin
