// An allocation: for every layer of one model, the cheap paths past its MLP and the gates that
// choose among them, as plain data, and the file that holds it. docs/formats.md has the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halflin/base/matrix.h"
#include "halflin/io/tensor_file.h"
#include "halflin/mlp/gate.h"

namespace halflin {

// Raised whenever something in the file changes its meaning.
inline constexpr int kAllocationSchema = 1;

// y = weight x + bias, rows as outputs.
struct PlainLinear {
  Matrix<float> weight;     // [out, in]; empty: there is none
  std::vector<float> bias;  // [out], or empty

  bool empty() const { return weight.empty(); }
};

// Some of the neurons of the model's own MLP. Where a part below is empty, the kept neurons have
// the model's own weights (and, for gate and up, biases). The output bias of the model's MLP is
// never a part of it: paths hold it in their own bias or constant.
struct PlainNeurons {
  std::vector<int32_t> kept;  // rising, in [0, d_mlp); empty: no neurons
  PlainLinear gate;           // [kept, d]; empty, too, where the MLP is not gated
  PlainLinear up;             // [kept, d]
  PlainLinear down;           // [d, kept], without bias
};

// A way to compute the MLP's output cheaply: the sum of those parts that are there (mlp/path.h).
// Nothing at all is a skip.
struct PlainPath {
  // "linear", "low-rank", "folded", "pruned", "narrow", "mean", "skip": for people
  std::string kind;
  PlainLinear affine{};        // [d, d]
  PlainLinear low_rank_in{};   // [r, d], without bias
  PlainLinear low_rank_out{};  // [d, r]
  PlainNeurons neurons{};
  std::vector<float> constant{};  // [d], or empty
};

PlainPath copy_path(const PlainPath& path);

// Calls visit(name, linear) for each linear part of a path, there or not.
template <class Path, class Visit>
void each_linear(Path& path, const Visit& visit) {
  visit("affine", path.affine);
  visit("low_rank_in", path.low_rank_in);
  visit("low_rank_out", path.low_rank_out);
  visit("neurons.gate", path.neurons.gate);
  visit("neurons.up", path.neurons.up);
  visit("neurons.down", path.neurons.down);
}

struct PlainOption {
  PlainPath path;
  std::optional<Gate> gate;  // none: every token that comes here
};

// Which model an allocation is for.
struct AllocationModel {
  std::string name;    // as the user named it: for messages
  std::string sha256;  // of the checkpoint (sha256_files)
  std::string family;
  size_t layers = 0, d_model = 0, d_mlp = 0;
  bool gated_mlp = false;
};

struct Allocation {
  AllocationModel model;
  // Of each layer, in order of preference: a token takes the first option whose gate lets it pass,
  // the full MLP where none does.
  std::vector<std::vector<PlainOption>> layers;
  // How it was made and what it measured, for people and programs: halflin's version, command,
  // text, splits, settings, price, calibration, test. An object; never read by the forward pass.
  nlohmann::json metadata = nlohmann::json::object();
};

// Throws Error (`place` opens the message) where a shape contradicts the model's, neurons are not
// rising, or a gate comes after an option that takes every token.
void check_allocation(const Allocation& allocation, const std::string& place);

// Writes the file whole or not at all. Matrices are rounded to bfloat16 with `bf16`; gates, biases
// and constants stay float32.
void save_allocation(const std::filesystem::path& path, const Allocation& allocation, bool bf16);

// Reads a file that save_allocation wrote. Throws Error, one line that says what differs: another
// schema, contents that are not those that were written (truncated, edited), shapes.
Allocation load_allocation(const std::filesystem::path& path);

// The parts of load_allocation, for the fuzzer: the digest over the contents, and everything else.
void check_allocation_digest(const TensorFile& file);
Allocation read_allocation(const TensorFile& file);

// Throws Error where the allocation is for another model, naming the first thing that differs.
// `path` and the models' names are for the message.
void check_allocation_model(const Allocation& allocation, const AllocationModel& model,
                            const std::string& path);

}  // namespace halflin
