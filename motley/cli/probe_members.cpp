#include "motley/cli/probe_members.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <set>
#include <sstream>

#include "motley/base/units.hpp"
#include "motley/base/version.hpp"
#include "motley/cluster/write.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/cost/collective/genmodel_fit.hpp"
#include "motley/probe/member_cluster.hpp"
#include "motley/report/table.hpp"
#include "motley/server/member_probe.hpp"
#include "motley/server/probe.hpp"

namespace motley::cli {
namespace {

Epoch checked_epoch(const MemberOptions& options) {
  Epoch epoch = epoch_of_members(options, "motley cluster probe");
  if (epoch.members.size() < 2 || epoch.members.size() > most_probe_members)
    throw input_error(
        fmt::format("--members names {} addresses", epoch.members.size()),
        fmt::format("give between 2 and {}, comma-separated, as in 10.0.0.1:4711,10.0.0.2:4711", most_probe_members));
  return epoch;
}

// A cluster of one device per machine, with what is known of it: its memory.
Cluster described_by_members(const std::vector<std::string>& addresses, const std::vector<std::string>& names,
                             const std::vector<std::int64_t>& memory_bytes) {
  ClusterDescription description = this_machine();
  description.name = "probed";
  description.device_types[0].memory_bytes = *std::min_element(memory_bytes.begin(), memory_bytes.end()) / 2;
  const MachineDescription one = description.machines[0];
  std::set<std::string> hosts;
  for (const auto& address : addresses) hosts.insert(host_of(address));
  description.machines.clear();
  for (std::size_t m = 0; m < addresses.size(); ++m) {
    MachineDescription& machine = description.machines.emplace_back(one);
    machine.name = names.empty() ? fmt::format("member-{}", m) : names[m];
    machine.host_memory_bytes = memory_bytes[m];
    if (hosts.size() == addresses.size()) machine.address = host_of(addresses[m]);
  }
  return resolve(std::move(description), "the probed members");
}

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

Value measured_json(const MemberProbeResult& result, const MemberFit& fit, const std::vector<std::string>& machines) {
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

std::string report(const MemberFit& fit, const std::vector<std::string>& machines) {
  const auto called = [&](int member) { return machines[static_cast<std::size_t>(member)]; };
  Table links({{"from"}, {"to"}, {"latency", Align::right}, {"bandwidth", Align::right}, {"start", Align::right}});
  for (const auto& link : fit.links)
    links.add({called(link.from), called(link.to), human_seconds(link.latency_s), human_rate(link.rate.bytes_per_s),
               human_seconds(link.rate.alpha_s)});
  Table ports({{"port of"}, {"up", Align::right}, {"down", Align::right}, {"latency", Align::right}});
  const auto add_port = [&](const std::string& what, const MemberPort& port) {
    ports.add(
        {what, human_rate(port.up_bytes_per_s), human_rate(port.down_bytes_per_s), human_seconds(port.latency_s)});
  };
  for (std::size_t m = 0; m < machines.size(); ++m) add_port(machines[m], fit.tree.ports[m]);
  for (int g = 0; fit.tree.groups() > 1 && g < fit.tree.groups(); ++g)
    if (fit.tree.members_of(g) > 1)
      add_port(uplink_name(fit.tree, machines, g), fit.tree.uplinks[static_cast<std::size_t>(g)]);
  Table totals({{"at once"}, {"flows"}, {"measured", Align::right}, {"switches", Align::right}});
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

std::string heading(const MemberProbeResult& result, const MemberFit& fit) {
  std::string text =
      fmt::format("Links measured by `motley cluster probe --members` at {}, {} members, {} exchanges.\n{}.", fit.date,
                  fit.members, result.measured.samples.size(), tree_sentence(fit));
  if (fit.incast && fit.tree.fits()) text += fmt::format("\n{}.", incast_sentence(fit));
  return text;
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

void warn_of(const ProbedCluster& probed, const MemberFit& fit, bool quiet) {
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
  warn(warnings, quiet);
}

void write_result(const MemberProbeCommand& command, const MemberProbeResult& result, const Cluster& cluster,
                  const std::vector<std::string>& machines) {
  const MemberFit fit = fit_members(result.measured);
  const ProbedCluster probed = probed_cluster(cluster, machines, fit);
  (void)resolve(probed.description, "the probed cluster");  // what is written can be read
  warn_of(probed, fit, command.output.quiet);
  const std::string& file = command.output.file;
  if (!file.empty()) {
    write_file(file, file.ends_with(".json") ? to_json(write(probed.description), 2) + "\n"
                                             : cluster_toml(probed.description, heading(result, fit)));
    if (!command.output.quiet) fmt::print(stderr, "wrote {}\n", file);
  }
  if (command.output.json)
    fmt::print("{}\n", to_json(Value::object({{"cluster", write(probed.description)},
                                              {"measured", measured_json(result, fit, machines)}}),
                               2));
  else
    fmt::print("{}", report(fit, machines));
}

std::unique_ptr<Transport> meet(const MemberProbeCommand& command, Fabric& fabric, const Epoch& epoch) {
  try {
    return fabric.connect(epoch, command.member.rank, command.wait_s);
  } catch (const ConnectError& error) {
    throw Error(error.code(), error.what(),
                error.code() == ErrorCode::limit
                    ? "start the same command on every member, each with its own --rank, within --wait seconds"
                    : "give all members the same --members in the same order, the same --key or certificates of one "
                      "authority, and the same --plain");
  }
}

}  // namespace

int run_member_probe(const MemberProbeCommand& command) {
  const Epoch epoch = checked_epoch(command.member);
  std::vector<std::string> addresses;
  for (const Member& member : epoch.members) addresses.push_back(member.address);
  const auto names = split(command.names);
  if (!names.empty() && names.size() != addresses.size())
    throw input_error(
        fmt::format("--names needs one name per member, found {} names for {} members", names.size(), addresses.size()),
        "give one name for each of --members, in their order");
  if (!names.empty() && !command.cluster.empty())
    throw input_error("--names cannot be combined with --cluster", "leave --names out: the cluster file has the names");
  const double seconds = command.seconds > 0 ? command.seconds : probe_seconds(static_cast<int>(addresses.size()));
  const bool writes = command.member.rank == 0;
  std::optional<Cluster> cluster;
  std::vector<std::string> machines;
  if (writes) {
    check_output_folder(command.output);
    if (!command.cluster.empty()) {
      cluster = read_cluster(command.cluster);
      machines = machines_of_members(*cluster, addresses);
    }
  }

  Fabric fabric(fabric_of_member(command.member, addresses[static_cast<std::size_t>(command.member.rank)]));
  Communicator group(epoch, meet(command, fabric, epoch));

  MemberProbeOptions asked{
      .seconds = seconds,
      .settings = fmt::format("{} {} {}", version(), command.member.members, command.member.transport),
      .date = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr))),
      .report = {}};
  if (writes && !command.output.quiet)
    asked.report = [](const std::string& what, double elapsed_s) {
      fmt::print(stderr, "[{:7.2f}s] {}\n", elapsed_s, what);
    };
  const MemberProbeResult result = probe_members(group, asked);
  if (!writes) return 0;
  if (!cluster) {
    cluster = described_by_members(addresses, names, result.memory_bytes);
    for (const Machine& machine : cluster->machines) machines.push_back(machine.name);
  }
  write_result(command, result, *cluster, machines);
  return 0;
}

}  // namespace motley::cli
