// The search for a price on curves that are known.
#include "halflin/measure/price.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/io/testing.h"

namespace halflin {
namespace {

// What a price saves and costs: a share that grows to `most`, at a cost that grows with its square.
struct Curve {
  double most = 40;
  double dearest = 80;  // percent of perplexity when all of it is saved
  double cheapest = 0;  // what the first token costs
  int calls = 0;

  PricePoint operator()(double price) {
    ++calls;
    PricePoint point{price, 0, {}};
    const double share = price < 1e-4 ? 0 : price / (price + 1);
    point.saving.flops_pct = most * share;
    point.delta_ppl_pct = share == 0 ? 0 : cheapest + dearest * share * share;
    return point;
  }
};

TEST(Price, KeepsTheBudgetAndIsTheHighestThatDoes) {
  for (const double budget : {0.01, 0.5, 1.0, 20.0}) {
    Curve curve;
    const PriceSearch search = search_price(std::ref(curve), budget);
    EXPECT_LE(search.best.delta_ppl_pct, budget);
    EXPECT_GE(search.best.delta_ppl_pct, 0.9 * budget);
    EXPECT_LE(curve.calls, 20);
    EXPECT_TRUE(
        std::is_sorted(search.tried.begin(), search.tried.end(),
                       [](const PricePoint& a, const PricePoint& b) { return a.price < b.price; }));
    for (const PricePoint& point : search.tried) {
      if (point.delta_ppl_pct <= budget) {
        EXPECT_LE(point.price, search.best.price);
      }
    }
  }
}

TEST(Price, EndsWhereAllTokensTakeTheCheapestPathWithinTheBudget) {
  Curve curve;
  curve.dearest = 0.5;
  const PriceSearch search = search_price(
      [&](double price) {
        PricePoint point = curve(std::min(price, 100.0));
        point.price = price;
        return point;
      },
      1);
  EXPECT_NEAR(search.best.saving.flops_pct, 40.0 * 100 / 101, 1e-9);
  EXPECT_LE(curve.calls, 20);
}

TEST(Price, SaysTheSmallestReachableWhereTheBudgetIsNot) {
  Curve curve;
  curve.cheapest = 3;
  const std::string message = error_of([&] { check_kept(search_price(std::ref(curve), 1), 1); });
  EXPECT_NE(message.find("a budget of 1 %"), std::string::npos) << message;
  EXPECT_NE(message.find("+3"), std::string::npos) << message;
}

TEST(Price, SaysWhereNothingSavesAnything) {
  const auto nothing = [](double price) { return PricePoint{price, 0, {}}; };
  EXPECT_EQ(error_of([&] { check_kept(search_price(nothing, 1), 1); }),
            "none of the paths saves anything at any price");
}

}  // namespace
}  // namespace halflin
