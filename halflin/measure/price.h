// One price for the whole model: how much predicted harm a token may do for what it saves.
#pragma once

#include <functional>
#include <vector>

#include "halflin/measure/routing.h"

namespace halflin {

// A routed model against the unchanged one, on the same text.
struct PricePoint {
  double price = 0;  // nats for all FLOPs of a forward pass
  double delta_ppl_pct = 0;
  Saving saving;
  double saved_pct = 0;  // of what tokens are to save: FLOPs, or time
};

struct PriceSearch {
  PricePoint best;                // the highest price found whose point keeps the budget, if any
  std::vector<PricePoint> tried;  // in rising order of price

  bool kept() const { return best.saving.flops_pct > 0; }
};

// Saving rises with the price, and so, but for noise, does the change of perplexity: the search
// brackets the budget from `first_price` on and interpolates on logarithmic scales. `evaluate` runs
// calibration text.
PriceSearch search_price(const std::function<PricePoint(double price)>& evaluate, double budget_pct,
                         double first_price = 0.1);

// Throws Error where nothing can be saved within the budget, naming the smallest change of
// perplexity at which something is.
void check_kept(const PriceSearch& search, double budget_pct);

}  // namespace halflin
