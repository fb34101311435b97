// What cheap paths save of this machine's time, which is not what they save in counts.
#pragma once

#include <functional>
#include <vector>

#include "halflin/measure/menu.h"

namespace halflin {

// Shares of a token's time in the whole model that one layer saves with a path.
struct PathTime {
  double whole = 0;   // in a prompt all of whose tokens take it
  double token = 0;   // in a prompt, for each token of it that takes the path by a gate
  double fixed = 0;   // and what it costs, for each token of a prompt in which any takes it
  double decode = 0;  // one token at a time
};

// Of each path that fit_menu makes of `menu`, in its order, by stand-ins of zeros in all layers at
// once, in turns with the model as it is, each layer and each single token by its quickest of
// `repetitions` or more. In a prompt also for a quarter and for three quarters of the tokens, by
// gates of random weights, which tells `token` and `fixed` apart: the former is what the full MLP
// takes for one row more, less the path's; the latter is what the path takes for no row at all,
// weights to read and products to begin, and its gate. `load` loads the model for windows of so
// many tokens; it has at most `positions`.
std::vector<PathTime> time_paths(ThreadPool& pool, const std::function<Model(size_t window)>& load,
                                 size_t positions, const MenuOptions& menu, size_t repetitions,
                                 bool quiet);

}  // namespace halflin
