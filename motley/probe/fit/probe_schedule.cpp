#include "motley/probe/fit/probe_schedule.hpp"

#include <algorithm>
#include <map>

#include "motley/base/error.hpp"
#include "motley/base/index.hpp"

namespace motley {
namespace {

constexpr int small_group = 8;
constexpr int most_watched = 4;  // members that send to all, and that several send to
constexpr int most_pair_rounds = 8;
constexpr std::int64_t least_bytes = std::int64_t{64} << 10;  // of a flow: half a frame's size and more
constexpr double series_cost = 3;                             // seconds of a series per second of its largest exchange
constexpr double series_seconds = 0.8;                        // that a series should have
constexpr double long_enough = 0.7;                           // of the time aimed at
constexpr double most_growth = 8;                             // from one size to the next: short times mislead
// A stream starts with little under way, and doubles it once in a round trip: 500 Mbit/s over 50 ms take eight to
// reach.
constexpr double settling_trips = 12;    // that an exchange should take at least,
constexpr double most_settling_s = 1.5;  // up to so long
constexpr double settling_growth = 2;    // from one size to the next, in addition: most of a short time is the start
constexpr double gain = 0.01;            // of a repeated exchange: what is more is worth another try
constexpr int most_repeats = 4;          // of the largest size: networks fill up slowly, machines do other things

// All where they are few, otherwise this many, evenly spaced.
std::vector<int> watched_members(int members) {
  const int count = std::min(members, most_watched);
  std::vector<int> watched;
  for (int i = 0; i < count; ++i) watched.push_back(i * members / count);
  return watched;
}

std::vector<int> fan_ins(int members) {
  std::vector<int> list;
  for (int senders = 2; senders < members - 1; members <= small_group ? ++senders : senders *= 2)
    list.push_back(senders);
  list.push_back(members - 1);
  return list;
}

// Bytes per second of every flow that was measured in the first phase, by its largest exchange.
std::map<MemberPair, double> flow_rates(const std::vector<ProbeSample>& samples) {
  std::map<MemberPair, double> rates;
  for (const auto& sample : samples) {
    if (sample.exchange.phase != ProbePhase::flow) continue;
    for (std::size_t i = 0; i < sample.exchange.flows.size(); ++i) {
      const ProbeFlow& flow = sample.exchange.flows[i];
      rates[{flow.from, flow.to}] = static_cast<double>(flow.bytes) / std::max(sample.seconds[i], 1e-9);
    }
  }
  return rates;
}

// Scaled so that the busiest member stays within what an exchange may hold.
void scale_bytes(ProbeExchange& exchange, double factor) {
  const double busiest = static_cast<double>(exchange.busiest_bytes());
  factor = std::min(factor, static_cast<double>(most_probe_bytes) / busiest);
  for (auto& flow : exchange.flows)
    flow.bytes = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(flow.bytes) * factor));
}

// Flows that end together if nothing but the pairs' own rates limits them; those that share a member, as many times
// slower. A quarter of the time aimed at.
ProbeExchange first_exchange(const ProbeSeries& series, int number, double aim_s,
                             const std::vector<ProbeSample>& samples) {
  ProbeExchange exchange{.phase = series.phase, .series = number, .flows = {}};
  const auto rates = flow_rates(samples);
  std::map<int, double> sending, receiving;
  for (const auto& [from, to] : series.flows) {
    ++sending[from];
    ++receiving[to];
  }
  for (const auto& [from, to] : series.flows) {
    std::int64_t bytes = least_bytes;
    if (series.phase != ProbePhase::flow) {
      const double share = rates.at({from, to}) / std::max(sending[from], receiving[to]);
      bytes = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(share * aim_s / 4, 1e12)));
    }
    exchange.flows.push_back({from, to, bytes});
  }
  std::int64_t largest = 0;
  for (const auto& flow : exchange.flows) largest = std::max(largest, flow.bytes);
  scale_bytes(exchange, std::max(1.0, static_cast<double>(least_bytes) / static_cast<double>(largest)));
  return exchange;
}

// That its streams need to reach their rates.
double settling_s(const ProbeSchedule& schedule, const ProbeSeries& series) {
  double round_trip_s = 0;
  for (const auto& [from, to] : series.flows)
    if (!schedule.round_trip_s.empty())
      round_trip_s = std::max(round_trip_s, schedule.round_trip_s.at(at(from) * at(schedule.members) + at(to)));
  return std::min(settling_trips * round_trip_s, most_settling_s);
}

}  // namespace

std::string_view name(ProbePhase phase) {
  switch (phase) {
    case ProbePhase::flow: return "flow";
    case ProbePhase::spread: return "spread";
    case ProbePhase::incast: return "incast";
    case ProbePhase::pairs: return "pairs";
    case ProbePhase::all: return "all";
  }
  return "?";
}

std::int64_t ProbeExchange::bytes() const {
  std::int64_t sum = 0;
  for (const auto& flow : flows) sum += flow.bytes;
  return sum;
}

std::int64_t ProbeExchange::busiest_bytes() const {
  std::map<int, std::int64_t> sent, received;
  std::int64_t most = 0;
  for (const auto& flow : flows)
    most = std::max({most, sent[flow.from] += flow.bytes, received[flow.to] += flow.bytes});
  return most;
}

double ProbeSample::longest_s() const { return *std::max_element(seconds.begin(), seconds.end()); }

std::vector<std::vector<MemberPair>> meeting_rounds(int members) {
  // Round robin: the last place stands still, the others go round. With an odd number one member rests per round.
  const int places = members + members % 2;
  std::vector<std::vector<MemberPair>> rounds;
  for (int round = 0; round + 1 < places; ++round) {
    auto& pairs = rounds.emplace_back();
    for (int i = 0; i < places / 2; ++i) {
      const int a = i == 0 ? places - 1 : (round + i) % (places - 1);
      const int b = (round + places - 1 - i) % (places - 1);
      if (std::max(a, b) < members) pairs.emplace_back(std::min(a, b), std::max(a, b));
    }
    std::sort(pairs.begin(), pairs.end());
  }
  return rounds;
}

std::vector<ProbeSeries> probe_series(int members) {
  MOTLEY_CHECK(members >= 2 && members <= most_probe_members);
  std::vector<ProbeSeries> list;
  const auto rounds = meeting_rounds(members);
  const auto turned = [](std::vector<MemberPair> pairs) {
    for (auto& [from, to] : pairs) std::swap(from, to);
    return pairs;
  };
  if (members <= small_group) {
    for (int from = 0; from < members; ++from)
      for (int to = 0; to < members; ++to)
        if (from != to) list.push_back({ProbePhase::flow, {{from, to}}});
  } else {
    for (const auto& pairs : rounds) {
      list.push_back({ProbePhase::flow, pairs});
      list.push_back({ProbePhase::flow, turned(pairs)});
    }
  }
  if (members > 2) {
    for (const int from : watched_members(members)) {
      auto& spread = list.emplace_back(ProbeSeries{ProbePhase::spread, {}});
      for (int step = 1; step < members; ++step) spread.flows.emplace_back(from, (from + step) % members);
    }
    for (const int to : watched_members(members))
      for (const int senders : fan_ins(members)) {
        auto& incast = list.emplace_back(ProbeSeries{ProbePhase::incast, {}});
        for (int step = 1; step <= senders; ++step) incast.flows.emplace_back((to + step) % members, to);
      }
  }
  for (std::size_t round = 0; round < std::min<std::size_t>(rounds.size(), most_pair_rounds); ++round) {
    auto& both = list.emplace_back(ProbeSeries{ProbePhase::pairs, rounds[round]});
    const auto back = turned(rounds[round]);
    both.flows.insert(both.flows.end(), back.begin(), back.end());
  }
  if (members > 2) {
    auto& all = list.emplace_back(ProbeSeries{ProbePhase::all, {}});
    for (int from = 0; from < members; ++from)
      for (int step = 1; step < members; ++step) all.flows.emplace_back(from, (from + step) % members);
  }
  return list;
}

double probe_seconds(int members) {
  return std::max(10.0, series_seconds * static_cast<double>(probe_series(members).size()));
}

std::optional<ProbeExchange> next_exchange(const ProbeSchedule& schedule, const std::vector<ProbeSample>& samples) {
  auto series = probe_series(schedule.members);
  if (schedule.pairs_alone)
    std::erase_if(series, [](const ProbeSeries& each) { return each.phase != ProbePhase::flow; });
  const double share_s = schedule.seconds / static_cast<double>(series.size()) / series_cost;
  if (samples.empty()) return first_exchange(series[0], 0, share_s, samples);
  const ProbeSample& last = samples.back();
  const int number = last.exchange.series;
  const double start_s = settling_s(schedule, series[at(number)]);
  const bool settles = start_s > share_s;
  const double aim_s = std::max(share_s, start_s), enough_s = settles ? aim_s : long_enough * aim_s;
  std::vector<double> times;  // of the last size
  int measured = 0;           // of the series
  for (const auto& sample : samples) {
    measured += sample.exchange.series == number ? 1 : 0;
    if (sample.exchange == last.exchange) times.push_back(std::max(sample.longest_s(), 1e-9));
  }
  const double last_s = times.back();
  std::sort(times.begin(), times.end());
  // Also after another try: a first one may take long for reasons that are not the network's.
  if (times[0] < enough_s && measured < most_probe_exchanges) {
    ProbeExchange larger = last.exchange;
    scale_bytes(larger, std::clamp((settles ? settling_growth : 1) * aim_s / times[0], 1.0, most_growth));
    return larger;
  }
  // A last time that is the best by far may not be the end of it.
  const bool improving = times.size() > 1 && last_s < (1 - gain) * times[1] && last_s <= times[0];
  const bool settled = times.size() > 1 && times[1] <= (1 + same_time) * times[0] && !improving;
  if (!settled && times.size() < most_repeats && measured < most_probe_exchanges) return last.exchange;
  if (at(number + 1) == series.size()) return std::nullopt;
  return first_exchange(series[at(number + 1)], number + 1, share_s, samples);
}

}  // namespace motley
