#include "motley/cli/cluster_probe_members.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <optional>

#include "motley/base/printable.hpp"
#include "motley/base/version.hpp"
#include "motley/cli/command.hpp"
#include "motley/cluster/write_cluster.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/probe/fit/member_cluster.hpp"
#include "motley/probe/links/member_probe.hpp"
#include "motley/probe/member_report.hpp"
#include "motley/probe/probe.hpp"

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

void write_result(const MemberProbeCommand& command, const MemberProbeResult& result, const Cluster& cluster,
                  const std::vector<std::string>& machines) {
  const MemberFit fit = fit_members(result.measured);
  const ProbedCluster probed = probed_cluster(cluster, machines, fit);
  (void)resolve(probed.description, "the probed cluster");  // what is written can be read
  warn(member_warnings(probed, fit), command.output.quiet);
  const std::string& file = command.output.file;
  if (!file.empty()) {
    write_file(file, file.ends_with(".json") ? to_json(write(probed.description), 2) + "\n"
                                             : cluster_toml(probed.description, member_heading(result, fit)));
    if (!command.output.quiet) fmt::print(stderr, "wrote {}\n", file);
  }
  if (command.output.json)
    fmt::print("{}\n", to_json(Value::object({{"cluster", write(probed.description)},
                                              {"measured", member_json(result, fit, machines)}}),
                               2));
  else
    print_text(stdout, member_text(fit, machines));
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
      fmt::print(stderr, "[{:7.2f}s] {}\n", elapsed_s, printable(what));
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
