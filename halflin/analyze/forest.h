// A random forest for regression (Breiman, 2001): the nonlinear, gradient-free regressor that asks
// whether surface features say more of delta than a line can.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"

namespace halflin {

struct ForestOptions {
  size_t trees = 100;
  size_t depth = 8;       // most splits above a leaf
  size_t leaf = 50;       // fewest rows in a leaf: delta is mostly noise
  size_t bins = 32;       // thresholds tried are the features' quantiles
  double features = 0.5;  // share of the features tried at a split
  uint64_t seed = 0;
};

// Each tree is grown on rows drawn with replacement; a split is the one that lowers the squared
// error most (of equals, the first). The same bits for any number of threads.
struct Forest {
  struct Node {
    int32_t feature = -1;  // -1: a leaf
    float threshold = 0;   // to the left where the feature is <= it
    int32_t left = 0;      // the right child follows it
    double value = 0;
  };
  std::vector<std::vector<Node>> trees;

  double predict(std::span<const float> row) const;  // the mean of the trees
};

// x [T, k], y [T], both finite.
Forest fit_forest(ThreadPool& pool, MatView<const float> x, std::span<const double> y,
                  const ForestOptions& options);

}  // namespace halflin
