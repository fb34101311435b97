#include "halflin/mlp/path.h"

#include <algorithm>
#include <cstring>

#include "halflin/base/error.h"

namespace halflin {

namespace {

double linear_flops(const Linear& linear) {
  return linear.empty() ? 0.0 : 2.0 * static_cast<double>(linear.in() * linear.out());
}

size_t row_bytes(const Operand& x) { return x.cols * (x.is_bf16 ? 2 : 4); }

const unsigned char* row_of(const Operand& x, size_t r) {
  return static_cast<const unsigned char*>(x.data) + r * x.stride * (x.is_bf16 ? 2 : 4);
}

// Rows that one task routes, gathers or scatters.
constexpr size_t kRowsPerTask = 32;

// Routes are gathered into a multiple of this many rows: few different products are compiled, and
// oneDNN computes whole blocks anyway.
constexpr size_t kRouteRows = 16;
size_t padded(size_t rows) { return (rows + kRouteRows - 1) / kRouteRows * kRouteRows; }

// Of one part at most: small ones share out evenly, and their products are hardly slower.
constexpr size_t kPartRows = 64;

template <class Run>
void each_rows(ThreadPool& pool, size_t rows, const Run& run) {
  pool.parallel_for((rows + kRowsPerTask - 1) / kRowsPerTask, [&](size_t task, int) {
    run(task * kRowsPerTask, std::min((task + 1) * kRowsPerTask, rows));
  });
}

// The rows one after the other, and zeros up to `to`'s rows.
void gather(const Operand& x, std::span<const size_t> rows, MutableOperand to) {
  const size_t bytes = row_bytes(x);
  auto* target = static_cast<unsigned char*>(to.data);
  for (const size_t row : rows) {
    std::memcpy(target, row_of(x, row), bytes);
    target += bytes;
  }
  std::memset(target, 0, (to.rows - rows.size()) * bytes);
}

void scatter(MatView<const float> from, std::span<const size_t> rows, bool accumulate,
             MatView<float> to) {
  for (size_t i = 0; i < rows.size(); ++i) {
    float* target = to.row(rows[i]);
    const float* source = from.row(i);
    if (!accumulate) {
      std::copy_n(source, from.cols, target);
      continue;
    }
    for (size_t c = 0; c < from.cols; ++c) target[c] += source[c];
  }
}

// The path that a token takes, of those whose gates have these scores.
size_t first_passed(const MlpPath& path, const float* scores) {
  for (size_t i = 0; i < path.options.size(); ++i) {
    const std::optional<Gate>& gate = path.options[i].gate;
    if (!gate || scores[i] > gate->threshold) return i + 1;
  }
  return 0;
}

}  // namespace

size_t choose_route(const MlpPath& path, const float* x) {
  for (size_t i = 0; i < path.options.size(); ++i) {
    const std::optional<Gate>& gate = path.options[i].gate;
    if (!gate || gate_score(*gate, x) > gate->threshold) return i + 1;
  }
  return 0;
}

double path_flops(const Mlp& mlp) {
  return linear_flops(mlp.gate) + linear_flops(mlp.up) + linear_flops(mlp.down);
}

double path_flops(const CheapPath& path) {
  return linear_flops(path.affine) + linear_flops(path.low_rank_in) +
         linear_flops(path.low_rank_out) + (path.narrow ? path_flops(*path.narrow) : 0.0);
}

MlpScratch::MlpScratch(Precision precision, size_t rows, size_t d_model, size_t d_mlp, bool gated)
    : hidden(precision, padded(rows), std::max(d_mlp, d_model)),
      up(gated ? padded(rows) : 0, d_mlp) {}

MutableOperand mlp_neurons(ThreadPool& pool, const Mlp& mlp, Operand x, MlpScratch& scratch) {
  const MutableOperand hidden = scratch.hidden.view(x.rows, mlp.up.out());
  if (mlp.gate.empty()) {
    mlp.up.forward(pool, x, hidden, {.activation = mlp.activation});
    return hidden;
  }
  const MatView<float> up(scratch.up.data(), x.rows, mlp.up.out());
  mlp.up.forward(pool, x, up);
  mlp.gate.forward(pool, x, hidden,
                   {.activation = mlp.activation, .factor = up.data, .factor_stride = up.stride});
  return hidden;
}

void apply_mlp(ThreadPool& pool, const Mlp& mlp, Operand x, bool accumulate, MatView<float> y,
               MlpScratch& scratch) {
  mlp.down.forward(pool, mlp_neurons(pool, mlp, x, scratch), y, {.accumulate = accumulate});
}

void apply_cheap(ThreadPool& pool, const CheapPath& path, Operand x, bool accumulate,
                 MatView<float> y, MlpScratch& scratch) {
  if (!path.affine.empty()) {
    path.affine.forward(pool, x, y, {.accumulate = accumulate});
    accumulate = true;
  }
  if (!path.low_rank_in.empty()) {
    const MutableOperand inner = scratch.hidden.view(x.rows, path.low_rank_in.out());
    path.low_rank_in.forward(pool, x, inner);
    path.low_rank_out.forward(pool, inner, y, {.accumulate = accumulate});
    accumulate = true;
  }
  if (path.narrow) {
    apply_mlp(pool, *path.narrow, x, accumulate, y, scratch);
    accumulate = true;
  }
  if (accumulate && path.constant.empty()) return;
  each_rows(pool, x.rows, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      float* row = y.row(t);
      if (!accumulate) std::fill_n(row, y.cols, 0.f);
      for (size_t c = 0; c < path.constant.size(); ++c) row[c] += path.constant[c];
    }
  });
}

void choose_routes(ThreadPool& pool, const MlpPath& path, Operand x, std::span<uint8_t> routes) {
  if (path.options.empty() || !path.options.front().gate) {
    return std::fill(routes.begin(), routes.end(), static_cast<uint8_t>(!path.options.empty()));
  }
  std::vector<const Gate*> gates;
  for (const PathOption& option : path.options) {
    if (option.gate) gates.push_back(&*option.gate);
  }
  each_rows(pool, x.rows, [&](size_t begin, size_t end) {
    Matrix<float> scores(end - begin, gates.size());
    score_rows(gates, x.row_range(begin, end - begin), scores.view());
    for (size_t t = begin; t < end; ++t) {
      routes[t] = static_cast<uint8_t>(first_passed(path, scores.row(t - begin)));
    }
  });
}

void apply_routes(ThreadPool& pool, const Mlp& mlp, const MlpPath& path, Operand x,
                  std::span<const uint8_t> routes, bool accumulate, MatView<float> y,
                  MlpScratch& scratch) {
  const auto run = [&](size_t way, Operand in, bool add, MatView<float> out, MlpScratch& buffers) {
    if (way == 0) return apply_mlp(pool, mlp, in, add, out, buffers);
    apply_cheap(pool, *path.options[way - 1].path, in, add, out, buffers);
  };
  const size_t ways = path.options.size() + 1;
  scratch.routes.resize(std::max(scratch.routes.size(), ways));
  for (std::vector<size_t>& rows : scratch.routes) rows.clear();
  for (size_t t = 0; t < x.rows; ++t) scratch.routes[routes[t]].push_back(t);

  // Parts by the number of rows alone, so that threads do not change results; the dearest first.
  struct Part {
    size_t way;
    std::span<const size_t> rows;
  };
  std::vector<Part> parts;
  for (size_t i = 0; i < ways; ++i) {
    const size_t way = (ways - i) % ways;
    const std::span<const size_t> rows = scratch.routes[way];
    if (rows.empty()) continue;
    if (rows.size() == x.rows) return run(way, x, accumulate, y, scratch);
    const size_t most = std::min(rows_of_block(x.rows), kPartRows);
    const size_t count = (rows.size() + most - 1) / most;
    const size_t size = padded((rows.size() + count - 1) / count);
    for (size_t begin = 0; begin < rows.size(); begin += size) {
      parts.push_back({way, rows.subspan(begin, std::min(size, rows.size() - begin))});
    }
  }
  scratch.routed.resize(std::max(scratch.routed.size(), static_cast<size_t>(pool.size())));
  pool.parallel_for(parts.size(), [&](size_t p, int worker) {
    const auto& [way, rows] = parts[p];
    RouteScratch& buffers = scratch.routed[static_cast<size_t>(worker)];
    if (buffers.outputs.empty()) {
      const Precision precision = mlp.up.precision();
      buffers = {{precision, kRowBlock, x.cols, mlp.up.out(), !mlp.gate.empty()},
                 {precision, kRowBlock, x.cols},
                 {kRowBlock, x.cols}};
    }
    const MutableOperand inputs = buffers.inputs.view(padded(rows.size()), x.cols);
    const MatView<float> outputs(buffers.outputs.data(), inputs.rows, y.cols);
    gather(x, rows, inputs);
    run(way, inputs, false, outputs, buffers.mlp);
    scatter(outputs, rows, accumulate, y);
  });
}

void apply_path(ThreadPool& pool, const Mlp& mlp, const MlpPath& path, Operand x, bool accumulate,
                MatView<float> y, MlpScratch& scratch, std::span<uint8_t> route) {
  if (route.empty()) {
    scratch.chosen.resize(x.rows);
    route = scratch.chosen;
  }
  choose_routes(pool, path, x, route);
  apply_routes(pool, mlp, path, x, route, accumulate, y, scratch);
}

}  // namespace halflin
