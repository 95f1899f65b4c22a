#include "motley/agent/link_probe.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/base/version.hpp"
#include "motley/probe/links/member_probe.hpp"

namespace motley {
namespace {

constexpr double connect_s = 10;  // for all to meet

ProbedLinks measure(const ProbeLinks& asked, const std::string& name, Fabric& fabric, const std::stop_token& stop) {
  Epoch epoch;
  epoch.group = "links";
  epoch.number = asked.number;
  int rank = -1;
  for (const ProbeMember& member : asked.members) {
    if (member.name == name) rank = static_cast<int>(epoch.members.size());
    epoch.members.push_back({.id = member.name, .incarnation = 0, .host = {}, .address = member.fabric_address});
  }
  if (rank < 0) throw Error(ErrorCode::peer, fmt::format("{} is not among those that are to be measured", name));
  Communicator group(epoch, fabric.connect(epoch, rank, connect_s, stop));
  const MemberProbeResult result = probe_members(
      group,
      {.seconds = asked.seconds, .pairs_alone = true, .settings = std::string(version()), .date = {}, .report = {}});
  ProbedLinks links{.number = asked.number, .links = {}, .failure = {}};
  if (rank > 0) return links;
  for (const MemberLink& link : fit_links(result.measured))
    links.links.push_back({.from = static_cast<std::uint32_t>(link.from),
                           .to = static_cast<std::uint32_t>(link.to),
                           .latency_s = link.latency_s,
                           .bytes_per_s = link.rate.bytes_per_s});
  return links;
}

}  // namespace

LinkProbe::LinkProbe(ProbeLinks asked, std::string name, std::shared_ptr<Fabric> fabric, const Wakeup& wake)
    : thread_([this, asked = std::move(asked), name = std::move(name), fabric = std::move(fabric),
               &wake](const std::stop_token& stop) {
        ProbedLinks links{.number = asked.number, .links = {}, .failure = {}};
        try {
          links = measure(asked, name, *fabric, stop);
        } catch (const std::exception& error) {
          links.failure = error.what();
        }
        const std::lock_guard lock(mutex_);
        result_ = std::move(links);
        wake.notify();
      }) {}

LinkProbe::~LinkProbe() = default;

std::optional<ProbedLinks> LinkProbe::result() const {
  const std::lock_guard lock(mutex_);
  return result_;
}

}  // namespace motley
