// L2-penalised logistic regression, solved exactly: the gates of arXiv 2603.03459.
//
// Minimises scikit-learn's objective, 1/2 |w|^2 + C sum of log-losses, the intercept unpenalised,
// by L-BFGS in float64. The first guess of the inverse Hessian is not a multiple of the identity
// but (C/4 Z^T Z + I)^-1, the bound of Boehning and Lindsay (1988): activations are so correlated
// that the plain method takes hundreds of passes over the data where this one takes about ten.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/base/threads.h"
#include "halflin/mlp/least_squares.h"

namespace halflin {

struct Logistic {
  std::vector<double> weight;  // [d] on standardised features
  double intercept = 0;
  double objective = 0;  // at the solution
  int passes = 0;        // over the data
  bool converged = false;
};

// Rows x [T, d], standardised on the fly (x is read, never copied); label[t] is 1, 0, or -1 for a
// row to leave out. `standard` must be of the rows that take part. Both classes must occur.
// Bit-identical for any number of threads. Throws Error on shapes, one class, NaN or Inf.
Logistic fit_logistic(ThreadPool& pool, MatView<const float> x, std::span<const int8_t> label,
                      const Standardized& standard, double c = 1.0);

// The same on features taken as they are (mean 0, scale 1 assumed nowhere).
Logistic fit_logistic(ThreadPool& pool, MatView<const double> z, std::span<const int8_t> label,
                      double c = 1.0);

}  // namespace halflin
