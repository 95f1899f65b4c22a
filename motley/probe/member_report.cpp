#include "motley/probe/member_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/units.hpp"
#include "motley/cost/collective/genmodel_fit.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

Value rate_json(const MeasuredRate& rate) {
  return Value::object({{"bytes_per_s", rate.bytes_per_s}, {"alpha_s", rate.alpha_s}, {"error", rate.error}});
}

Value pairs_json(const std::vector<MemberPair>& pairs) {
  Value list = Value::array();
  for (const auto& [from, to] : pairs) {
    Value pair = Value::array();
    pair.push_back(from);
    pair.push_back(to);
    list.push_back(pair);
  }
  return list;
}

Value samples_json(const std::vector<ProbeSample>& samples) {
  Value list = Value::array();
  for (const auto& [exchange, seconds] : samples) {
    Value flows = Value::array();
    for (std::size_t i = 0; i < seconds.size(); ++i)
      flows.push_back(Value::object({{"from", exchange.flows[i].from},
                                     {"to", exchange.flows[i].to},
                                     {"bytes", exchange.flows[i].bytes},
                                     {"seconds", seconds[i]}}));
    list.push_back(
        Value::object({{"phase", std::string(name(exchange.phase))}, {"series", exchange.series}, {"flows", flows}}));
  }
  return list;
}

Value ports_json(const std::vector<MemberPort>& ports) {
  Value list = Value::array();
  for (const auto& port : ports)
    list.push_back(Value::object({{"up_bytes_per_s", port.up_bytes_per_s},
                                  {"down_bytes_per_s", port.down_bytes_per_s},
                                  {"latency_s", port.latency_s}}));
  return list;
}

Value tree_json(const MemberTree& tree) {
  Value groups = Value::array();
  for (const int group : tree.group) groups.push_back(group);
  return Value::object({{"fits", tree.fits()},
                        {"ports", ports_json(tree.ports)},
                        {"group", groups},
                        {"uplinks", tree.groups() > 1 ? ports_json(tree.uplinks) : Value::array()},
                        {"link_error", tree.link_error},
                        {"total_error", tree.total_error},
                        {"latency_error_s", tree.latency_error_s}});
}

Value collectives_json(const std::vector<MeasuredCollective>& collectives) {
  Value list = Value::array();
  for (const auto& one : collectives) {
    Value factors = Value::array();
    for (const int factor : one.factors) factors.push_back(factor);
    list.push_back(Value::object({{"factors", factors}, {"bytes", one.bytes}, {"seconds", one.seconds}}));
  }
  return list;
}

std::string tree_sentence(const MemberFit& fit) {
  const char* what = fit.tree.groups() > 1 ? "Two levels of switches explain"
                     : fit.tree.fits()     ? "One switch explains"
                                           : "No arrangement of switches explains";
  return fmt::format("{} the measurements: pairs alone within {:.0f} %, one to all and pairs at once within {:.0f} %",
                     what, 100 * fit.tree.link_error, 100 * fit.tree.total_error);
}

std::string incast_sentence(const MemberFit& fit) {
  if (!fit.incast) return "";
  const MemberIncast& incast = *fit.incast;
  if (incast.threshold == 0)
    return fmt::format("No incast: several senders to one within {:.0f} % of its port", 100 * incast.largest_error);
  return fmt::format("Incast from {} on (the receiver counted): {} more, residual {:.1f} %, largest error {:.1f} %{}",
                     incast.threshold + 1, fmt::format("{:.2e} s/B", incast.cost_s_per_byte), 100 * incast.residual,
                     100 * incast.largest_error, incast.largest_error > most_fit_error ? ": refused" : "");
}

std::string genmodel_sentence(const GenModelFit& fit) {
  return fmt::format(
      "GenModel of all_reduce: {} a round, {:.2e} s/B (2 beta + gamma), {:.2e} s/B an access, residual {:.1f} %, "
      "largest "
      "error {:.1f} %{}",
      human_seconds(fit.alpha_s), fit.transfer_s_per_byte, fit.delta_s_per_byte, 100 * fit.residual,
      100 * fit.largest_error, fit.largest_error > most_fit_error ? ": refused" : "");
}

std::string uplink_name(const MemberTree& tree, const std::vector<std::string>& machines, int group) {
  std::string members;
  for (std::size_t m = 0; m < machines.size(); ++m)
    if (tree.group[m] == group) members += (members.empty() ? "" : ", ") + machines[m];
  return "uplink of " + members;
}

// The least share that disjoint pairs at once got of their own rates together.
double pairs_share(const MemberFit& fit) {
  double least = 1;
  for (const MemberTotal& total : fit.totals) {
    if (total.phase != ProbePhase::pairs) continue;
    double alone = 0;
    for (const auto& [from, to] : total.flows) alone += fit.link(from, to).rate.bytes_per_s;
    least = std::min(least, total.rate.bytes_per_s / alone);
  }
  return least;
}

}  // namespace

Value member_json(const MemberProbeResult& result, const MemberFit& fit, const std::vector<std::string>& machines) {
  Value links = Value::array(), totals = Value::array(), names = Value::array();
  for (const auto& machine : machines) names.push_back(machine);
  for (const auto& link : fit.links) {
    Value row = rate_json(link.rate);
    row.set("from", link.from);
    row.set("to", link.to);
    row.set("latency_s", link.latency_s);
    links.push_back(row);
  }
  for (const auto& total : fit.totals) {
    Value row = rate_json(total.rate);
    row.set("phase", std::string(name(total.phase)));
    row.set("flows", pairs_json(total.flows));
    row.set("tree_bytes_per_s", total.tree_bytes_per_s);
    totals.push_back(row);
  }
  Value measured = Value::object({{"date", fit.date},
                                  {"machines", names},
                                  {"links", links},
                                  {"totals", totals},
                                  {"tree", tree_json(fit.tree)},
                                  {"collectives", collectives_json(result.measured.collectives)},
                                  {"samples", samples_json(result.measured.samples)}});
  if (fit.incast)
    measured.set("incast", Value::object({{"threshold", fit.incast->threshold},
                                          {"cost_s_per_byte", fit.incast->cost_s_per_byte},
                                          {"residual", fit.incast->residual},
                                          {"largest_error", fit.incast->largest_error},
                                          {"measurements", fit.incast->measurements},
                                          {"accepted", fit.incast->largest_error <= most_fit_error}}));
  if (fit.genmodel)
    measured.set("genmodel", Value::object({{"alpha_s", fit.genmodel->alpha_s},
                                            {"transfer_s_per_byte", fit.genmodel->transfer_s_per_byte},
                                            {"delta_s_per_byte", fit.genmodel->delta_s_per_byte},
                                            {"epsilon_s_per_byte", fit.genmodel->epsilon_s_per_byte},
                                            {"threshold", fit.genmodel->threshold},
                                            {"residual", fit.genmodel->residual},
                                            {"largest_error", fit.genmodel->largest_error},
                                            {"measurements", fit.genmodel->measurements},
                                            {"date", fit.genmodel->date},
                                            {"accepted", fit.genmodel->largest_error <= most_fit_error}}));
  return measured;
}

std::string member_text(const MemberFit& fit, const std::vector<std::string>& machines) {
  const auto called = [&](int member) { return machines[static_cast<std::size_t>(member)]; };
  Table links({"from", "to", ">latency", ">bandwidth", ">start"});
  for (const auto& link : fit.links)
    links.add({called(link.from), called(link.to), human_seconds(link.latency_s), human_rate(link.rate.bytes_per_s),
               human_seconds(link.rate.alpha_s)});
  Table ports({"port of", ">up", ">down", ">latency"});
  const auto add_port = [&](const std::string& what, const MemberPort& port) {
    ports.add(
        {what, human_rate(port.up_bytes_per_s), human_rate(port.down_bytes_per_s), human_seconds(port.latency_s)});
  };
  for (std::size_t m = 0; m < machines.size(); ++m) add_port(machines[m], fit.tree.ports[m]);
  for (int g = 0; fit.tree.groups() > 1 && g < fit.tree.groups(); ++g)
    if (fit.tree.members_of(g) > 1)
      add_port(uplink_name(fit.tree, machines, g), fit.tree.uplinks[static_cast<std::size_t>(g)]);
  Table totals({"at once", "flows", ">measured", ">switches"});
  for (const auto& total : fit.totals) {
    std::string flows;
    if (total.phase == ProbePhase::spread)
      flows = fmt::format("{} to {}", called(total.flows[0].first), total.flows.size());
    if (total.phase == ProbePhase::incast)
      flows = fmt::format("{} to {}", total.flows.size(), called(total.flows[0].second));
    if (flows.empty()) flows = std::to_string(total.flows.size());
    totals.add({std::string(name(total.phase)), flows, human_rate(total.rate.bytes_per_s),
                human_rate(total.tree_bytes_per_s)});
  }
  std::string text = fmt::format("{}\n{}\n", links.render(), totals.render());
  if (fit.tree.fits()) text += fmt::format("{}\n", ports.render());
  text += tree_sentence(fit) + "\n";
  if (fit.incast) text += incast_sentence(fit) + "\n";
  if (fit.genmodel) text += genmodel_sentence(*fit.genmodel) + "\n";
  return text;
}

std::string member_heading(const MemberProbeResult& result, const MemberFit& fit) {
  std::string text =
      fmt::format("Links measured by `motley cluster probe --members` at {}, {} members, {} exchanges.\n{}.", fit.date,
                  fit.members, result.measured.samples.size(), tree_sentence(fit));
  if (fit.incast && fit.tree.fits()) text += fmt::format("\n{}.", incast_sentence(fit));
  return text;
}

std::vector<std::string> member_warnings(const ProbedCluster& probed, const MemberFit& fit) {
  std::vector<std::string> warnings;
  if (probed.switches == SwitchChange::not_explained)
    warnings.push_back(
        fmt::format("the cluster keeps its [[switch]] tables, and collectives are planned with them: one switch would "
                    "explain the measurements with an error of up to {:.0f} %",
                    100 * std::max(fit.tree.link_error, fit.tree.total_error)));
  if (const double share = pairs_share(fit); probed.switches == SwitchChange::none && share < 1 - most_tree_total_error)
    warnings.push_back(
        fmt::format("pairs at once reach only {:.0f} % of their bandwidth alone, and no arrangement of switches "
                    "explains this: plans by pairs of links promise too much",
                    100 * share));
  if (probed.incast_refused)
    warnings.push_back(fmt::format("incast was measured, but its fit has an error of up to {:.0f} %: it is not written",
                                   100 * fit.incast->largest_error));
  return warnings;
}

}  // namespace motley
