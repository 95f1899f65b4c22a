#include "motley/report/compare_report.hpp"

#include <fmt/format.h>

#include <functional>
#include <optional>

#include "motley/base/units.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

struct Figure {
  std::string key;    // in JSON
  std::string title;  // for people
  std::function<std::optional<double>(const ServePlan&)> of;
  std::function<std::string(double)> show;
};

std::string plain(double value) { return fmt::format("{:.4g}", value); }

std::optional<double> if_positive(double value) {
  if (value > 0) return value;
  return std::nullopt;
}

const std::vector<Figure>& figures() {
  static const std::vector<Figure> list = {
      {"routes", "routes", [](const ServePlan& p) { return static_cast<double>(p.routes.size()); }, plain},
      {"stages", "stages", [](const ServePlan& p) { return static_cast<double>(p.stages.size()); }, plain},
      {"devices", "devices in use",
       [](const ServePlan& p) { return static_cast<double>(p.cluster.devices.size() - p.unused.size()); }, plain},
      {"idle", "devices idle", [](const ServePlan& p) { return static_cast<double>(p.unused.size()); }, plain},
      {"tokens_per_s", "output tokens/s", [](const ServePlan& p) { return p.predicted.tokens_per_s; }, plain},
      {"requests_per_s", "requests/s", [](const ServePlan& p) { return p.predicted.requests_per_s; }, plain},
      {"latency_s", "request latency", [](const ServePlan& p) { return p.predicted.latency_s; }, human_seconds},
      {"bottleneck_s", "busiest stage", [](const ServePlan& p) { return p.predicted.bottleneck_s; }, human_seconds},
      {"slo_attainment", "inside deadlines", [](const ServePlan& p) { return p.predicted.slo_attainment; },
       [](double share) { return fmt::format("{:.1f}%", 100 * share); }},
      {"cost_usd_per_hour", "cluster, $/h", [](const ServePlan& p) { return if_positive(usd_per_hour(p.cluster)); },
       plain},
      {"usd_per_million_tokens", "$ per million tokens",
       [](const ServePlan& p) {
         return if_positive(usd_per_hour(p.cluster) / (p.predicted.tokens_per_s * 3600) * 1e6);
       },
       plain}};
  return list;
}

}  // namespace

double usd_per_hour(const Cluster& cluster) {
  double sum = 0;
  for (const auto& machine : cluster.machines) {
    const double price = cluster.description.machines[static_cast<std::size_t>(machine.description)].usd_per_hour;
    sum += price;
    if (price > 0) continue;
    for (const int device : machine.devices) {
      const double each = cluster.type_of(device).usd_per_hour;
      if (each <= 0) return 0;
      sum += each;
    }
  }
  return sum;
}

std::string compare_report(const std::vector<NamedPlan<ServePlan>>& plans) {
  std::vector<std::string> titles = {""};
  for (const auto& named : plans) titles.push_back(">" + named.name);
  Table table(std::move(titles));
  for (const auto& figure : figures()) {
    std::vector<std::string> cells = {figure.title};
    const std::optional<double> first = figure.of(*plans.front().plan);
    bool any = false;
    for (const auto& named : plans) {
      const std::optional<double> value = figure.of(*named.plan);
      any = any || value.has_value();
      std::string cell = value ? figure.show(*value) : "-";
      if (&named != &plans.front() && value && first && *first > 0 && *value != *first)
        cell += fmt::format(" (x {:.2f})", *value / *first);
      cells.push_back(std::move(cell));
    }
    if (any) table.add(std::move(cells));
  }
  return table.render();
}

Value compare_json(const std::vector<NamedPlan<ServePlan>>& plans) {
  Value list = Value::array();
  for (const auto& named : plans) {
    Value entry = Value::object({{"name", named.name}});
    Value relative = Value::object();
    for (const auto& figure : figures()) {
      const std::optional<double> value = figure.of(*named.plan), first = figure.of(*plans.front().plan);
      if (!value) continue;
      entry.set(figure.key, *value);
      if (first && *first > 0) relative.set(figure.key, *value / *first);
    }
    entry.set("relative", relative);
    list.push_back(std::move(entry));
  }
  return Value::object({{"plans", list}});
}

}  // namespace motley
