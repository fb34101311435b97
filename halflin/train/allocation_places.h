// Between an allocation and the places of a model that is being trained.
#pragma once

#include "halflin/mlp/allocation.h"
#include "halflin/mlp/surrogate.h"
#include "halflin/train/parameters.h"

namespace halflin {

// What the allocation has for each layer, frozen: no option leaves the full MLP, one without a gate
// makes the cheap route, one with a gate the hard route. The full MLPs stay. Gates are turned: here
// p is the chance of the full MLP. Throws Error where a layer has several options, which cannot be
// trained, or where the allocation's shapes are not the model's.
void set_places(TrainModel& model, const Allocation& allocation);

// The other way: the values that the model's places have now, for the options that the allocation
// has. Where a place has a gate and the option none, the option gets it (named `gate_name`); a
// token then takes the cheap path where p <= 1/2. Throws Error for gates whose hidden layer has
// another activation than the exact GELU.
void read_places(const TrainModel& model, const std::string& gate_name, Allocation& allocation);

// y = weight x + bias as an allocation holds it.
PlainLinear plain_linear(const Affine& affine);

}  // namespace halflin
