#include "halflin/ops/linear.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>

#include "halflin/base/error.h"
#include "halflin/ops/onednn.h"

namespace halflin {

namespace {

using dnnl::memory;

dnnl::algorithm algorithm_of(Activation activation) {
  switch (activation) {
    case Activation::kGeluErf:
      return dnnl::algorithm::eltwise_gelu_erf;
    case Activation::kGeluTanh:
      return dnnl::algorithm::eltwise_gelu_tanh;
    case Activation::kSilu:
      return dnnl::algorithm::eltwise_swish;
    case Activation::kRelu:
      return dnnl::algorithm::eltwise_relu;
    case Activation::kNone:
      break;
  }
  fail("no activation to apply");
}

// What a compiled product depends on, weights apart.
struct PlanKey {
  size_t rows, x_stride, y_stride, factor_stride;
  bool y_is_bf16, has_factor, accumulate;
  Activation activation;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 errs
  auto operator<=>(const PlanKey&) const = default;
};

struct Plan {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
  memory::desc x, y, factor;
  size_t scratch_bytes = 0;
  int factor_arg = 0;
};

dnnl::primitive_attr attributes(const PlanKey& key, const memory::desc& factor, int* factor_arg) {
  dnnl::post_ops ops;
  if (key.activation != Activation::kNone) {
    const float alpha = key.activation == Activation::kSilu ? 1.f : 0.f;
#if DNNL_VERSION_MAJOR >= 3
    ops.append_eltwise(algorithm_of(key.activation), alpha, 0.f);
#else
    ops.append_eltwise(1.f, algorithm_of(key.activation), alpha, 0.f);
#endif
  }
  if (key.has_factor) {
    *factor_arg = DNNL_ARG_ATTR_MULTIPLE_POST_OP(ops.len()) | DNNL_ARG_SRC_1;
    ops.append_binary(dnnl::algorithm::binary_mul, factor);
  }
  if (key.accumulate) ops.append_sum(1.f);
  dnnl::primitive_attr attr;
  attr.set_post_ops(ops);
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

}  // namespace

struct Linear::State {
  size_t in = 0;
  size_t out = 0;
  Precision precision = Precision::kF32;
  bool is_bf16 = false;  // operands and packed weights
  Matrix<float> bias;    // [1, out] or empty
  Matrix<unsigned char> packed;
  memory::desc packed_desc;
  std::shared_mutex mutex;
  std::map<PlanKey, Plan> plans;

  Plan make_plan(const PlanKey& key, const memory::desc& weights) const {
    onednn_thread();  // before oneDNN asks how many threads a product may use: one
    Plan plan;
    plan.x = rows_desc(key.rows, in, key.x_stride, is_bf16);
    plan.y = rows_desc(key.rows, out, key.y_stride, key.y_is_bf16);
    if (key.has_factor) plan.factor = rows_desc(key.rows, out, key.factor_stride, false);
    const dnnl::primitive_attr attr = attributes(key, plan.factor, &plan.factor_arg);
    const memory::desc bias_desc = rows_desc(1, out, out, false);
    const bool has_bias = !bias.empty();
#if DNNL_VERSION_MAJOR >= 3
    plan.desc =
        has_bias
            ? dnnl::matmul::primitive_desc(cpu_engine(), plan.x, weights, bias_desc, plan.y, attr)
            : dnnl::matmul::primitive_desc(cpu_engine(), plan.x, weights, plan.y, attr);
#else
    const dnnl::matmul::desc desc = has_bias
                                        ? dnnl::matmul::desc(plan.x, weights, bias_desc, plan.y)
                                        : dnnl::matmul::desc(plan.x, weights, plan.y);
    plan.desc = dnnl::matmul::primitive_desc(desc, attr, cpu_engine());
#endif
    plan.primitive = dnnl::matmul(plan.desc);
    plan.scratch_bytes = plan.desc.scratchpad_desc().get_size();
    return plan;
  }

  const Plan& plan(const PlanKey& key) {
    {
      const std::shared_lock lock(mutex);
      const auto found = plans.find(key);
      if (found != plans.end()) return found->second;
    }
    const std::unique_lock lock(mutex);
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;
    return plans.emplace(key, make_plan(key, packed_desc)).first->second;
  }

  void run_block(Operand x, MutableOperand y, const Epilogue& epilogue) {
    const PlanKey key{x.rows,
                      x.stride,
                      y.stride,
                      epilogue.factor_stride,
                      y.is_bf16,
                      epilogue.factor != nullptr,
                      epilogue.accumulate,
                      epilogue.activation};
    const Plan& p = plan(key);
    OneDnnThread& thread = onednn_thread();
    std::unordered_map<int, memory> args{
        {DNNL_ARG_SRC, wrap(p.x, x.data)},
        {DNNL_ARG_WEIGHTS, wrap(packed_desc, packed.data())},
        {DNNL_ARG_DST, wrap(p.y, y.data)},
        {DNNL_ARG_SCRATCHPAD, wrap(p.desc.scratchpad_desc(), thread.scratch_of(p.scratch_bytes))}};
    if (!bias.empty()) {
      args.emplace(DNNL_ARG_BIAS, wrap(rows_desc(1, out, out, false), bias.data()));
    }
    if (key.has_factor) args.emplace(p.factor_arg, wrap(p.factor, epilogue.factor));
    p.primitive.execute(thread.stream, args);
    thread.stream.wait();
  }
};

bool has_native_bf16() {
  static const bool native = [] {
    try {
      const memory::desc square({16, 16}, memory::data_type::bf16, memory::format_tag::ab);
      const memory::desc sums({16, 16}, memory::data_type::f32, memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
      const dnnl::matmul::primitive_desc desc(cpu_engine(), square, square, sums);
#else
      const dnnl::matmul::primitive_desc desc({square, square, sums}, cpu_engine());
#endif
      return std::strstr(desc.impl_info_str(), "ref") == nullptr;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return native;
}

Operand Operand::row_range(size_t begin, size_t count) const {
  Operand part = *this;
  part.data = static_cast<const unsigned char*>(data) + begin * stride * (is_bf16 ? 2 : 4);
  part.rows = count;
  return part;
}

MutableOperand::operator Operand() const {
  Operand operand;
  operand.data = data;
  operand.is_bf16 = is_bf16;
  operand.rows = rows;
  operand.cols = cols;
  operand.stride = stride;
  return operand;
}

MutableOperand MutableOperand::row_range(size_t begin, size_t count) const {
  MutableOperand part = *this;
  part.data = static_cast<unsigned char*>(data) + begin * stride * (is_bf16 ? 2 : 4);
  part.rows = count;
  return part;
}

OperandBuffer::OperandBuffer(Precision precision, size_t rows, size_t cols)
    : is_bf16_(precision == Precision::kBF16 && has_native_bf16()),
      bytes_(rows, cols * (is_bf16_ ? 2 : 4)) {}

MutableOperand OperandBuffer::view(size_t rows, size_t cols) {
  MutableOperand operand;
  operand.data = bytes_.data();
  operand.is_bf16 = is_bf16_;
  operand.rows = rows;
  operand.cols = cols;
  operand.stride = cols;
  return operand;
}

Linear::Linear(MatView<const float> weight, bool in_by_out, std::span<const float> bias,
               Precision precision)
    : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.in = in_by_out ? weight.rows : weight.cols;
  s.out = in_by_out ? weight.cols : weight.rows;
  s.precision = precision;
  s.is_bf16 = precision == Precision::kBF16 && has_native_bf16();
  if (!bias.empty()) {
    if (bias.size() != s.out) fail("a bias of {} for a layer of {} outputs", bias.size(), s.out);
    s.bias = Matrix<float>(1, s.out);
    std::copy(bias.begin(), bias.end(), s.bias.data());
  }
  // bfloat16 without hardware for it: round the weights, then go on in float32.
  Matrix<float> rounded;
  if (precision == Precision::kBF16 && !s.is_bf16) {
    rounded = Matrix<float>(weight.rows, weight.cols);
    for (size_t r = 0; r < weight.rows; ++r) {
      for (size_t c = 0; c < weight.cols; ++c) rounded(r, c) = to_float(to_bf16(weight(r, c)));
    }
    weight = rounded.view();
  }
  const auto dim = [](size_t n) { return static_cast<memory::dim>(n); };
  const PlanKey block{kRowBlock, s.in, s.out, 0, false, false, false, Activation::kNone};
  const memory::desc any({dim(s.in), dim(s.out)}, type_of(s.is_bf16), memory::format_tag::any);
  s.packed_desc = s.make_plan(block, any).desc.weights_desc();
  s.packed = Matrix<unsigned char>(1, s.packed_desc.get_size());

  const memory::dims strides =
      in_by_out ? memory::dims{dim(weight.stride), 1} : memory::dims{1, dim(weight.stride)};
  const memory::desc plain({dim(s.in), dim(s.out)}, memory::data_type::f32, strides);
  memory from = wrap(plain, weight.data);
  memory to = wrap(s.packed_desc, s.packed.data());
  dnnl::reorder(from, to).execute(onednn_thread().stream, from, to);
  onednn_thread().stream.wait();
}

size_t Linear::in() const { return state_->in; }
size_t Linear::out() const { return state_->out; }
size_t Linear::bytes() const { return state_->packed.size(); }
Precision Linear::precision() const { return state_->precision; }

Matrix<float> Linear::weight() const {
  const auto dim = [](size_t n) { return static_cast<memory::dim>(n); };
  State& s = *state_;
  Matrix<float> rows(s.out, s.in);
  const memory::desc plain({dim(s.in), dim(s.out)}, memory::data_type::f32,
                           memory::dims{1, dim(s.in)});
  memory from = wrap(s.packed_desc, s.packed.data());
  memory to = wrap(plain, rows.data());
  dnnl::reorder(from, to).execute(onednn_thread().stream, from, to);
  onednn_thread().stream.wait();
  return rows;
}

std::span<const float> Linear::bias() const { return state_->bias.span(); }

size_t rows_of_block(size_t rows) {
  constexpr size_t kLeast = 32;
  const size_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const size_t even = (blocks + 3) / 4 * 4;
  const size_t size = (rows + even - 1) / even;
  return std::clamp((size + 15) / 16 * 16, kLeast, kRowBlock);
}

void Linear::forward(ThreadPool& pool, Operand x, MutableOperand y,
                     const Epilogue& epilogue) const {
  State& s = *state_;
  if (x.cols != s.in || y.cols != s.out || x.rows != y.rows || x.is_bf16 != s.is_bf16) {
    fail("linear layer [{}, {}] was given x [{}, {}] and y [{}, {}]", s.in, s.out, x.rows, x.cols,
         y.rows, y.cols);
  }
  const size_t size = rows_of_block(x.rows);
  pool.parallel_for((x.rows + size - 1) / size, [&](size_t block, int) {
    const size_t begin = block * size;
    const size_t count = std::min(size, x.rows - begin);
    Epilogue part = epilogue;
    if (part.factor != nullptr) part.factor += begin * part.factor_stride;
    s.run_block(x.row_range(begin, count), y.row_range(begin, count), part);
  });
}

void Linear::forward(ThreadPool& pool, Operand x, MatView<float> y,
                     const Epilogue& epilogue) const {
  MutableOperand target;
  target.data = y.data;
  target.rows = y.rows;
  target.cols = y.cols;
  target.stride = y.stride;
  forward(pool, x, target, epilogue);
}

}  // namespace halflin
