#include "motley/report/rent_report.hpp"

#include <fmt/format.h>

#include "motley/report/table.hpp"

namespace motley {
namespace {

constexpr double hours_per_day = 24;

std::string usd(double usd_per_hour) { return fmt::format("{:.2f}", usd_per_hour); }

std::string fleet_table(const RentPlan& plan) {
  Table table({"configuration", "devices", ">copies", ">$/h each", ">$/h", "layers x stage"});
  for (const auto& rented : plan.fleet) {
    table.add({rented.configuration, copy_devices_text(rented.devices), fmt::format("{}", rented.copies),
               usd(rented.usd_per_hour), usd(rented.usd_per_hour * static_cast<double>(rented.copies)),
               copy_stages_text(plan, rented.configuration)});
  }
  return table.render();
}

std::string assignment_table(const RentPlan& plan) {
  const std::vector<double> mix = class_mix(plan.offers);
  Table table({"class", ">requests/s", "destination"});
  for (std::size_t w = 0; w < mix.size(); ++w) {
    const auto shares = plan.assignment.find(plan.offers.classes[w].name);
    if (shares == plan.assignment.end()) continue;
    std::string targets;
    for (const auto& [name, share] : shares->second)
      targets += fmt::format("{}{} {:.1f}%", targets.empty() ? "" : ", ", name, 100 * share);
    const double rate = plan.offers.classes[w].demand_per_s.value_or(mix[w] * plan.predicted.throughput_per_s);
    table.add({plan.offers.classes[w].name, fmt::format("{:.4g}", rate), targets});
  }
  return table.render();
}

std::string bound_text(const RentPlan& plan) {
  if (!plan.search.bound) return "";
  const std::string unit = plan.goal.form == RentForm::budget ? "requests/s" : "$/h";
  return fmt::format("bound: no fleet of these offers does better than {:.5g} {} (gap {:.2g} %)\n", *plan.search.bound,
                     unit, 100 * plan.search.gap.value_or(0));
}

std::string carried_text(const RentPlan& plan) {
  const RentPrediction& predicted = plan.predicted;
  std::string text = fmt::format("carries {:.5g} requests/s of this mix", predicted.throughput_per_s);
  if (predicted.headroom) text += fmt::format(", {:.3f} times the demand", *predicted.headroom);
  if (plan.offers.utilisation < 1) text += fmt::format(", with each copy {} busy", percent(plan.offers.utilisation));
  text += "\n";
  if (predicted.startup_usd_per_hour > 0)
    text += fmt::format("the start of its new copies costs {} $/h until the next plan\n",
                        usd(predicted.startup_usd_per_hour));
  if (plan.goal.survive > 0)
    text += fmt::format("after the loss of any of {} domains, {} of this is left\n", plan.fallback.size(),
                        percent(plan.goal.survive));
  return text;
}

std::string classes_table(const RentPlan& plan) {
  Table table({"class", ">$ per 1000 more", ">for scarce devices", "bound by"});
  for (const auto& [name, explained] : plan.predicted.classes)
    table.add({name, fmt::format("{:.4g}", explained.usd_per_1000_requests), percent(explained.scarcity_share),
               explained.binding});
  return table.render();
}

std::string types_table(const RentPlan& plan) {
  std::map<std::string, std::int64_t> rented;
  for (const auto& entry : plan.fleet)
    for (const auto& [type, count] : entry.devices) rented[type] += count * entry.copies;
  const bool budget = plan.goal.form == RentForm::budget;
  Table table({"type", ">$/h", ">rented", ">of", ">value of one more", ">alone, as available", ">alone, unlimited"});
  const auto figure = [&](const std::optional<double>& value) {
    return value ? fmt::format("{:.4g} {}", *value, budget ? "/s" : "$/h") : std::string("cannot");
  };
  for (const auto& [name, type] : plan.offers.types) {
    const auto shadow = plan.predicted.shadow_price_usd_per_hour.find(name);
    const double worth = shadow == plan.predicted.shadow_price_usd_per_hour.end() ? 0 : shadow->second;
    const HomogeneousFleet* alone = nullptr;
    for (const auto& fleet : plan.predicted.homogeneous)
      if (fleet.type == name) alone = &fleet;
    if (rented[name] == 0 && !alone && worth == 0) continue;
    table.add({name, usd(type.usd_per_hour), fmt::format("{}", rented[name]),
               type.available ? fmt::format("{}", *type.available) : "any", worth > 0 ? usd(worth) + " $/h" : "",
               alone ? figure(alone->limited) : "", alone ? figure(alone->unlimited) : ""});
  }
  return table.render();
}

std::string slower_table(const RentPlan& plan) {
  const bool demand = plan.predicted.headroom.has_value(), cheapest = plan.goal.form == RentForm::cheapest;
  Table table(
      {"slower", ">throughput of this fleet", demand ? ">of the demand" : "", cheapest ? ">planned again" : ""});
  for (const auto& one : plan.predicted.slower)
    table.add({fmt::format("{} {:g}x", one.type.empty() ? "all" : one.type, one.factor),
               fmt::format("{:.4g} /s", one.throughput_per_s),
               demand ? percent(one.throughput_per_s / total_demand_per_s(plan.offers)) : "",
               !cheapest                    ? ""
               : one.replanned_usd_per_hour ? usd(*one.replanned_usd_per_hour) + " $/h"
                                            : "cannot"});
  return table.render();
}

}  // namespace

std::string copy_devices_text(const std::map<std::string, std::int64_t>& devices) {
  std::string text;
  for (const auto& [type, count] : devices)
    text += fmt::format("{}{}{}", text.empty() ? "" : " + ", type, count > 1 ? fmt::format("*{}", count) : "");
  return text;
}

std::string copy_stages_text(const RentPlan& plan, const std::string& name) {
  std::string text;
  for (const auto& configuration : plan.offers.configurations) {
    if (configuration.name != name) continue;
    for (const auto& stage : configuration.stages)
      text += fmt::format("{}{} x {}{}", text.empty() ? "" : " > ", stage.layers, stage.device_type,
                          stage.degree > 1 ? fmt::format(" tp{}", stage.degree) : "");
  }
  return text;
}

std::string rent_summary(const RentPlan& plan) {
  std::int64_t copies = 0;
  for (const auto& rented : plan.fleet) copies += rented.copies;
  return fmt::format("{} {} of {} {}, {} $/h ({} $ a day)", copies, copies == 1 ? "copy" : "copies", plan.fleet.size(),
                     plan.fleet.size() == 1 ? "configuration" : "configurations", usd(plan.predicted.cost_usd_per_hour),
                     usd(plan.predicted.cost_usd_per_hour * hours_per_day));
}

std::string rent_report(const RentPlan& plan) {
  return fmt::format("rent {}\n\n{}\n{}\n{}{}", rent_summary(plan), fleet_table(plan), assignment_table(plan),
                     carried_text(plan), bound_text(plan));
}

std::string rent_explanation(const RentPlan& plan) {
  std::string text = fmt::format("\nlimits of each class\n{}\ndevices\n{}", classes_table(plan), types_table(plan));
  if (!plan.predicted.slower.empty()) text += fmt::format("\nif devices are slower\n{}", slower_table(plan));
  return text;
}

Value explain_rent_json(const RentPlan& plan) {
  const double total = plan.predicted.cost_usd_per_hour;
  const auto term = [&](const std::string& name, double usd_per_hour) {
    return Value::object(
        {{"name", name}, {"usd_per_hour", usd_per_hour}, {"share", total > 0 ? usd_per_hour / total : 0.0}});
  };
  Value terms = Value::array();
  for (const auto& rented : plan.fleet) {
    const double copies = static_cast<double>(rented.copies);
    Value entry = term(rented.configuration, rented.usd_per_hour * copies);
    Value parts = Value::array();
    for (const auto& [type, count] : rented.devices)
      parts.push_back(term(type, static_cast<double>(count) * copies * plan.offers.types.at(type).usd_per_hour));
    entry.set("terms", parts);
    terms.push_back(std::move(entry));
  }
  Value root = term("fleet", total);
  root.set("terms", terms);
  return Value::object({{"usd_per_hour", total}, {"terms", root}, {"predicted", write(plan.predicted)}});
}

}  // namespace motley
