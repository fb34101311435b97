// What stands in MLPs' places as MLPs of the model's own width, so that formats which know nothing
// else can hold it. Exact, up to float rounding, since for GELU (both kinds), SiLU and ReLU
//   act(z) - act(-z) = z,
// so that an affine map of d inputs is an MLP of 2 d hidden units. In a gated MLP, where a unit is
// act(gate) * up, one whose gate is a constant bias c is act(c) * up: d units do.
#pragma once

#include <string>

#include "halflin/mlp/allocation.h"
#include "halflin/train/parameters.h"

namespace halflin {

// Puts a static allocation's paths into the places of the layers it changes. Throws Error (`path`,
// the allocation's file, opens the message) where a layer is gated: its tokens differ in what they
// take, which one MLP cannot do.
void apply_allocation(TrainModel& model, const Allocation& allocation, const std::string& path);

// Hidden units of the model's MLPs that a place needs. A full MLP needs all it has.
size_t stock_units(const MlpPlace& place, bool gated);

// Makes every place a full MLP again: units that are not needed are zeros. Throws Error naming the
// layer and the reason where a place is gated, needs more units than the model's MLPs have, or
// needs biases that the family's format has no room for. Where one layer of a family that may or
// may not have biases (llama) needs them, all get them.
void make_stock(TrainModel& model);

}  // namespace halflin
