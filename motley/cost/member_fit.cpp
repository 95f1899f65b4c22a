#include "motley/cost/member_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double alike = 0.10;         // of a port's figures: the greatest and those so near to it
constexpr double least_incast = 0.05;  // relative: what is less is taken for noise
constexpr double most_latency_error = 0.25;
constexpr double least_latency_s = 100e-6;  // errors below are the machines', not the network's

std::size_t at(int index) { return static_cast<std::size_t>(index); }

struct Point {
  double bytes = 0, seconds = 0;
};

// What other programs take away at times is not the network's: of several times of a size the least counts. The
// members' last word before the start and the last byte's way take a round trip, which is not the rate's.
MeasuredRate rate_of(const std::vector<Point>& points, double round_trip_s) {
  std::map<double, std::vector<double>> by_bytes;
  for (const auto& [bytes, seconds] : points) by_bytes[bytes].push_back(seconds);
  for (auto& [bytes, seconds] : by_bytes) std::sort(seconds.begin(), seconds.end());
  const auto& [bytes, seconds] = *by_bytes.rbegin();
  MeasuredRate rate{
      .bytes_per_s = bytes / (seconds[0] - std::min(round_trip_s, seconds[0] / 2)), .alpha_s = 0, .error = 0};
  rate.error = seconds.size() > 1 ? seconds[1] / seconds[0] - 1 : 0;
  const auto& [least_bytes, least_seconds] = *by_bytes.begin();
  rate.alpha_s = std::max(0.0, least_seconds[0] - least_bytes / rate.bytes_per_s);
  return rate;
}

void check_measured(const MemberMeasurements& measured) {
  const auto count = at(measured.members) * at(measured.members);
  if (measured.members < 2 || measured.members > most_probe_members || measured.round_trip_s.size() != count)
    throw input_error(fmt::format("{} round trips between {} members", measured.round_trip_s.size(), measured.members));
  for (int a = 0; a < measured.members; ++a)
    for (int b = 0; b < measured.members; ++b) {
      const double time_s = measured.round_trip_s[at(a) * at(measured.members) + at(b)];
      if (a != b && !(time_s > 0 && std::isfinite(time_s)))
        throw input_error(fmt::format("a round trip of {} s between members {} and {}", time_s, a, b));
    }
  for (const auto& sample : measured.samples) {
    if (sample.exchange.flows.empty() || sample.seconds.size() != sample.exchange.flows.size())
      throw input_error("a measured exchange has not one time per flow");
    for (std::size_t i = 0; i < sample.seconds.size(); ++i) {
      const auto& [from, to, bytes] = sample.exchange.flows[i];
      if (from < 0 || to < 0 || from >= measured.members || to >= measured.members || from == to || bytes < 1 ||
          !(sample.seconds[i] > 0 && std::isfinite(sample.seconds[i])))
        throw input_error(
            fmt::format("{} bytes from member {} to {} in {} s is no measurement", bytes, from, to, sample.seconds[i]));
    }
  }
}

std::vector<MemberLink> fit_links(const MemberMeasurements& measured) {
  std::map<MemberPair, std::vector<Point>> points;
  for (const auto& [exchange, seconds] : measured.samples)
    for (std::size_t i = 0; exchange.phase == ProbePhase::flow && i < seconds.size(); ++i)
      points[{exchange.flows[i].from, exchange.flows[i].to}].push_back(
          {static_cast<double>(exchange.flows[i].bytes), seconds[i]});
  std::vector<MemberLink> links;
  for (int from = 0; from < measured.members; ++from)
    for (int to = 0; to < measured.members; ++to) {
      if (from == to) continue;
      const auto found = points.find({from, to});
      if (found == points.end())
        throw input_error(fmt::format("the flow from member {} to {} was not measured", from, to));
      const double round_trip_s = measured.round_trip_s[at(from) * at(measured.members) + at(to)];
      links.push_back({from, to, round_trip_s / 2, rate_of(found->second, round_trip_s)});
    }
  return links;
}

std::vector<MemberTotal> fit_totals(const MemberMeasurements& measured) {
  std::map<int, std::vector<const ProbeSample*>> of_series;
  for (const auto& sample : measured.samples)
    if (sample.exchange.phase != ProbePhase::flow) of_series[sample.exchange.series].push_back(&sample);
  std::vector<MemberTotal> totals;
  for (const auto& [series, samples] : of_series) {
    MemberTotal& total = totals.emplace_back();
    total.phase = samples[0]->exchange.phase;
    for (const auto& flow : samples[0]->exchange.flows) total.flows.emplace_back(flow.from, flow.to);
    std::vector<Point> points;
    double round_trip_s = 0;
    for (const auto& [from, to] : total.flows)
      round_trip_s = std::max(round_trip_s, measured.round_trip_s[at(from) * at(measured.members) + at(to)]);
    for (const auto* sample : samples)
      points.push_back({static_cast<double>(sample->exchange.bytes()), sample->longest_s()});
    total.rate = rate_of(points, round_trip_s);
  }
  return totals;
}

// The greatest figure is a port's own, and what lies near it is the same measured again.
double port_rate(const std::vector<double>& figures) {
  const double most = *std::max_element(figures.begin(), figures.end());
  double sum = 0, count = 0;
  for (const double figure : figures)
    if (figure >= (1 - alike) * most) {
      sum += figure;
      ++count;
    }
  return sum / count;
}

// Least squares of latency(a, b) = own(a) + own(b), none below 0.
void fit_latencies(const MemberFit& fit, MemberStar& star) {
  const double members = fit.members;
  std::vector<double> sums(at(fit.members), 0);
  double total = 0;
  for (const auto& link : fit.links) {
    sums[at(link.from)] += link.latency_s;
    total += link.latency_s;
  }
  const double own_of_all = total / (2 * (members - 1));
  for (std::size_t m = 0; m < sums.size(); ++m)
    star.ports[m].latency_s = std::max(0.0, fit.members == 2 ? sums[m] / 2 : (sums[m] - own_of_all) / (members - 2));
  for (const auto& link : fit.links) {
    const double own = star.ports[at(link.from)].latency_s + star.ports[at(link.to)].latency_s;
    const double error_s = std::abs(own - link.latency_s);
    if (error_s > most_latency_error * link.latency_s) star.latency_error_s = std::max(star.latency_error_s, error_s);
  }
}

// Of a series, by the busiest port.
double star_rate(const MemberStar& star, const ProbeExchange& exchange) {
  std::map<int, double> sent, received;
  double longest_s = 0;
  for (const auto& [from, to, bytes] : exchange.flows) {
    sent[from] += static_cast<double>(bytes);
    received[to] += static_cast<double>(bytes);
  }
  for (const auto& [member, bytes] : sent)
    longest_s = std::max(longest_s, bytes / star.ports[at(member)].up_bytes_per_s);
  for (const auto& [member, bytes] : received)
    longest_s = std::max(longest_s, bytes / star.ports[at(member)].down_bytes_per_s);
  return static_cast<double>(exchange.bytes()) / longest_s;
}

MemberStar fit_star(const MemberMeasurements& measured, MemberFit& fit) {
  std::vector<std::vector<double>> up(at(fit.members)), down(at(fit.members));
  for (const auto& link : fit.links) {
    up[at(link.from)].push_back(link.rate.bytes_per_s);
    down[at(link.to)].push_back(link.rate.bytes_per_s);
  }
  for (const auto& total : fit.totals) {
    if (total.phase == ProbePhase::spread) up[at(total.flows[0].first)].push_back(total.rate.bytes_per_s);
    if (total.phase == ProbePhase::incast) down[at(total.flows[0].second)].push_back(total.rate.bytes_per_s);
  }
  MemberStar star;
  for (std::size_t m = 0; m < up.size(); ++m)
    star.ports.push_back({.up_bytes_per_s = port_rate(up[m]), .down_bytes_per_s = port_rate(down[m]), .latency_s = 0});
  fit_latencies(fit, star);
  for (const auto& link : fit.links) {
    const double own = std::min(star.ports[at(link.from)].up_bytes_per_s, star.ports[at(link.to)].down_bytes_per_s);
    star.link_error = std::max(star.link_error, std::abs(own / link.rate.bytes_per_s - 1));
  }
  std::map<int, const ProbeExchange*> largest;
  for (const auto& sample : measured.samples)
    if (sample.exchange.phase != ProbePhase::flow) largest[sample.exchange.series] = &sample.exchange;
  std::size_t number = 0;
  for (const auto& [series, exchange] : largest) {
    MemberTotal& total = fit.totals[number++];
    total.star_bytes_per_s = star_rate(star, *exchange);
    if (total.phase == ProbePhase::spread || total.phase == ProbePhase::pairs)
      star.total_error = std::max(star.total_error, std::abs(total.star_bytes_per_s / total.rate.bytes_per_s - 1));
  }
  return star;
}

// One measurement of incast: seconds per byte into one member, and what they were without any.
struct FanIn {
  int width = 0;  // w
  double free_s_per_byte = 0, s_per_byte = 0;
};

MemberIncast incast_with(const std::vector<FanIn>& list, int threshold) {
  // Relative least squares of free + cost * excess = measured.
  double products = 0, squares = 0;
  for (const auto& one : list) {
    const double excess = std::max(one.width - threshold, 0) / one.s_per_byte;
    products += excess * (1 - one.free_s_per_byte / one.s_per_byte);
    squares += excess * excess;
  }
  MemberIncast fit{.threshold = threshold, .cost_s_per_byte = squares > 0 ? std::max(0.0, products / squares) : 0};
  for (const auto& one : list) {
    const double fitted = one.free_s_per_byte + fit.cost_s_per_byte * std::max(one.width - threshold, 0);
    const double error = std::abs(fitted / one.s_per_byte - 1);
    fit.residual += error * error / static_cast<double>(list.size());
    fit.largest_error = std::max(fit.largest_error, error);
  }
  fit.residual = std::sqrt(fit.residual);
  fit.measurements = static_cast<int>(list.size());
  return fit;
}

std::optional<MemberIncast> fit_incast(const MemberFit& fit) {
  std::vector<FanIn> list;
  int widest = 2;
  for (const auto& total : fit.totals) {
    if (total.phase != ProbePhase::incast) continue;
    list.push_back({static_cast<int>(total.flows.size()) + 1, 1 / total.star_bytes_per_s, 1 / total.rate.bytes_per_s});
    widest = std::max(widest, list.back().width);
  }
  if (list.empty()) return std::nullopt;
  MemberIncast none = incast_with(list, widest);
  none.threshold = 0;
  if (none.largest_error <= least_incast) return none;
  // From the highest threshold down: of equal fits the one with the least incast.
  MemberIncast best = none;
  for (int threshold = widest - 1; threshold >= 2; --threshold)
    if (const MemberIncast tried = incast_with(list, threshold); tried.residual < best.residual - 1e-9) best = tried;
  return best;
}

}  // namespace

bool MemberStar::fits() const {
  return link_error <= most_star_error && total_error <= most_star_total_error && latency_error_s <= least_latency_s;
}

const MemberLink& MemberFit::link(int from, int to) const {
  return links[at(from) * at(members - 1) + at(to) - (to > from ? 1U : 0U)];
}

MemberFit fit_members(const MemberMeasurements& measured) {
  check_measured(measured);
  MemberFit fit{.members = measured.members,
                .links = fit_links(measured),
                .totals = fit_totals(measured),
                .star = {},
                .incast = {},
                .date = measured.date};
  fit.star = fit_star(measured, fit);
  fit.incast = fit_incast(fit);
  return fit;
}

}  // namespace motley
