// For tests: the worked examples, and random markets.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "motley/base/random.hpp"
#include "motley/planner/rent/plan_rent.hpp"

namespace motley {

inline OfferType type_at(double usd_per_hour, std::optional<std::int64_t> available = {}, std::string domain = {}) {
  return {.usd_per_hour = usd_per_hour, .available = available, .domain = std::move(domain)};
}
inline OfferClass class_of_share(std::string name, double share) {
  return {.name = std::move(name), .model = {}, .demand_per_s = {}, .share = share};
}
inline OfferClass class_of_demand(std::string name, double demand_per_s) {
  return {.name = std::move(name), .model = {}, .demand_per_s = demand_per_s, .share = {}};
}
inline Configuration shape_of(std::string name, std::map<std::string, std::int64_t> devices,
                              std::vector<double> rates) {
  return {.name = std::move(name),
          .model = {},
          .devices = std::move(devices),
          .rate_per_s = std::move(rates),
          .stages = {}};
}

// arXiv 2502.00722's worked example: 100 requests, 80 of one class and 20 of the other, for 8 $/h.
inline Offers worked_example() {
  Offers offers;
  offers.classes = {class_of_share("first", 0.8), class_of_share("second", 0.2)};
  offers.types = {{"t1", type_at(4, 2)}, {"t2", type_at(2, 2)}, {"t3", type_at(2, 2)}};
  offers.configurations = {shape_of("c1", {{"t1", 1}}, {1.0, 1.2}), shape_of("c2", {{"t2", 1}}, {0.9, 0.9}),
                           shape_of("c3", {{"t3", 1}}, {0.3, 0.5}), shape_of("c4", {{"t2", 2}}, {2.4, 1.5})};
  return offers;
}

// The example that Melange ships, as a fluid.
inline Offers melange_example() {
  Offers offers;
  offers.classes = {class_of_demand("a", 6), class_of_demand("b", 3), class_of_demand("c", 15),
                    class_of_demand("d", 6)};
  offers.types = {{"A", type_at(1.01)}, {"B", type_at(3.67)}};
  offers.configurations = {shape_of("A", {{"A", 1}}, {2, 1, 5, 2}), shape_of("B", {{"B", 1}}, {20, 20, 40, 20})};
  return offers;
}

inline Offers two_shapes() {
  Offers offers;
  offers.classes = {class_of_demand("all", 3)};
  offers.types = {{"A", type_at(1)}, {"B", type_at(1.6)}};
  offers.configurations = {shape_of("A", {{"A", 1}}, {1}), shape_of("B", {{"B", 1}}, {2})};
  return offers;
}

// Two classes with targets: one configuration cannot keep the long one's.
inline Offers two_targets() {
  Offers offers;
  offers.classes = {class_of_demand("short", 5), class_of_demand("long", 5)};
  offers.types = {{"small", type_at(1)}, {"large", type_at(3)}};
  offers.configurations = {shape_of("SA", {{"small", 1}}, {26.667, 0}),
                           shape_of("SB", {{"large", 1}}, {38.095, 5.333})};
  return offers;
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  double between(double low, double high) { return low + (high - low) * uniform_at(seed_, index_++); }
  int integer(int low, int high) { return low + static_cast<int>(uniform_at(seed_, index_++) * (high - low + 1)); }
  bool chance(double share) { return uniform_at(seed_, index_++) < share; }

 private:
  std::uint64_t seed_, index_ = 0;
};

struct MarketSize {
  int shapes = 4, classes = 3, types = 3;
  int most_available = 8;
  bool demands = true;
  bool domains = false;
};

// Rates roughly in proportion to the price, with tastes: no shape is best at everything.
inline Offers random_market(std::uint64_t seed, const MarketSize& size) {
  Draw draw(seed);
  Offers offers;
  std::vector<double> weights;
  double sum = 0;
  for (int w = 0; w < size.classes; ++w) sum += weights.emplace_back(draw.between(0.2, 1));
  for (int w = 0; w < size.classes; ++w)
    offers.classes.push_back(size.demands ? class_of_demand(fmt::format("w{}", w), 4 * weights[w])
                                          : class_of_share(fmt::format("w{}", w), weights[w] / sum));
  for (int n = 0; n < size.types; ++n)
    offers.types[fmt::format("t{}", n)] =
        type_at(std::round(draw.between(0.3, 4) * 100) / 100,
                draw.chance(0.8) ? std::optional<std::int64_t>(draw.integer(1, size.most_available)) : std::nullopt,
                size.domains ? fmt::format("z{}", n % 2) : "");
  for (int c = 0; c < size.shapes; ++c) {
    Configuration shape = shape_of(fmt::format("c{:05}", c), {}, {});
    shape.devices[fmt::format("t{}", draw.integer(0, size.types - 1))] = draw.integer(1, 3);
    if (draw.chance(0.2)) shape.devices[fmt::format("t{}", draw.integer(0, size.types - 1))] = draw.integer(1, 2);
    const double price = copy_usd_per_hour(offers, shape);
    for (int w = 0; w < size.classes; ++w)
      shape.rate_per_s.push_back(draw.chance(0.85) ? price * draw.between(0.4, 1.6) : 0);
    offers.configurations.push_back(std::move(shape));
  }
  return offers;
}

}  // namespace motley
