// What cheap paths save of this machine's time, which is not what they save in counts.
#pragma once

#include <functional>
#include <vector>

#include "halflin/measure/menu.h"

namespace halflin {

// Shares of a token's time in the whole model that one layer saves when it takes a path: in a
// prompt, and one token at a time.
struct PathTime {
  double prefill = 0, decode = 0;

  double mean() const { return (prefill + decode) / 2; }
};

// Of each path that fit_menu makes of `menu`, in its order, by stand-ins of zeros in all layers at
// once, in turns with the model as it is: medians of `repetitions`. `load` loads the model for
// windows of so many tokens; it has at most `positions`.
std::vector<PathTime> time_paths(ThreadPool& pool, const std::function<Model(size_t window)>& load,
                                 size_t positions, const MenuOptions& menu, size_t repetitions,
                                 bool quiet);

}  // namespace halflin
