// The page of a plan that says what to rent.
#include <fmt/format.h>

#include <algorithm>

#include "motley/report/html_marks.hpp"
#include "motley/report/html_page.hpp"
#include "motley/report/html_report.hpp"
#include "motley/report/rent_report.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

std::string hourly(double usd_per_hour) { return fmt::format("{:.2f} $/h", usd_per_hour); }

bool cheapest(const RentPlan& plan) { return plan.goal.form == RentForm::cheapest; }

// A colour for every rented configuration, the same wherever it appears.
std::string css_class_of(const RentPlan& plan, const std::string& configuration) {
  for (std::size_t i = 0; i < plan.fleet.size(); ++i)
    if (plan.fleet[i].configuration == configuration) return "fill " + colour_class(i);
  return "fill idle";
}

Html fleet(const RentPlan& plan) {
  const double total = plan.predicted.cost_usd_per_hour;
  std::vector<ChartRow> rows;
  double from = 0;
  for (const RentedConfiguration& rented : plan.fleet) {
    const double cost = rented.usd_per_hour * static_cast<double>(rented.copies);
    const double share = total > 0 ? cost / total : 0;
    const std::string words = fmt::format("{}: {}, {} of the cost", rented.configuration, hourly(cost), percent(share));
    const std::string stages = copy_stages_text(plan, rented.configuration);
    rows.push_back({.label = {tag("b", {}, fmt::format("{} \u00d7 {}", rented.copies, rented.configuration))},
                    .drawing = {drawing("bar", words,
                                        {mark("room", 0, 1),
                                         mark(css_class_of(plan, rented.configuration), from, from + share, words)}),
                                paragraph("note", fmt::format("a copy: {} at {}{}", copy_devices_text(rented.devices),
                                                              hourly(rented.usd_per_hour),
                                                              stages.empty() ? "" : "; layers " + stages))},
                    .figure = {tag("b", {}, hourly(cost)), " " + percent(share)}});
    from += share;
  }
  if (rows.empty()) return paragraph("note", "Nothing is rented.");
  return {paragraph("", "Cost of each configuration, as a share of the total."), chart(rows)};
}

Html assignment_chart(const RentPlan& plan, const RentAssignment& assignment) {
  const std::vector<double> mix = class_mix(plan.offers);
  std::vector<ChartRow> rows;
  for (std::size_t w = 0; w < mix.size(); ++w) {
    const OfferClass& described = plan.offers.classes[w];
    const auto shares = assignment.find(described.name);
    if (shares == assignment.end()) continue;
    std::vector<BarPart> parts;
    std::vector<std::string> words;
    for (const auto& [name, share] : shares->second) {
      words.push_back(fmt::format("{} {:.1f}%", name, 100 * share));
      parts.push_back({css_class_of(plan, name), share, words.back()});
    }
    const std::string all = fmt::format("{}", fmt::join(words, ", "));
    const double rate = described.demand_per_s.value_or(mix[w] * plan.predicted.throughput_per_s);
    rows.push_back({.label = tag("b", {}, described.name),
                    .drawing = {stacked_bar(parts, 1, 1, all), paragraph("note", all)},
                    .figure = fmt::format("{:.4g}/s", rate)});
  }
  return chart(rows);
}

Html classes(const RentPlan& plan) {
  std::vector<LegendEntry> entries;
  for (const RentedConfiguration& rented : plan.fleet)
    entries.push_back({css_class_of(plan, rented.configuration), rented.configuration});
  std::vector<std::vector<Html>> rows;
  for (const auto& [name, explained] : plan.predicted.classes)
    rows.push_back({name, fmt::format("{:.4g} $", explained.usd_per_1000_requests), percent(explained.scarcity_share),
                    explained.binding});
  Html content = {paragraph("", "Destinations of the requests of each class, and their rate."), legend(entries),
                  assignment_chart(plan, plan.assignment)};
  if (!rows.empty()) content += table({"class", ">cost of 1000 more", ">for scarce devices", "bound by"}, rows);
  for (const auto& [domain, assignment] : plan.fallback)
    content += details("Destinations after the loss of " + domain, assignment_chart(plan, assignment));
  return content;
}

Html devices(const RentPlan& plan) {
  std::map<std::string, std::int64_t> rented;
  for (const RentedConfiguration& entry : plan.fleet)
    for (const auto& [type, count] : entry.devices) rented[type] += count * entry.copies;
  std::vector<std::vector<Html>> rows;
  for (const auto& [name, type] : plan.offers.types) {
    const auto shadow = plan.predicted.shadow_price_usd_per_hour.find(name);
    const double worth = shadow == plan.predicted.shadow_price_usd_per_hour.end() ? 0 : shadow->second;
    rows.push_back({name, hourly(type.usd_per_hour), fmt::format("{}", rented[name]),
                    type.available ? fmt::format("{}", *type.available) : "unlimited",
                    worth > 0 ? hourly(worth) : "\u2013", type.domain});
  }
  return table({"type", ">price", ">rented", ">available", ">value of one more", "domain"}, rows);
}

// This fleet next to those of one type: with what is available of it, and if there were enough.
Html alternatives(const RentPlan& plan) {
  if (plan.predicted.homogeneous.empty()) return {};
  const double own = cheapest(plan) ? plan.predicted.cost_usd_per_hour : plan.predicted.throughput_per_s;
  double most = own;
  for (const HomogeneousFleet& alone : plan.predicted.homogeneous)
    most = std::max({most, alone.limited.value_or(0), alone.unlimited.value_or(0)});
  if (!(most > 0)) return {};
  const auto figure = [&](double value) {
    return cheapest(plan) ? hourly(value) : fmt::format("{:.4g} requests/s", value);
  };
  std::vector<ChartRow> rows = {
      {.label = tag("b", {}, "this fleet"),
       .drawing = drawing("thin", "this fleet: " + figure(own), mark("fill c0", 0, own / most)),
       .figure = tag("b", {}, figure(own))}};
  for (const HomogeneousFleet& alone : plan.predicted.homogeneous) {
    const bool differs = alone.unlimited && alone.unlimited != alone.limited;
    std::string value = alone.limited ? figure(*alone.limited) : "cannot";
    if (differs) value += fmt::format("; {} with unlimited devices", figure(*alone.unlimited));
    const Html limited = alone.limited ? mark("fill c7", 0, *alone.limited / most) : Html();
    const Html unlimited = differs ? mark("m4", 0, *alone.unlimited / most) : Html();
    const bool longer = differs && *alone.unlimited > alone.limited.value_or(0);
    rows.push_back({.label = alone.type + " alone",
                    .drawing = drawing("thin", alone.type + " alone: " + value,
                                       longer ? Html{unlimited, limited} : Html{limited, unlimited}),
                    .figure = value});
  }
  return {paragraph("", cheapest(plan) ? "Lowest cost that carries the demand, compared with fleets of one type."
                                       : "Requests per second for the budget, compared with fleets of one type."),
          legend({{"fill c7", "with the available devices"}, {"m4", "with unlimited devices"}}), chart(rows)};
}

Html slower(const RentPlan& plan) {
  if (plan.predicted.slower.empty()) return {};
  const bool demand = plan.predicted.headroom.has_value();
  std::vector<std::vector<Html>> rows;
  for (const SlowerCase& one : plan.predicted.slower) {
    const std::string planned = !cheapest(plan)              ? ""
                                : one.replanned_usd_per_hour ? hourly(*one.replanned_usd_per_hour)
                                                             : "cannot";
    rows.push_back({fmt::format("{} {:g} times slower", one.type.empty() ? "all types" : one.type, one.factor),
                    fmt::format("{:.4g} requests/s", one.throughput_per_s),
                    demand ? percent(one.throughput_per_s / total_demand_per_s(plan.offers)) : "", planned});
  }
  return table(
      {"if", ">throughput of this fleet", demand ? ">of the demand" : "", cheapest(plan) ? ">planned again" : ""},
      rows);
}

Html head(const RentPlan& plan) {
  const RentPrediction& predicted = plan.predicted;
  std::vector<PageFigure> list = {
      {"cost", hourly(predicted.cost_usd_per_hour),
       plan.goal.budget_usd_per_hour ? fmt::format("of a budget of {}", hourly(*plan.goal.budget_usd_per_hour))
                                     : "lowest cost for the demand"},
      {"carries", fmt::format("{:.4g}/s", predicted.throughput_per_s), "requests of this mix"}};
  if (predicted.headroom) list.push_back({"of the demand", percent(*predicted.headroom), ""});
  if (plan.offers.utilisation < 1)
    list.push_back({"use of the copies", percent(plan.offers.utilisation), "at this load"});
  if (predicted.startup_usd_per_hour > 0)
    list.push_back({"start of new copies", hourly(predicted.startup_usd_per_hour), "until the next plan"});
  if (plan.goal.survive > 0) list.push_back({"survives", percent(plan.goal.survive), "after the loss of any domain"});
  list.push_back(gap_figure(plan.search));
  const std::string bound =
      !plan.search.bound ? ""
      : cheapest(plan)
          ? fmt::format("No fleet of these offers costs less than {}.", hourly(*plan.search.bound))
          : fmt::format("No fleet of these offers carries more than {:.4g} requests/s.", *plan.search.bound);
  return {paragraph("lead", rent_summary(plan) + "."), figures(list), search_sentence(plan.search, bound)};
}

}  // namespace

std::string html_report(const RentPlan& plan) {
  return page("motley plan: rent", plan.model ? "A fleet for " + plan.model->name : "A fleet to rent", head(plan),
              {{"fleet", "Fleet", fleet(plan)},
               {"classes", "Requests", classes(plan)},
               {"alternatives", "Alternatives", alternatives(plan)},
               {"devices", "Devices", devices(plan)},
               {"slower", "If devices are slower", slower(plan)},
               {"workload", "Workload", plan.workload ? workload_content(*plan.workload) : Html()}});
}

}  // namespace motley
