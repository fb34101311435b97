#include "halflin/analyze/forest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "halflin/base/random.h"

namespace halflin {

namespace {

// Features as small integers: the bin of a value is how many cuts lie below it.
struct Binned {
  std::vector<std::vector<float>> cuts;  // [k] rising; bin b holds values <= cuts[b]
  Matrix<uint8_t> bin;                   // [T, k]
};

Binned bin_features(MatView<const float> x, size_t bins) {
  bins = std::clamp<size_t>(bins, 2, 256);
  Binned out;
  out.bin = Matrix<uint8_t>(x.rows, x.cols);
  for (size_t j = 0; j < x.cols; ++j) {
    std::vector<float> values(x.rows);
    for (size_t t = 0; t < x.rows; ++t) values[t] = x(t, j);
    std::sort(values.begin(), values.end());
    std::vector<float> distinct = values;
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::vector<float> cuts;
    if (distinct.size() <= bins) {
      for (size_t i = 0; i + 1 < distinct.size(); ++i) {
        cuts.push_back(0.5f * (distinct[i] + distinct[i + 1]));
      }
    } else {
      for (size_t b = 1; b < bins; ++b) {
        const float cut = values[b * values.size() / bins];
        if ((cuts.empty() || cut > cuts.back()) && cut < values.back()) cuts.push_back(cut);
      }
    }
    for (size_t t = 0; t < x.rows; ++t) {
      out.bin(t, j) =
          static_cast<uint8_t>(std::lower_bound(cuts.begin(), cuts.end(), x(t, j)) - cuts.begin());
    }
    out.cuts.push_back(std::move(cuts));
  }
  return out;
}

class Grower {
 public:
  Grower(const Binned& data, std::span<const double> y, const ForestOptions& options, size_t tree)
      : data_(data),
        y_(y),
        options_(options),
        random_(options.seed, fmt::format("forest tree {}", tree)) {}

  std::vector<Forest::Node> grow() {
    rows_.resize(y_.size());
    for (uint32_t& row : rows_) row = static_cast<uint32_t>(random_.below(y_.size()));
    nodes_.emplace_back();
    split(0, 0, rows_.size(), 0);
    return std::move(nodes_);
  }

 private:
  void split(size_t node, size_t begin, size_t end, size_t depth) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += y_[rows_[i]];
    const double n = static_cast<double>(end - begin);
    nodes_[node].value = sum / n;
    if (depth == options_.depth || end - begin < 2 * options_.leaf) return;

    std::vector<size_t> order(data_.cuts.size());
    std::iota(order.begin(), order.end(), 0);
    random_.shuffle(std::span(order));
    const auto tried = std::max<size_t>(
        1, static_cast<size_t>(std::lround(options_.features * static_cast<double>(order.size()))));
    double best = sum * sum / n * (1 + 1e-12);  // what a split must exceed: sum^2 / n of both sides
    size_t feature = 0, cut = 0;
    bool found = false;
    for (size_t f = 0; f < tried; ++f) {
      const size_t j = order[f];
      double sums[256] = {};
      size_t counts[256] = {};
      for (size_t i = begin; i < end; ++i) {
        const uint8_t b = data_.bin(rows_[i], j);
        sums[b] += y_[rows_[i]];
        ++counts[b];
      }
      double left_sum = 0;
      size_t left = 0;
      for (size_t b = 0; b < data_.cuts[j].size(); ++b) {
        left_sum += sums[b];
        left += counts[b];
        const size_t right = end - begin - left;
        if (left < options_.leaf || right < options_.leaf) continue;
        const double right_sum = sum - left_sum;
        const double gain = left_sum * left_sum / static_cast<double>(left) +
                            right_sum * right_sum / static_cast<double>(right);
        if (gain > best) {
          best = gain;
          feature = j;
          cut = b;
          found = true;
        }
      }
    }
    if (!found) return;
    const auto first = rows_.begin();
    const auto middle = std::stable_partition(
        first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end),
        [&](uint32_t row) { return data_.bin(row, feature) <= cut; });
    const auto at = static_cast<size_t>(middle - first);
    const size_t left = nodes_.size();
    nodes_[node].feature = static_cast<int32_t>(feature);
    nodes_[node].threshold = data_.cuts[feature][cut];
    nodes_[node].left = static_cast<int32_t>(left);
    nodes_.resize(left + 2);
    split(left, begin, at, depth + 1);
    split(left + 1, at, end, depth + 1);
  }

  const Binned& data_;
  std::span<const double> y_;
  const ForestOptions& options_;
  Random random_;
  std::vector<uint32_t> rows_;
  std::vector<Forest::Node> nodes_;
};

}  // namespace

double Forest::predict(std::span<const float> row) const {
  double sum = 0;
  for (const std::vector<Node>& tree : trees) {
    const Node* node = tree.data();
    while (node->feature >= 0) {
      const bool right = row[static_cast<size_t>(node->feature)] > node->threshold;
      node = tree.data() + node->left + (right ? 1 : 0);
    }
    sum += node->value;
  }
  return sum / static_cast<double>(trees.size());
}

Forest fit_forest(ThreadPool& pool, MatView<const float> x, std::span<const double> y,
                  const ForestOptions& options) {
  const Binned data = bin_features(x, options.bins);
  Forest forest;
  forest.trees.resize(options.trees);
  pool.parallel_for(options.trees, [&](size_t tree, int) {
    forest.trees[tree] = Grower(data, y, options, tree).grow();
  });
  return forest;
}

}  // namespace halflin
