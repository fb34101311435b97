#include "halflin/mlp/logistic.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "halflin/base/error.h"
#include "halflin/ops/products.h"

namespace halflin {
namespace {

constexpr size_t kRowsPerTask = 512;
constexpr size_t kMemory = 10;  // pairs that L-BFGS remembers
constexpr int kMostPasses = 2000;
// Stop when g^T H g, about twice what is left to gain in the objective, is this fraction of it.
constexpr double kTolerance = 1e-20;

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Eight sums run side by side, so that the compiler may use vectors without reordering anything.
template <class T>
double dot_row(const T* x, const double* u, size_t d) {
  double sum[8] = {};
  size_t j = 0;
  for (; j + 8 <= d; j += 8) {
    for (size_t k = 0; k < 8; ++k) sum[k] += static_cast<double>(x[j + k]) * u[j + k];
  }
  for (; j < d; ++j) sum[0] += static_cast<double>(x[j]) * u[j];
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

// sum += r0 x0 + r1 x1 + r2 x2 + r3 x3; four rows a pass save three quarters of the sums' traffic.
template <class T>
void add_rows(const T* const x[4], const double r[4], double* sum, size_t d) {
  for (size_t j = 0; j < d; ++j) {
    sum[j] += (r[0] * static_cast<double>(x[0][j]) + r[1] * static_cast<double>(x[1][j])) +
              (r[2] * static_cast<double>(x[2][j]) + r[3] * static_cast<double>(x[3][j]));
  }
}

// log(1 + exp(s)) - label s, and its derivative, without overflow.
double log_loss(double s, bool label, double& derivative) {
  const double e = std::exp(-std::abs(s));
  const double sigmoid = s >= 0 ? 1 / (1 + e) : e / (1 + e);
  derivative = sigmoid - (label ? 1 : 0);
  return std::max(s, 0.0) + std::log1p(e) - (label ? s : 0);
}

// The objective and its gradient at parameters [w, intercept], z = (x - mean) / scale.
template <class T>
class Objective {
 public:
  Objective(ThreadPool& pool, MatView<const T> x, std::span<const int8_t> label,
            std::span<const double> mean, std::span<const double> scale, double c)
      : pool_(pool), x_(x), label_(label), mean_(mean), scale_(scale), c_(c) {
    partial_ = Matrix<double>((x.rows + kRowsPerTask - 1) / kRowsPerTask, x.cols + 2);
  }

  // `gradient` is [d + 1].
  double operator()(std::span<const double> at, std::span<double> gradient) {
    const size_t d = x_.cols;
    // score = z w + b = x u + offset: standardising moves into the weights.
    std::vector<double> u(d);
    double offset = at[d];
    for (size_t j = 0; j < d; ++j) {
      u[j] = at[j] / scale_[j];
      offset -= mean_[j] * u[j];
    }
    pool_.parallel_for(partial_.rows(), [&](size_t task, int) {
      double* sums = partial_.row(task);  // [d] sum of r x, then sum of r, then loss
      std::fill_n(sums, d + 2, 0.0);
      const size_t end = std::min(x_.rows, (task + 1) * kRowsPerTask);
      const T* rows[4];
      double residual[4];
      size_t held = 0;
      for (size_t t = task * kRowsPerTask; t < end; ++t) {
        if (label_[t] < 0) continue;
        rows[held] = x_.row(t);
        const double score = dot_row(rows[held], u.data(), d) + offset;
        sums[d + 1] += log_loss(score, label_[t] != 0, residual[held]);
        sums[d] += residual[held];
        if (++held == 4) {
          add_rows(rows, residual, sums, d);
          held = 0;
        }
      }
      if (held == 0) return;
      for (size_t k = held; k < 4; ++k) {
        rows[k] = rows[0];
        residual[k] = 0;
      }
      add_rows(rows, residual, sums, d);
    });
    std::fill(gradient.begin(), gradient.end(), 0.0);
    double loss = 0;
    for (size_t task = 0; task < partial_.rows(); ++task) {
      const double* sums = partial_.row(task);
      for (size_t j = 0; j <= d; ++j) gradient[j] += sums[j];
      loss += sums[d + 1];
    }
    double penalty = 0;
    for (size_t j = 0; j < d; ++j) {
      gradient[j] = c_ * (gradient[j] - mean_[j] * gradient[d]) / scale_[j] + at[j];
      penalty += at[j] * at[j];
    }
    gradient[d] *= c_;
    return c_ * loss + 0.5 * penalty;
  }

 private:
  ThreadPool& pool_;
  MatView<const T> x_;
  std::span<const int8_t> label_;
  std::span<const double> mean_;
  std::span<const double> scale_;
  double c_;
  Matrix<double> partial_;
};

// The inverse of the Hessian's bound C/4 [Z 1]^T [Z 1] + I, applied in place. Z is nearly centred,
// so the intercept is taken apart.
class Preconditioner {
 public:
  Preconditioner(ThreadPool& pool, MatView<const double> gram, double n, double c)
      : pool_(pool), intercept_(1 / (0.25 * c * n)) {
    Matrix<double> bound(gram.rows, gram.cols);
    for (size_t i = 0; i < gram.rows; ++i) {
      for (size_t j = 0; j < gram.cols; ++j) bound(i, j) = 0.25 * c * gram(i, j);
    }
    factor_ = factor_spd(bound.view(), 1.0);
  }

  void apply(std::span<double> v) const {
    solve_in_place(pool_, factor_, {v.data(), v.size() - 1, 1});
    v.back() *= intercept_;
  }

 private:
  ThreadPool& pool_;
  SpdFactor factor_;
  double intercept_;
};

struct Pair {
  std::vector<double> step;
  std::vector<double> change;  // of the gradient
  double inverse_product;      // 1 / step . change
};

// -H gradient by the two-loop recursion (Nocedal and Wright, algorithm 7.4).
std::vector<double> direction(const std::deque<Pair>& pairs, std::span<const double> gradient,
                              const Preconditioner& precondition, double scale) {
  std::vector<double> q(gradient.begin(), gradient.end());
  std::vector<double> alpha(pairs.size());
  for (size_t i = pairs.size(); i-- > 0;) {
    alpha[i] = pairs[i].inverse_product * dot(pairs[i].step, q);
    for (size_t j = 0; j < q.size(); ++j) q[j] -= alpha[i] * pairs[i].change[j];
  }
  precondition.apply(q);
  for (double& v : q) v *= scale;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const double beta = pairs[i].inverse_product * dot(pairs[i].change, q);
    for (size_t j = 0; j < q.size(); ++j) q[j] += (alpha[i] - beta) * pairs[i].step[j];
  }
  for (double& v : q) v = -v;
  return q;
}

template <class T>
Logistic minimise(Objective<T> objective, const Preconditioner& precondition, size_t d,
                  double intercept) {
  std::vector<double> at(d + 1, 0.0);
  at[d] = intercept;
  std::vector<double> gradient(d + 1), next(d + 1), next_gradient(d + 1), scaled;
  Logistic out;
  double value = objective(at, gradient);
  out.passes = 1;
  if (!std::isfinite(value)) fail("logistic regression: the inputs hold NaN or Inf");
  std::deque<Pair> pairs;
  double scale = 1;
  while (out.passes < kMostPasses) {
    scaled = gradient;
    precondition.apply(scaled);
    if (dot(gradient, scaled) <= kTolerance * value) {
      out.converged = true;
      break;
    }
    const std::vector<double> d_k = direction(pairs, gradient, precondition, scale);
    const double slope = dot(gradient, d_k);
    // The problem is convex and the curvature bounded, so the full step nearly always serves. The
    // slack lets the last steps pass, whose gain is below the rounding of the objective.
    double next_value = 0;
    bool found = false;
    for (double step = 1; step > 1e-10; step *= 0.5) {
      for (size_t j = 0; j <= d; ++j) next[j] = at[j] + step * d_k[j];
      next_value = objective(next, next_gradient);
      ++out.passes;
      if (next_value <= value + 1e-4 * step * slope + 1e-14 * std::abs(value)) {
        found = true;
        break;
      }
    }
    if (!found) break;
    Pair pair{std::vector<double>(d + 1), std::vector<double>(d + 1), 0};
    for (size_t j = 0; j <= d; ++j) {
      pair.step[j] = next[j] - at[j];
      pair.change[j] = next_gradient[j] - gradient[j];
    }
    const double product = dot(pair.step, pair.change);
    scaled = pair.change;
    precondition.apply(scaled);
    const double size = dot(pair.change, scaled);
    std::swap(at, next);
    std::swap(gradient, next_gradient);
    value = next_value;
    if (!(product > 0) || !(size > 0)) {
      // Nothing but rounding is left between two gradients.
      break;
    }
    scale = product / size;
    pair.inverse_product = 1 / product;
    pairs.push_back(std::move(pair));
    if (pairs.size() > kMemory) pairs.pop_front();
  }
  // Steps that end in rounding have converged too, where the gradient says so less strictly.
  scaled = gradient;
  precondition.apply(scaled);
  out.converged = out.converged || dot(gradient, scaled) <= 1e-12 * value;
  out.weight.assign(at.begin(), at.end() - 1);
  out.intercept = at[d];
  out.objective = value;
  return out;
}

// Counts both classes; the intercept to start from is the log odds.
struct Classes {
  size_t used = 0;
  double log_odds = 0;
};
Classes count_classes(std::span<const int8_t> label, size_t rows, double c) {
  if (label.size() != rows) {
    fail("logistic regression: {} rows but {} labels", rows, label.size());
  }
  if (!(c > 0) || !std::isfinite(c)) {
    fail("logistic regression: expected C above 0, found {}", c);
  }
  size_t ones = 0, zeros = 0;
  for (const int8_t l : label) {
    ones += l > 0;
    zeros += l == 0;
  }
  if (ones == 0 || zeros == 0) fail("logistic regression: only one class among the labels");
  return {ones + zeros, std::log(static_cast<double>(ones) / static_cast<double>(zeros))};
}

}  // namespace

Logistic fit_logistic(ThreadPool& pool, MatView<const float> x, std::span<const int8_t> label,
                      const Standardized& standard, double c) {
  const Classes classes = count_classes(label, x.rows, c);
  if (standard.mean.size() != x.cols) {
    fail("logistic regression: expected {} features, found {}", standard.mean.size(), x.cols);
  }
  const Preconditioner precondition(pool, standard.gram.view(), static_cast<double>(classes.used),
                                    c);
  return minimise(Objective<float>(pool, x, label, standard.mean, standard.scale, c), precondition,
                  x.cols, classes.log_odds);
}

Logistic fit_logistic(ThreadPool& pool, MatView<const double> z, std::span<const int8_t> label,
                      double c) {
  const Classes classes = count_classes(label, z.rows, c);
  // Second moments about 0, of the rows that take part.
  Matrix<double> used(classes.used, z.cols);
  size_t r = 0;
  for (size_t t = 0; t < z.rows; ++t) {
    if (label[t] >= 0) std::copy_n(z.row(t), z.cols, used.row(r++));
  }
  Matrix<double> gram(z.cols, z.cols);
  accumulate_products(pool, used.view(), used.view(), gram.view());
  const Preconditioner precondition(pool, gram.view(), static_cast<double>(classes.used), c);
  const std::vector<double> zero(z.cols, 0.0), one(z.cols, 1.0);
  return minimise(Objective<double>(pool, z, label, zero, one, c), precondition, z.cols,
                  classes.log_odds);
}

}  // namespace halflin
