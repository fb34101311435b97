#include "halflin/measure/price.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "halflin/base/error.h"

namespace halflin {

namespace {

constexpr double kLowestPrice = 1e-7;  // below it nobody's harm was ever predicted
constexpr double kHighestPrice = 1e6;  // above it everybody goes the cheapest way
constexpr double kClose = 1.03;        // ratio of prices that ends the search
constexpr double kNear = 0.04;         // distance to the budget, of it, that does, too

// Between a point that keeps the budget and one that does not: where a power law through both
// meets it, but not so close to either that the search would creep.
double between(const PricePoint& within, const PricePoint& without, double budget_pct) {
  double part = 0.5;
  if (within.delta_ppl_pct > 0) {
    part = std::log(budget_pct * (1 - kNear / 2) / within.delta_ppl_pct) /
           std::log(without.delta_ppl_pct / within.delta_ppl_pct);
  }
  part = std::clamp(part, 0.15, 0.85);
  return within.price * std::pow(without.price / within.price, part);
}

}  // namespace

PriceSearch search_price(const std::function<PricePoint(double price)>& evaluate, double budget_pct,
                         double first_price) {
  PriceSearch search;
  std::optional<PricePoint> within;   // the highest price that keeps the budget
  std::optional<PricePoint> without;  // the lowest that does not
  double price = first_price;
  double step = 2;
  for (;;) {
    const PricePoint point = evaluate(price);
    search.tried.push_back(point);
    const bool keeps = point.delta_ppl_pct <= budget_pct;
    const bool all =
        within && point.saving.flops_pct > 0 && point.saving.flops_pct == within->saving.flops_pct;
    (keeps ? within : without) = point;
    if (keeps && point.delta_ppl_pct >= budget_pct * (1 - kNear)) break;
    if (within && without) {
      if (without->price / within->price < kClose) break;
      price = between(*within, *without, budget_pct);
    } else {
      if (keeps && all) break;  // everybody takes a cheap way already
      price = keeps ? price * step : price / step;
      if (price < kLowestPrice || price > kHighestPrice) break;
      step *= 1.5;
    }
  }
  if (within) search.best = *within;
  std::sort(search.tried.begin(), search.tried.end(),
            [](const PricePoint& a, const PricePoint& b) { return a.price < b.price; });
  return search;
}

void check_kept(const PriceSearch& search, double budget_pct) {
  if (search.kept()) return;
  double smallest = std::numeric_limits<double>::infinity();
  for (const PricePoint& point : search.tried) {
    if (point.saving.flops_pct > 0) smallest = std::min(smallest, point.delta_ppl_pct);
  }
  if (std::isinf(smallest)) fail("none of the paths saves anything at any price");
  fail(
      "a budget of {:g} % of perplexity cannot be kept: the smallest change at which anything is "
      "saved is {:+.4g} %",
      budget_pct, smallest);
}

}  // namespace halflin
