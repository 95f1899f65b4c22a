// What `motley cluster probe --members` measures between members, and in which order: values in, values out. Every
// member computes the same schedule from the same samples, so that none has to tell the others what comes next.
//
// An exchange is a set of flows that begin at once. Exchanges of one series have the same flows with more and more
// bytes, until one takes long enough; that size is then measured again until two times agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace motley {

enum class ProbePhase {
  flow,    // one pair alone; in larger groups disjoint pairs at once
  spread,  // one member sends to all others
  incast,  // several members send to one
  pairs,   // disjoint pairs at once, both ways
  all      // everybody sends to everybody
};
std::string_view name(ProbePhase phase);

struct ProbeFlow {
  int from = 0, to = 0;
  std::int64_t bytes = 0;
  bool operator==(const ProbeFlow&) const = default;
};

struct ProbeExchange {
  ProbePhase phase = ProbePhase::flow;
  int series = 0;  // of probe_series()
  std::vector<ProbeFlow> flows;

  std::int64_t bytes() const;
  // The most that one member sends or receives.
  std::int64_t busiest_bytes() const;
  bool operator==(const ProbeExchange&) const = default;
};

struct ProbeSample {
  ProbeExchange exchange;
  std::vector<double> seconds;  // of every flow: from the start to its last byte at the receiver

  double longest_s() const;
};

using MemberPair = std::pair<int, int>;  // from, to

struct ProbeSeries {
  ProbePhase phase = ProbePhase::flow;
  std::vector<MemberPair> flows;
};

constexpr double same_time = 0.05;  // relative: times so near to each other are the same
constexpr int most_probe_members = 64;
constexpr std::int64_t most_probe_bytes = std::int64_t{256} << 20;  // that a member sends or receives in one exchange
constexpr int most_probe_exchanges = 12;                            // of a series

// Rounds of disjoint pairs (a < b) in which all meet all: members - 1 rounds, as many as members where they are odd.
std::vector<std::vector<MemberPair>> meeting_rounds(int members);

// Groups of up to eight members are measured pair by pair, with every number of senders to one; larger ones in disjoint
// pairs, with senders in powers of two. Up to four members send to all others and are sent to by several.
std::vector<ProbeSeries> probe_series(int members);

// Traffic of about this many seconds measures a group well: 10 for small ones.
double probe_seconds(int members);

struct ProbeSchedule {
  int members = 2;
  double seconds = 10;                    // of traffic, about; more where round trips are long
  bool pairs_alone = false;               // the first phase alone
  std::vector<double> round_trip_s = {};  // between members a and b at a * members + b; empty: all are short
};

// What comes after these samples; nothing: all is measured. `samples` are those of the exchanges that earlier calls
// returned, in order.
std::optional<ProbeExchange> next_exchange(const ProbeSchedule& schedule, const std::vector<ProbeSample>& samples);

}  // namespace motley
