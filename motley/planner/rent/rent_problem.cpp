#include "motley/planner/rent/rent_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace motley {
namespace {

constexpr int most_copies = 1'000'000;
constexpr double infinity = std::numeric_limits<double>::infinity();

int whole(double copies) { return static_cast<int>(std::clamp(std::floor(copies + 1e-9), 0.0, double{most_copies})); }

std::string devices_text(const Configuration& configuration) {
  std::string text;
  for (const auto& [type, count] : configuration.devices)
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", count, type);
  return text;
}

// What the named classes lack: nothing serves them, or all that does needs more devices than there are.
std::optional<Refusal> unserved(const Offers& offers, const RentProblem& problem, const std::vector<int>& class_of) {
  for (int w = 0; w < problem.classes; ++w) {
    const std::size_t index = static_cast<std::size_t>(class_of[w]);
    const std::string& name = offers.classes[index].name;
    const RentShape* nearest = nullptr;
    bool served = false;
    for (const auto& shape : problem.shapes) {
      if (std::none_of(shape.rates.begin(), shape.rates.end(), [&](const auto& r) { return r.class_index == w; }))
        continue;
      served = served || shape.most > 0;
      if (!nearest || shape.usd_per_hour < nearest->usd_per_hour) nearest = &shape;
    }
    if (served) continue;
    if (!nearest)
      return Refusal{fmt::format("no configuration serves class \"{}\"", name),
                     fmt::format("add a configuration that serves it, or remove the class")};
    const Configuration& wanted = offers.configurations[static_cast<std::size_t>(nearest->configuration)];
    for (const auto& [type, count] : wanted.devices)
      if (const auto& available = offers.types.at(type).available; available && *available < count)
        return Refusal{
            fmt::format("class \"{}\" cannot be served: configuration \"{}\" needs {}, and of {} only {} are "
                        "available",
                        name, wanted.name, devices_text(wanted), type, *available),
            fmt::format("at least {} {} are needed", count, type)};
  }
  return std::nullopt;
}

double best_price(const RentProblem& problem, int class_index) {
  double best = infinity;
  for (const auto& shape : problem.shapes)
    for (const auto& rate : shape.rates)
      if (rate.class_index == class_index && shape.most > 0) best = std::min(best, shape.usd_per_hour / rate.level);
  return best;
}

// The certificates, and with them the most copies that are of use.
void set_bounds(RentProblem& problem) {
  std::vector<double> capacity(static_cast<std::size_t>(problem.classes), 0);
  for (auto& shape : problem.shapes) {
    if (problem.form == RentForm::budget && shape.usd_per_hour > 0)
      shape.most = std::min(shape.most, whole(problem.budget_usd_per_hour / shape.usd_per_hour));
    for (const auto& rate : shape.rates) capacity[rate.class_index] += shape.most * rate.level;
  }
  problem.cost_bound = cost_of_level(problem, 1);
  problem.level_bound = *std::min_element(capacity.begin(), capacity.end());
  if (problem.form == RentForm::cheapest)
    problem.level_bound = std::min(problem.level_bound, 1.0);
  else if (problem.cost_bound > 0)
    problem.level_bound = std::min(problem.level_bound, problem.budget_usd_per_hour / problem.cost_bound);
  const double level = problem.form == RentForm::budget ? problem.level_bound : 1;
  for (auto& shape : problem.shapes) {
    double copies = 0;  // that would serve everything this shape can
    for (const auto& rate : shape.rates) copies += level / rate.level;
    shape.most = std::min(shape.most, static_cast<int>(std::min(std::ceil(copies + 1e-9), double{most_copies})));
  }
}

}  // namespace

double RentProblem::cost(const Copies& copies) const {
  double sum = 0;
  for (std::size_t c = 0; c < copies.size(); ++c)
    if (copies[c] > 0) sum += cost(shapes[c], copies[c]);
  return sum;
}

double cost_of_level(const RentProblem& problem, double level) {
  double sum = 0;
  for (int w = 0; w < problem.classes; ++w) sum += level * best_price(problem, w);
  return sum;
}

std::variant<RentProblem, Refusal> make_problem(const Offers& offers, const RentOptions& options) {
  RentProblem problem{.form = options.form,
                      .budget_usd_per_hour = options.budget_usd_per_hour,
                      .survive = options.survive,
                      .startup_share = options.startup_share,
                      .available = {},
                      .shapes = {}};
  const double demand = total_demand_per_s(offers);
  const std::vector<double> mix = class_mix(offers);
  std::vector<int> class_of, index_of(mix.size(), -1);
  for (std::size_t w = 0; w < mix.size(); ++w) {
    if (mix[w] <= 0) continue;
    index_of[w] = problem.classes++;
    class_of.push_back(static_cast<int>(w));
  }
  const std::vector<std::string> domains = options.survive > 0 ? domains_of(offers) : std::vector<std::string>{};
  problem.domains = static_cast<int>(domains.size());
  std::map<std::string, int> type_index;
  for (const auto& [name, type] : offers.types) {
    type_index[name] = static_cast<int>(problem.available.size());
    problem.available.push_back(type.available ? whole(static_cast<double>(*type.available)) : -1);
  }
  std::vector<std::size_t> by_name(offers.configurations.size());
  std::iota(by_name.begin(), by_name.end(), 0);
  std::sort(by_name.begin(), by_name.end(), [&](std::size_t a, std::size_t b) {
    return offers.configurations[a].name < offers.configurations[b].name;
  });
  for (const std::size_t c : by_name) {
    const Configuration& configuration = offers.configurations[c];
    RentShape shape{.configuration = static_cast<int>(c),
                    .usd_per_hour = copy_usd_per_hour(offers, configuration),
                    .devices = {},
                    .rates = {},
                    .most = most_copies,
                    .lost = {}};
    for (const auto& [type, count] : configuration.devices) {
      const int index = type_index.at(type);
      shape.devices.emplace_back(index, static_cast<int>(count));
      if (problem.available[index] >= 0)
        shape.most = std::min(shape.most, problem.available[index] / static_cast<int>(count));
    }
    for (std::size_t w = 0; w < mix.size(); ++w)
      if (index_of[w] >= 0 && configuration.rate_per_s[w] > 0)
        shape.rates.push_back(
            {index_of[w], configuration.rate_per_s[w] * offers.utilisation / (mix[w] * (demand > 0 ? demand : 1))});
    if (shape.rates.empty()) continue;
    for (const auto& domain : domains) shape.lost.push_back(in_domain(offers, configuration, domain));
    if (const auto running = options.current.find(configuration.name); running != options.current.end())
      shape.current = whole(static_cast<double>(running->second));
    problem.shapes.push_back(std::move(shape));
  }
  if (auto refusal = unserved(offers, problem, class_of)) return *refusal;
  set_bounds(problem);
  return problem;
}

std::vector<int> undominated(const RentProblem& problem) {
  constexpr std::size_t largest = 4000;  // shapes that are compared pair by pair
  std::vector<int> order(problem.shapes.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int c) { return problem.shapes[c].most == 0; });
  if (order.size() > largest) return order;
  const auto speed = [&](int c) {
    double sum = 0;
    for (const auto& rate : problem.shapes[c].rates) sum += rate.level;
    return sum;
  };
  // What could make a shape useless comes before it.
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const double price_a = problem.shapes[a].usd_per_hour, price_b = problem.shapes[b].usd_per_hour;
    return price_a != price_b ? price_a < price_b : speed(a) > speed(b);
  });
  const auto devices_within = [&](const RentShape& a, const RentShape& b) {
    return std::all_of(a.devices.begin(), a.devices.end(), [&](const auto& need) {
      return std::any_of(b.devices.begin(), b.devices.end(),
                         [&](const auto& has) { return has.first == need.first && has.second >= need.second; });
    });
  };
  const auto serves_all = [&](const RentShape& a, const RentShape& b) {
    return std::all_of(b.rates.begin(), b.rates.end(), [&](const ClassRate& need) {
      return std::any_of(a.rates.begin(), a.rates.end(), [&](const ClassRate& has) {
        return has.class_index == need.class_index && has.level >= need.level;
      });
    });
  };
  std::vector<int> kept;
  for (const int c : order) {
    const RentShape& shape = problem.shapes[c];
    const bool useless = shape.current == 0 && std::any_of(kept.begin(), kept.end(), [&](int k) {
                           const RentShape& other = problem.shapes[k];
                           return devices_within(other, shape) && serves_all(other, shape);
                         });
    if (!useless) kept.push_back(c);
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

}  // namespace motley
