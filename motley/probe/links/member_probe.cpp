#include "motley/probe/links/member_probe.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/index.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/plan/collective_programs.hpp"
#include "motley/probe/fit/typical.hpp"
#include "motley/probe/fit/unknown_machine.hpp"

namespace motley {
namespace {

constexpr double patience_s = 60;      // of one exchange, beyond the time that all should take
constexpr double latency_share = 0.1;  // of the seconds: for round trips
constexpr int least_trips = 5, most_trips = 1000, warm_up_trips = 2;
constexpr double collective_share = 0.02;                          // of the seconds: for one large all_reduce
constexpr std::int64_t least_collective = std::int64_t{32} << 10;  // smaller ones run in one round
constexpr std::int64_t most_collective = std::int64_t{16} << 20;   // larger ones are cut into chunks
constexpr int collective_repeats = 3;
constexpr double longest_s = 3600;  // that a member may claim
constexpr std::int64_t least_memory = std::int64_t{1} << 20, most_memory = std::int64_t{1} << 50;

// FNV-1a: what is compared here needs no secrecy.
std::uint64_t digest(const std::string& text) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
  return hash;
}

struct Introduction {
  std::uint64_t settings = 0;
  double seconds = 0;
  std::int64_t memory_bytes = 0;
};

class MemberProbe {
 public:
  MemberProbe(Communicator& group, const MemberProbeOptions& options)
      : group_(group), options_(options), members_(group.size()) {
    operation_.timeout_s = options.seconds + patience_s;
  }

  MemberProbeResult run() {
    MemberProbeResult result;
    result.memory_bytes = introduce();
    result.measured.members = members_;
    result.measured.date = options_.date;
    result.measured.round_trip_s = round_trips();
    const ProbeSchedule schedule{.members = members_,
                                 .seconds = options_.seconds,
                                 .pairs_alone = options_.pairs_alone,
                                 .round_trip_s = result.measured.round_trip_s};
    auto& samples = result.measured.samples;
    ProbePhase phase{};
    while (const auto next = next_exchange(schedule, samples)) {
      if (samples.empty() || next->phase != phase) tell(description(phase = next->phase));
      samples.push_back(measure(*next));
    }
    if (members_ > 2 && !options_.pairs_alone)
      result.measured.collectives = measure_collectives(alike_ports(fit_members(result.measured).tree));
    must_be_ok(group_.barrier(operation_));
    return result;
  }

 private:
  static std::string description(ProbePhase phase) {
    switch (phase) {
      case ProbePhase::flow: return "bandwidth of every pair";
      case ProbePhase::spread: return "one to all others";
      case ProbePhase::incast: return "several to one";
      case ProbePhase::pairs: return "pairs at once, both ways";
      case ProbePhase::all: return "all to all";
    }
    return "";
  }

  void tell(const std::string& what) const {
    if (options_.report) options_.report(what, seconds_since(start_));
  }

  static void must_be_ok(const OperationOutcome& outcome) {
    if (outcome.status != OperationStatus::ok)
      throw Error(ErrorCode::peer, fmt::format("the probe ended early ({}): {}", name(outcome.status), outcome.cause),
                  "start it again on all members with the same options");
  }

  // Every member's values, by rank.
  template <typename T>
  std::vector<T> gather(const std::vector<T>& own) {
    std::vector<T> all(own.size() * at(members_));
    std::copy(own.begin(), own.end(), all.begin() + group_.rank() * static_cast<std::ptrdiff_t>(own.size()));
    must_be_ok(group_.all_gather(std::as_writable_bytes(std::span(all)), operation_));
    return all;
  }

  // The members' memory; they are compared with rank 0.
  std::vector<std::int64_t> introduce() {
    const auto memory = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
    const auto all = gather<Introduction>({{digest(options_.settings), options_.seconds, memory}});
    std::vector<std::int64_t> list;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!(std::abs(all[rank].seconds - all[0].seconds) <= 0))
        throw Error(ErrorCode::peer,
                    fmt::format("member {} wants to measure for {} s, member 0 for {} s", rank, all[rank].seconds,
                                all[0].seconds),
                    "give all members the same --seconds");
      if (all[rank].settings != all[0].settings)
        throw Error(ErrorCode::peer, fmt::format("member {} has other options than member 0", rank),
                    "start all members with the same version, --members and --seconds");
      if (all[rank].memory_bytes < least_memory || all[rank].memory_bytes > most_memory)
        throw Error(ErrorCode::peer, fmt::format("member {} claims {} bytes of memory", rank, all[rank].memory_bytes));
      list.push_back(all[rank].memory_bytes);
    }
    return list;
  }

  double checked_time(double time_s, int rank) const {
    if (!(time_s >= 0 && time_s <= longest_s))
      throw Error(ErrorCode::peer, fmt::format("member {} reports a time of {} s", rank, time_s));
    return time_s;
  }

  // The lower rank asks, and says with every question whether it is the last one.
  double ping(int peer, double time_s) {
    std::vector<double> trips;
    const Instant start = Clock::now();
    for (std::uint64_t more = 1; more == 1;) {
      const int done = static_cast<int>(trips.size());
      more = done < warm_up_trips + least_trips || (done < most_trips && seconds_since(start) < time_s) ? 1 : 0;
      const Instant question = Clock::now();
      must_be_ok(group_.send(std::as_bytes(std::span(&more, 1)), peer, operation_));
      std::uint64_t answer = 0;
      must_be_ok(group_.recv(std::as_writable_bytes(std::span(&answer, 1)), peer, operation_));
      trips.push_back(seconds_since(question));
      if (answer != more) throw Error(ErrorCode::peer, fmt::format("member {} answers {} to {}", peer, answer, more));
    }
    trips.erase(trips.begin(), trips.begin() + warm_up_trips);
    return typical(std::move(trips));
  }

  void answer_pings(int peer) {
    for (std::uint64_t more = 1; more == 1;) {
      must_be_ok(group_.recv(std::as_writable_bytes(std::span(&more, 1)), peer, operation_));
      must_be_ok(group_.send(std::as_bytes(std::span(&more, 1)), peer, operation_));
    }
  }

  std::vector<double> round_trips() {
    tell("round trips");
    const auto rounds = meeting_rounds(members_);
    const double time_s = latency_share * options_.seconds / static_cast<double>(rounds.size());
    std::vector<double> own(at(members_), 0);
    for (const auto& pairs : rounds) {
      must_be_ok(group_.barrier(operation_));
      for (const auto& [a, b] : pairs) {
        if (group_.rank() == a) own[at(b)] = ping(b, time_s);
        if (group_.rank() == b) answer_pings(a);
      }
    }
    auto all = gather(own);
    for (int a = 0; a < members_; ++a)
      for (int b = a + 1; b < members_; ++b)
        all[at(b) * at(members_) + at(a)] = checked_time(all[at(a) * at(members_) + at(b)], a);
    return all;
  }

  ProbeSample measure(const ProbeExchange& exchange) {
    std::vector<std::int64_t> in_bytes(at(members_), 0), out_bytes(at(members_), 0);
    std::int64_t sent = 0, received = 0;
    for (const auto& flow : exchange.flows) {
      if (flow.from == group_.rank()) sent += in_bytes[at(flow.to)] = flow.bytes;
      if (flow.to == group_.rank()) received += out_bytes[at(flow.from)] = flow.bytes;
    }
    if (sending_.size() < static_cast<std::size_t>(sent)) sending_.resize(static_cast<std::size_t>(sent));
    if (receiving_.size() < static_cast<std::size_t>(received)) receiving_.resize(static_cast<std::size_t>(received));
    // Nothing is sent before everybody has looked at the clock: a member that is late to begin finds its time longer
    // for it, never shorter.
    must_be_ok(group_.barrier(operation_));
    const Instant ready = Clock::now();
    must_be_ok(group_.barrier(operation_));
    const double before_s = seconds_since(ready);
    const auto outcome =
        group_.all_to_all(std::span(sending_).first(static_cast<std::size_t>(sent)), in_bytes,
                          std::span(receiving_).first(static_cast<std::size_t>(received)), out_bytes, operation_);
    must_be_ok(outcome);
    std::vector<double> own(at(members_), 0);
    for (const auto& link : outcome.links)
      if (out_bytes[at(link.peer)] > 0) own[at(link.peer)] = before_s + link.last_s;
    const auto all = gather(own);
    ProbeSample sample{.exchange = exchange, .seconds = {}};
    for (const auto& flow : exchange.flows)
      sample.seconds.push_back(std::max(1e-9, checked_time(all[at(flow.to) * at(members_) + at(flow.from)], flow.to)));
    return sample;
  }

  // All_reduces of one chunk, so that their rounds follow one another as GenModel has it: in one group, as a ring, and
  // in groups of two factors where the members have them.
  std::vector<MeasuredCollective> measure_collectives(double port_bytes_per_s) {
    if (port_bytes_per_s <= 0) return {};
    tell("all_reduce in several shapes");
    std::vector<std::vector<int>> shapes{{members_}, {}};
    for (int factor = 2; factor * factor <= members_; ++factor)
      if (members_ % factor == 0) shapes.push_back({members_ / factor, factor});
    const double largest = std::clamp(collective_share * options_.seconds * port_bytes_per_s / 2,
                                      16.0 * least_collective, 1.0 * most_collective);
    std::vector<MeasuredCollective> list;
    for (const auto& factors : shapes)
      for (const double share : {1.0 / 16, 1.0 / 4, 1.0}) {
        const std::int64_t unit = std::int64_t{16} * members_;
        const std::int64_t bytes = static_cast<std::int64_t>(share * largest) / unit * unit;
        const CollectiveShape shape{.ranks = members_, .bytes = bytes};
        std::vector<int> order(at(members_));
        std::iota(order.begin(), order.end(), 0);
        group_.use_plans({factors.empty() ? ring_program(shape, order) : factored_program(shape, factors)});
        list.push_back({members_, factors, static_cast<double>(bytes), all_reduce_s(bytes)});
      }
    group_.use_plans({});
    return list;
  }

  // The least of several times of the slowest member.
  double all_reduce_s(std::int64_t bytes) {
    sending_.resize(std::max(sending_.size(), static_cast<std::size_t>(bytes)));
    double least = longest_s;
    for (int repeat = 0; repeat < collective_repeats; ++repeat) {
      must_be_ok(group_.barrier(operation_));
      const Instant start = Clock::now();
      must_be_ok(group_.all_reduce(std::span(sending_).first(static_cast<std::size_t>(bytes)), CollectiveElement::fp32,
                                   operation_));
      const auto all = gather<double>({seconds_since(start)});
      double slowest = 0;
      for (int rank = 0; rank < members_; ++rank) slowest = std::max(slowest, checked_time(all[at(rank)], rank));
      least = std::min(least, std::max(slowest, 1e-9));
    }
    return least;
  }

  Communicator& group_;
  const MemberProbeOptions& options_;
  int members_;
  OperationOptions operation_;
  Instant start_ = Clock::now();
  std::vector<std::byte> sending_, receiving_;
};

}  // namespace

MemberProbeResult probe_members(Communicator& group, const MemberProbeOptions& options) {
  if (group.size() < 2 || group.size() > most_probe_members)
    throw input_error(fmt::format("{} members", group.size()),
                      fmt::format("give between 2 and {} members", most_probe_members));
  return MemberProbe(group, options).run();
}

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

}  // namespace motley
