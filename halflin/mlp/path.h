// mlp/: what can stand in an MLP's place, and how it is fitted. The heart of the project.
//
// MlpPath is the one seam of the forward pass: per layer it says what the MLP's place holds.
// Measuring, inference, analyses and training differ in the paths they pass, in nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "halflin/mlp/gate.h"
#include "halflin/ops/linear.h"

namespace halflin {

// A dense MLP: down(activation(gate(x)) * up(x)) when gated (SwiGLU), else down(activation(up(x))).
struct Mlp {
  Activation activation = Activation::kGeluErf;
  Linear gate;  // [d, h]; empty when the MLP is not gated
  Linear up;    // [d, h]
  Linear down;  // [h, d]
};

// A way to compute the MLP's output cheaply: the sum of those parts that are present.
//   linear surrogate    affine
//   low-rank surrogate  low_rank_in then low_rank_out
//   folded MLP          narrow (the neurons kept) + affine (all others, folded)
//   narrow MLP          narrow + constant (the mean output of the neurons dropped)
//   mean output         constant
//   skip                nothing
struct CheapPath {
  Linear affine;                      // [d, d]
  Linear low_rank_in, low_rank_out;   // [d, r], [r, d]
  std::shared_ptr<const Mlp> narrow;  // fewer neurons than the full MLP
  std::vector<float> constant;        // [d], or empty
};

// Floating-point operations of one token.
double path_flops(const Mlp& mlp);
double path_flops(const CheapPath& path);

// A cheap way past the full MLP, and which tokens may take it.
struct PathOption {
  std::shared_ptr<const CheapPath> path;
  std::optional<Gate> gate;  // none: every token
};

// What stands in one layer's MLP's place: each token takes the first option whose gate lets it
// pass, and the full MLP where none does. Without options that is every token.
struct MlpPath {
  std::vector<PathOption> options;
};

// 0 where x [d] takes the full MLP, else the number, counted from 1, of the first option whose gate
// lets it pass.
size_t choose_route(const MlpPath& path, const float* x);

struct RouteScratch;

// Buffers of MLP evaluation for up to `rows` tokens at a time.
struct MlpScratch {
  OperandBuffer hidden;                     // [rows, h] activations of the neurons
  Matrix<float> up;                         // [rows, h] of a gated MLP
  std::vector<RouteScratch> routed;         // one a thread, made when first used
  std::vector<std::vector<size_t>> routes;  // rows by route
  std::vector<uint8_t> chosen;              // [rows] each token's route

  MlpScratch() = default;
  MlpScratch(Precision precision, size_t rows, size_t d_model, size_t d_mlp, bool gated);
};

// Of up to kRowBlock tokens of one route.
struct RouteScratch {
  MlpScratch mlp;
  OperandBuffer inputs;   // [kRowBlock, d]
  Matrix<float> outputs;  // [kRowBlock, d]
};

// Neurons after activation and gating, a(x) [T, h] in the model's operand type, valid until the
// scratch is used again.
MutableOperand mlp_neurons(ThreadPool& pool, const Mlp& mlp, Operand x, MlpScratch& scratch);

// y = mlp(x), or y += mlp(x) when `accumulate`; x [T, d] operand, y [T, d].
void apply_mlp(ThreadPool& pool, const Mlp& mlp, Operand x, bool accumulate, MatView<float> y,
               MlpScratch& scratch);
void apply_cheap(ThreadPool& pool, const CheapPath& path, Operand x, bool accumulate,
                 MatView<float> y, MlpScratch& scratch);

// The route that each token's gates choose, [T]: 0 for the full MLP, else the option's number,
// counted from 1.
void choose_routes(ThreadPool& pool, const MlpPath& path, Operand x, std::span<uint8_t> routes);

// Each token by its route: the rows of one route gathered, in parts that run side by side, each
// from x to y in one thread.
void apply_routes(ThreadPool& pool, const Mlp& mlp, const MlpPath& path, Operand x,
                  std::span<const uint8_t> routes, bool accumulate, MatView<float> y,
                  MlpScratch& scratch);

// The seam: each token by the route that its gates choose. `route`, if not empty, receives these.
void apply_path(ThreadPool& pool, const Mlp& mlp, const MlpPath& path, Operand x, bool accumulate,
                MatView<float> y, MlpScratch& scratch, std::span<uint8_t> route = {});

}  // namespace halflin
