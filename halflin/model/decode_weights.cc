#include "halflin/model/decode_weights.h"

#include <algorithm>
#include <optional>

#include "halflin/base/error.h"
#include "halflin/ops/encode.h"

namespace halflin {

namespace {

bool is_float(DType dtype) { return dtype_block_elements(dtype) == 1; }

class Reader {
 public:
  Reader(ThreadPool& pool, const Model& model, const DecodeOptions& options, DecodeWeights& out)
      : pool_(pool), model_(model), options_(options), out_(out) {}

  DecodeLinear linear(const std::string& name, bool is_head = false) {
    const TensorInfo& tensor = model_.file.at(name + ".weight");
    DecodeLinear linear;
    const bool in_by_out = model_.layout.in_by_out && !is_head;
    linear.weight = {tensor.dtype, tensor.bytes.data(), tensor.shape[0], tensor.shape[1],
                     in_by_out};
    if (in_by_out) std::swap(linear.weight.out, linear.weight.in);
    const DType read_as = choose(tensor.dtype, linear.weight.in, is_head);
    note(tensor.dtype, read_as);
    if (read_as != tensor.dtype) linear.weight = convert(tensor, linear.weight, read_as);
    if (const TensorInfo* bias = model_.file.find(name + ".bias")) {
      linear.bias.resize(bias->elements());
      read_f32(*bias, 0, linear.bias);
    }
    return linear;
  }

  // A cheap path's matrix, unpacked and in `format`, or in `otherwise` if that rounds it. The last
  // block of a row may go beyond its end: zeros there, as in the inputs (MatvecInput).
  DecodeLinear unpack(const Linear& packed, DType format, std::optional<DType> otherwise = {}) {
    DecodeLinear linear;
    if (packed.empty()) return linear;
    Matrix<float> weight = padded(packed.weight(), dtype_block_elements(format));
    if (otherwise && *otherwise != format && rounds(weight.view(), format)) {
      return unpack(packed, *otherwise);
    }
    linear.weight = allocate(format, weight.rows(), weight.cols());
    encode(weight.view(), 0, linear.weight);
    linear.bias.assign(packed.bias().begin(), packed.bias().end());
    return linear;
  }

 private:
  // What a tensor of `stored` with rows of `in` elements is read as.
  DType choose(DType stored, size_t in, bool is_head) const {
    if (is_float(stored)) {
      if (options_.quantize == Quantize::kNone || in % 32 != 0) return stored;
      // The head, as llama.cpp does: it decides between tokens, and is read once.
      return options_.quantize == Quantize::kQ8_0 || is_head ? DType::kQ8_0 : DType::kQ4_0;
    }
    if (options_.exact) return DType::kF32;
    return has_matvec(stored) ? stored : DType::kQ8_0;
  }

  void note(DType stored, DType read_as) {
    std::string text(dtype_name(stored));
    if (read_as != stored) text += fmt::format(", read as {}", dtype_name(read_as));
    ++out_.formats[text];
  }

  StoredMatrix allocate(DType dtype, size_t out, size_t in) {
    StoredMatrix matrix{dtype, nullptr, out, in, false};
    out_.copies.emplace_back(matrix.bytes());
    out_.copied_bytes += matrix.bytes();
    matrix.data = out_.copies.back().data();
    return matrix;
  }

  static Matrix<float> padded(Matrix<float> weight, size_t block) {
    const size_t end = weight.cols() % block;
    if (end == 0) return weight;
    Matrix<float> longer(weight.rows(), weight.cols() + block - end);
    for (size_t r = 0; r < weight.rows(); ++r) {
      std::copy_n(weight.row(r), weight.cols(), longer.row(r));
    }
    return longer;
  }

  // Whether the format moves the matrix by more than 1 % (root mean square). What was stored in it
  // moves by what packing in bfloat16 has rounded.
  static bool rounds(MatView<const float> weight, DType format) {
    std::vector<std::byte> bytes(weight.cols / dtype_block_elements(format) *
                                 dtype_block_bytes(format));
    std::vector<float> back(weight.cols);
    const TensorInfo row{"", format, {weight.cols}, bytes, ""};
    double missed = 0, all = 0;
    for (size_t r = 0; r < weight.rows; ++r) {
      encode_row(format, weight.row(r), weight.cols, bytes.data());
      read_f32(row, 0, back);
      for (size_t i = 0; i < weight.cols; ++i) {
        const double value = weight.row(r)[i];
        missed += (back[i] - value) * (back[i] - value);
        all += value * value;
      }
    }
    return missed > 1e-4 * all;
  }

  // Rows [begin, begin + rows.rows) of a matrix that allocate() made.
  static void encode(MatView<const float> rows, size_t begin, const StoredMatrix& to) {
    const size_t row_bytes = to.bytes() / to.out;
    for (size_t r = 0; r < rows.rows; ++r) {
      encode_row(to.dtype, rows.row(r), rows.cols,
                 const_cast<std::byte*>(to.data) + (begin + r) * row_bytes);
    }
  }

  StoredMatrix convert(const TensorInfo& tensor, const StoredMatrix& from, DType to) {
    const StoredMatrix matrix = allocate(to, from.out, from.in);
    if (from.in_by_out) {
      Matrix<float> stored(from.in, from.out);
      read_f32(tensor, 0, stored.span());
      pool_.parallel_for((from.out + kRows - 1) / kRows, [&](size_t task, int) {
        const size_t begin = task * kRows;
        Matrix<float> rows(std::min(kRows, from.out - begin), from.in);
        for (size_t i = 0; i < from.in; ++i) {
          for (size_t r = 0; r < rows.rows(); ++r) rows(r, i) = stored(i, begin + r);
        }
        encode(rows.view(), begin, matrix);
      });
      return matrix;
    }
    pool_.parallel_for((from.out + kRows - 1) / kRows, [&](size_t task, int) {
      const size_t begin = task * kRows;
      Matrix<float> rows(std::min(kRows, from.out - begin), from.in);
      read_f32(tensor, begin * from.in, rows.span());
      encode(rows.view(), begin, matrix);
    });
    return matrix;
  }

  static constexpr size_t kRows = 256;  // of one task

  ThreadPool& pool_;
  const Model& model_;
  const DecodeOptions& options_;
  DecodeWeights& out_;
};

// The formats of cheap paths beside an MLP read in `dtype`: of neurons that are the model's own,
// and of what was fitted. This has 8 bits at least: rounded to 4, paths cost nearly twice as much
// (docs/speed.md).
struct PathFormats {
  DType own, fitted;
};

PathFormats path_formats(DType dtype, bool exact) {
  if (exact) return {DType::kF32, DType::kF32};
  const DType own = dtype == DType::kQ4_K   ? DType::kQ4_1
                    : dtype == DType::kQ6_K ? DType::kQ8_0
                                            : dtype;
  return {own, is_float(own) ? own : DType::kQ8_0};
}

bool any_reads_codes(const DecodeWeights& weights) {
  bool found = false;
  const auto look = [&](const DecodeLinear& linear) {
    found = found || (!linear.empty() && reads_codes(linear.weight.dtype));
  };
  const auto look_mlp = [&](const DecodeMlp& mlp) {
    for (const DecodeLinear* linear : {&mlp.gate, &mlp.up, &mlp.down}) look(*linear);
  };
  for (const DecodeLayer& layer : weights.layers) {
    for (const DecodeLinear& linear : layer.qkv) look(linear);
    look(layer.attention_out);
    look_mlp(layer.mlp);
    for (const DecodePath& path : layer.options) {
      for (const DecodeLinear* linear : {&path.affine, &path.low_rank_in, &path.low_rank_out}) {
        look(*linear);
      }
      look_mlp(path.narrow);
    }
  }
  look(weights.head);
  return found;
}

}  // namespace

void check_paths(const Model& model, const std::vector<MlpPath>& paths) {
  const Config& config = model.config;
  if (paths.empty()) return;
  if (paths.size() != config.layers) {
    fail("{}: paths for {} layers, but the model has {}", model.path, paths.size(), config.layers);
  }
  const auto check = [&](const Linear& first, const Linear& last, const char* what) {
    if (first.empty() && last.empty()) return;
    if (first.empty() || last.empty() || first.in() != config.d_model ||
        last.out() != config.d_model || (&first != &last && first.out() != last.in())) {
      fail("{}: a {} path of another shape than the model's", model.path, what);
    }
  };
  for (const MlpPath& path : paths) {
    if (path.options.size() > 255) fail("{}: more than 255 paths in a layer", model.path);
    for (const PathOption& option : path.options) {
      if (!option.path) fail("{}: an option without a path", model.path);
      const CheapPath& cheap = *option.path;
      check(cheap.affine, cheap.affine, "linear");
      check(cheap.low_rank_in, cheap.low_rank_out, "low-rank");
      if (cheap.narrow) {
        check(cheap.narrow->up, cheap.narrow->down, "narrow");
        if (!cheap.narrow->gate.empty()) check(cheap.narrow->gate, cheap.narrow->down, "narrow");
      }
      if (!cheap.constant.empty() && cheap.constant.size() != config.d_model) {
        fail("{}: a constant of {}, but the model is {} wide", model.path, cheap.constant.size(),
             config.d_model);
      }
      if (option.gate && option.gate->weight.size() != config.d_model) {
        fail("{}: a gate of {} weights, but the model is {} wide", model.path,
             option.gate->weight.size(), config.d_model);
      }
    }
  }
}

DecodeWeights read_decode_weights(ThreadPool& pool, const Model& model,
                                  const std::vector<MlpPath>& paths, const DecodeOptions& options) {
  DecodeWeights weights;
  Reader reader(pool, model, options, weights);
  const TensorNames& names = model.layout.names;
  for (size_t l = 0; l < model.config.layers; ++l) {
    DecodeLayer layer;
    const auto read = [&](const std::string& pattern) {
      return reader.linear(layer_name(pattern, l));
    };
    if (!names.qkv.empty()) {
      layer.qkv.push_back(read(names.qkv));
    } else {
      for (const std::string* name : {&names.q, &names.k, &names.v}) {
        layer.qkv.push_back(read(*name));
      }
    }
    layer.attention_out = read(names.attention_out);
    layer.mlp.activation = model.config.activation;
    if (model.config.gated_mlp) layer.mlp.gate = read(names.gate);
    layer.mlp.up = read(names.up);
    layer.mlp.down = read(names.down);
    if (!paths.empty()) {
      const auto [own, fitted] = path_formats(layer.mlp.down.weight.dtype, options.exact);
      for (const PathOption& option : paths[l].options) {
        const CheapPath& path = *option.path;
        DecodePath to;
        to.affine = reader.unpack(path.affine, fitted);
        to.low_rank_in = reader.unpack(path.low_rank_in, fitted);
        to.low_rank_out = reader.unpack(path.low_rank_out, fitted);
        if (path.narrow) {
          to.narrow.activation = path.narrow->activation;
          to.narrow.gate = reader.unpack(path.narrow->gate, own, fitted);
          to.narrow.up = reader.unpack(path.narrow->up, own, fitted);
          to.narrow.down = reader.unpack(path.narrow->down, fitted);
        }
        to.constant = path.constant;
        layer.options.push_back(std::move(to));
      }
    }
    weights.layers.push_back(std::move(layer));
  }
  weights.head =
      reader.linear(model.config.tied_head ? names.embedding : names.head, /*is_head=*/true);
  // A tied head has no bias, whatever else bears the embedding's name.
  if (model.config.tied_head) weights.head.bias.clear();
  weights.reads_codes = any_reads_codes(weights);
  return weights;
}

}  // namespace halflin
