#include "halflin/ops/dense.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "halflin/base/error.h"
#include "halflin/ops/onednn.h"

namespace halflin {

namespace {

using dnnl::memory;

// A factor of a product: element (r, c) is at data[r * row + c * col]. One of the two steps is 1.
struct Factor {
  const void* data;
  bool is_bf16;
  size_t row;
  size_t col;

  const void* at(size_t r, size_t c) const {
    return static_cast<const unsigned char*>(data) + (r * row + c * col) * (is_bf16 ? 2 : 4);
  }
};
Factor plain(const Operand& m) { return {m.data, m.is_bf16, m.stride, 1}; }
Factor transposed(const Operand& m) { return {m.data, m.is_bf16, 1, m.stride}; }

// Everything that a compiled product depends on.
struct PlanKey {
  size_t m, n, k;
  size_t a_row, a_col, b_row, b_col, c_row;
  bool is_bf16, has_bias, accumulate;
  bool operator==(const PlanKey&) const = default;
};

struct PlanHash {
  size_t operator()(const PlanKey& key) const {
    size_t hash = 0xcbf29ce484222325u;
    for (const size_t v :
         {key.m, key.n, key.k, key.a_row, key.a_col, key.b_row, key.b_col, key.c_row,
          size_t{key.is_bf16}, size_t{key.has_bias}, size_t{key.accumulate}}) {
      hash = (hash ^ v) * 0x100000001b3u;
    }
    return hash ^ (hash >> 32);
  }
};

struct Plan {
  memory::desc a, b, c, bias;
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
};

std::shared_ptr<const Plan> make_plan(const PlanKey& key) {
  const auto dim = [](size_t v) { return static_cast<memory::dim>(v); };
  const auto matrix = [&](size_t rows, size_t cols, size_t row, size_t col) {
    return memory::desc({dim(rows), dim(cols)}, type_of(key.is_bf16),
                        memory::dims{dim(row), dim(col)});
  };
  onednn_thread();  // before oneDNN asks how many threads a product may use: one
  auto plan = std::make_shared<Plan>();
  plan->a = matrix(key.m, key.k, key.a_row, key.a_col);
  plan->b = matrix(key.k, key.n, key.b_row, key.b_col);
  plan->c = rows_desc(key.m, key.n, key.c_row, false);
  plan->bias = rows_desc(1, key.n, key.n, false);
  dnnl::primitive_attr attr;
  dnnl::post_ops ops;
  if (key.accumulate) ops.append_sum(1.f);
  attr.set_post_ops(ops);
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  plan->desc =
      key.has_bias
          ? dnnl::matmul::primitive_desc(cpu_engine(), plan->a, plan->b, plan->bias, plan->c, attr)
          : dnnl::matmul::primitive_desc(cpu_engine(), plan->a, plan->b, plan->c, attr);
#else
  const dnnl::matmul::desc desc = key.has_bias
                                      ? dnnl::matmul::desc(plan->a, plan->b, plan->bias, plan->c)
                                      : dnnl::matmul::desc(plan->a, plan->b, plan->c);
  plan->desc = dnnl::matmul::primitive_desc(desc, attr, cpu_engine());
#endif
  plan->primitive = dnnl::matmul(plan->desc);
  return plan;
}

// Compiled products are kept: making one costs more than running a small one.
std::shared_ptr<const Plan> find_plan(const PlanKey& key) {
  static std::shared_mutex mutex;
  static std::unordered_map<PlanKey, std::shared_ptr<const Plan>, PlanHash> plans;
  constexpr size_t kMost = 4096;  // where row counts vary without end, begin anew
  {
    const std::shared_lock lock(mutex);
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;
  }
  std::shared_ptr<const Plan> plan = make_plan(key);
  const std::unique_lock lock(mutex);
  if (plans.size() >= kMost) plans.clear();
  return plans.emplace(key, std::move(plan)).first->second;
}

size_t ceil_div(size_t n, size_t by) { return (n + by - 1) / by; }

// Tiles of about `target`: a multiple of four of them, so that they share out evenly over a few
// threads, and whole vectors wide.
size_t tile_size(size_t total, size_t target) {
  const size_t tiles = ceil_div(ceil_div(total, target), 4) * 4;
  return std::max<size_t>(ceil_div(ceil_div(total, tiles), 16) * 16, 32);
}

// A last tile of one row or column joins the one before it: oneDNN 3 takes the strides of matrices
// of one row or column for others.
size_t count_tiles(size_t total, size_t tile) {
  return total > tile && total % tile == 1 ? total / tile : ceil_div(total, tile);
}

// c [m, n] (+)= a [m, k] b [k, n] + bias.
void product(ThreadPool& pool, Factor a, Factor b, size_t k, std::span<const float> bias,
             bool accumulate, MatView<float> c, size_t tile_m, size_t tile_n) {
  if (c.rows == 0 || c.cols == 0) return;
  if (a.is_bf16 != b.is_bf16) fail("a product of float32 and bfloat16");
  const size_t tiles_m = count_tiles(c.rows, tile_m);
  const size_t tiles_n = count_tiles(c.cols, tile_n);
  pool.parallel_for(tiles_m * tiles_n, [&](size_t task, int) {
    const size_t row = task / tiles_n, col = task % tiles_n;
    const size_t i = row * tile_m;
    const size_t j = col * tile_n;
    const size_t m = row + 1 == tiles_m ? c.rows - i : tile_m;
    const size_t n = col + 1 == tiles_n ? c.cols - j : tile_n;
    const std::shared_ptr<const Plan> plan = find_plan(
        {m, n, k, a.row, a.col, b.row, b.col, c.stride, a.is_bf16, !bias.empty(), accumulate});
    OneDnnThread& thread = onednn_thread();
    const memory::desc scratch = plan->desc.scratchpad_desc();
    std::unordered_map<int, memory> args{
        {DNNL_ARG_SRC, wrap(plan->a, a.at(i, 0))},
        {DNNL_ARG_WEIGHTS, wrap(plan->b, b.at(0, j))},
        {DNNL_ARG_DST, wrap(plan->c, c.row(i) + j)},
        {DNNL_ARG_SCRATCHPAD, wrap(scratch, thread.scratch_of(scratch.get_size()))}};
    if (!bias.empty()) args.emplace(DNNL_ARG_BIAS, wrap(plan->bias, bias.data() + j));
    plan->primitive.execute(thread.stream, args);
    thread.stream.wait();
  });
}

void check(bool same, const char* what, const Operand& a, const Operand& b, MatView<float> c) {
  if (same) return;
  fail("{} of [{}, {}] and [{}, {}] into [{}, {}]", what, a.rows, a.cols, b.rows, b.cols, c.rows,
       c.cols);
}

}  // namespace

// Rows of a tile: enough to make the copy of the other factor cheap, few enough for the L2 cache.
constexpr size_t kTileRows = 512;
constexpr size_t kTileCols = 192;

void dense_forward(ThreadPool& pool, Operand x, Operand w, std::span<const float> bias,
                   bool accumulate, MatView<float> y) {
  check(x.cols == w.cols && y.rows == x.rows && y.cols == w.rows &&
            (bias.empty() || bias.size() == w.rows),
        "dense layer", x, w, y);
  product(pool, plain(x), transposed(w), x.cols, bias, accumulate, y, kTileRows,
          tile_size(y.cols, kTileCols));
}

void dense_input_gradient(ThreadPool& pool, Operand dy, Operand w, bool accumulate,
                          MatView<float> dx) {
  check(dy.cols == w.rows && dx.rows == dy.rows && dx.cols == w.cols, "input gradient", dy, w, dx);
  product(pool, plain(dy), plain(w), w.rows, {}, accumulate, dx, kTileRows,
          tile_size(dx.cols, kTileCols));
}

void dense_weight_gradient(ThreadPool& pool, Operand dy, Operand x, MatView<float> dw) {
  check(dy.rows == x.rows && dw.rows == dy.cols && dw.cols == x.cols, "weight gradient", dy, x, dw);
  if (x.rows == 0) return;
  product(pool, transposed(dy), plain(x), x.rows, {}, /*accumulate=*/true, dw,
          tile_size(dw.rows, kTileCols), 3 * kTileCols);
}

void add_column_sums(ThreadPool& pool, MatView<const float> dy, std::span<float> db) {
  if (dy.cols != db.size()) fail("column sums of {} columns into {}", dy.cols, db.size());
  constexpr size_t kWidth = 64;
  pool.parallel_for(ceil_div(dy.cols, kWidth), [&](size_t task, int) {
    const size_t begin = task * kWidth;
    const size_t width = std::min(kWidth, dy.cols - begin);
    float sums[kWidth] = {};
    for (size_t t = 0; t < dy.rows; ++t) {
      const float* row = dy.row(t) + begin;
      if (width == kWidth) {  // a constant trip count: the sums stay in registers
        for (size_t i = 0; i < kWidth; ++i) sums[i] += row[i];
      } else {
        for (size_t i = 0; i < width; ++i) sums[i] += row[i];
      }
    }
    for (size_t i = 0; i < width; ++i) db[begin + i] += sums[i];
  });
}

void convert(ThreadPool& pool, MatView<const float> from, MutableOperand to) {
  constexpr size_t kElements = 1u << 16;
  const size_t rows = std::max<size_t>(kElements / std::max<size_t>(from.cols, 1), 1);
  pool.parallel_for(ceil_div(from.rows, rows), [&](size_t task, int) {
    const size_t begin = task * rows;
    const size_t count = std::min(rows, from.rows - begin);
    convert(from.row_range(begin, count), to.row_range(begin, count));
  });
}

}  // namespace halflin
