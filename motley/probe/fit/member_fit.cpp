#include "motley/probe/fit/member_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "motley/base/error.hpp"
#include "motley/base/index.hpp"

namespace motley {
namespace {

constexpr double alike_figures = 0.10;  // of a port's figures: the greatest and those so near to it
constexpr double same_switch = 0.80;    // of what their ports allow: pairs of one switch reach so much
constexpr double least_incast = 0.05;   // relative: what is less is taken for noise
constexpr double most_latency_error = 0.25;
constexpr double least_latency_s = 500e-6;  // errors below are the machines', not the network's

struct Point {
  double bytes = 0, seconds = 0;
};

// Of the sorted times of a size the least counts that another confirms: what other programs take away at times is not
// the network's, nor what a limited link had saved up while nothing was sent.
std::size_t confirmed(const std::vector<double>& seconds) {
  for (std::size_t i = 0; i + 1 < seconds.size(); ++i)
    if (seconds[i + 1] <= (1 + same_time) * seconds[i]) return i;
  return 0;
}

// A size that took a few round trips, and so the same start of the streams as the largest; none where that matters
// little.
const std::pair<const double, std::vector<double>>* started_alike(const std::map<double, std::vector<double>>& by_bytes,
                                                                  double longest_s, double round_trip_s) {
  constexpr double many_trips = 50, few_trips = 3, smaller = 0.6, sooner = 0.8;
  if (longest_s > many_trips * round_trip_s) return nullptr;
  const auto& most = *by_bytes.rbegin();
  const std::pair<const double, std::vector<double>>* found = nullptr;
  for (const auto& size : by_bytes)
    if (size.first < smaller * most.first && size.second[0] > few_trips * round_trip_s &&
        size.second[0] < sooner * longest_s)
      found = &size;
  return found;
}

// The members' last word before the start and the last byte's way take a round trip, which is not the rate's; nor is
// what streams over a long way need to reach it, so that the rate there is that of the bytes beyond a smaller size.
MeasuredRate rate_of(const std::vector<Point>& points, double round_trip_s) {
  std::map<double, std::vector<double>> by_bytes;
  for (const auto& [bytes, seconds] : points) by_bytes[bytes].push_back(seconds);
  for (auto& [bytes, seconds] : by_bytes) std::sort(seconds.begin(), seconds.end());
  const auto& [bytes, seconds] = *by_bytes.rbegin();
  const std::size_t chosen = confirmed(seconds);
  const double time_s = seconds[chosen];
  MeasuredRate rate{.bytes_per_s = bytes / (time_s - std::min(round_trip_s, time_s / 2)), .alpha_s = 0, .error = 0};
  if (const auto* less = started_alike(by_bytes, time_s, round_trip_s))
    rate.bytes_per_s = std::max(rate.bytes_per_s, (bytes - less->first) / (time_s - less->second[0]));
  rate.error = seconds.size() > 1 ? seconds[chosen + 1] / time_s - 1 : 0;
  const auto& [least_bytes, least_seconds] = *by_bytes.begin();
  rate.alpha_s = std::max(0.0, least_seconds[0] - least_bytes / rate.bytes_per_s);
  return rate;
}

void check_measured(const MemberMeasurements& measured) {
  constexpr const char* again =
      "run `motley cluster probe --members` again, with the same version of motley on every member";
  const auto count = at(measured.members) * at(measured.members);
  if (measured.members < 2 || measured.members > most_probe_members || measured.round_trip_s.size() != count)
    throw input_error(fmt::format("{} round trips between {} members", measured.round_trip_s.size(), measured.members),
                      again);
  for (int a = 0; a < measured.members; ++a)
    for (int b = 0; b < measured.members; ++b) {
      const double time_s = measured.round_trip_s[at(a) * at(measured.members) + at(b)];
      if (a != b && !(time_s > 0 && std::isfinite(time_s)))
        throw input_error(fmt::format("a round trip of {} s between members {} and {}", time_s, a, b), again);
    }
  for (const auto& sample : measured.samples) {
    if (sample.exchange.flows.empty() || sample.seconds.size() != sample.exchange.flows.size())
      throw input_error("a measured exchange must have one time per flow", again);
    for (std::size_t i = 0; i < sample.seconds.size(); ++i) {
      const auto& [from, to, bytes] = sample.exchange.flows[i];
      if (from < 0 || to < 0 || from >= measured.members || to >= measured.members || from == to || bytes < 1 ||
          !(sample.seconds[i] > 0 && std::isfinite(sample.seconds[i])))
        throw input_error(fmt::format("the measurement from member {1} to {2} is invalid: {0} bytes in {3} s", bytes,
                                      from, to, sample.seconds[i]),
                          again);
    }
  }
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
    if (figure >= (1 - alike_figures) * most) {
      sum += figure;
      ++count;
    }
  return sum / count;
}

// Least squares of latency(a, b) = own(a) + own(b), none below 0; `latency_s` of a and b at a * count + b, symmetric.
std::vector<double> own_latencies(const std::vector<double>& latency_s, std::size_t count) {
  if (count == 1) return {0};
  std::vector<double> sums(count, 0);
  double total = 0;
  for (std::size_t a = 0; a < count; ++a)
    for (std::size_t b = 0; b < count; ++b)
      if (a != b) {
        sums[a] += latency_s[a * count + b];
        total += latency_s[a * count + b];
      }
  const auto others = static_cast<double>(count - 1);
  for (double& sum : sums) sum = std::max(0.0, count == 2 ? sum / 2 : (sum - total / (2 * others)) / (others - 1));
  return sums;
}

// Of members in their groups first, then of the uplinks: what remains between groups, on average over their pairs.
void fit_latencies(const MemberFit& fit, MemberTree& tree) {
  std::vector<std::vector<int>> groups(tree.uplinks.size());
  for (int m = 0; m < fit.members; ++m) groups[at(tree.group[at(m)])].push_back(m);
  for (const auto& members : groups) {
    std::vector<double> inside(members.size() * members.size(), 0);
    for (std::size_t a = 0; a < members.size(); ++a)
      for (std::size_t b = 0; b < members.size(); ++b)
        if (a != b) inside[a * members.size() + b] = fit.link(members[a], members[b]).latency_s;
    const auto own = own_latencies(inside, members.size());
    for (std::size_t m = 0; m < members.size(); ++m) tree.ports[at(members[m])].latency_s = own[m];
  }
  std::vector<double> between(groups.size() * groups.size(), 0);
  for (const auto& link : fit.links) {
    const int from = tree.group[at(link.from)], to = tree.group[at(link.to)];
    if (from == to) continue;
    const double pairs = static_cast<double>(groups[at(from)].size() * groups[at(to)].size());
    const double rest = link.latency_s - tree.ports[at(link.from)].latency_s - tree.ports[at(link.to)].latency_s;
    between[at(from) * groups.size() + at(to)] += std::max(0.0, rest) / pairs;
  }
  const auto above = own_latencies(between, groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g)
    (groups[g].size() > 1 ? tree.uplinks[g] : tree.ports[at(groups[g][0])]).latency_s += above[g];
  for (const auto& link : fit.links) {
    const int from = tree.group[at(link.from)], to = tree.group[at(link.to)];
    double path_s = tree.ports[at(link.from)].latency_s + tree.ports[at(link.to)].latency_s;
    if (from != to) path_s += tree.uplinks[at(from)].latency_s + tree.uplinks[at(to)].latency_s;
    const double error_s = std::abs(path_s - link.latency_s);
    if (error_s > most_latency_error * link.latency_s) tree.latency_error_s = std::max(tree.latency_error_s, error_s);
  }
}

// Bytes that flows take through the ports of a tree.
struct PortLoads {
  std::vector<double> sent, received;     // by member
  std::vector<double> leaving, entering;  // by group
};

PortLoads loads_of(const MemberTree& tree, const std::vector<ProbeFlow>& flows) {
  PortLoads loads{std::vector<double>(tree.ports.size(), 0), std::vector<double>(tree.ports.size(), 0),
                  std::vector<double>(tree.uplinks.size(), 0), std::vector<double>(tree.uplinks.size(), 0)};
  for (const auto& [from, to, count] : flows) {
    const auto bytes = static_cast<double>(count);
    loads.sent[at(from)] += bytes;
    loads.received[at(to)] += bytes;
    const int source = tree.group[at(from)], target = tree.group[at(to)];
    if (source == target) continue;
    loads.leaving[at(source)] += bytes;
    loads.entering[at(target)] += bytes;
  }
  return loads;
}

// All flows together, by the port that takes longest.
double tree_rate(const MemberTree& tree, const std::vector<ProbeFlow>& flows) {
  const PortLoads loads = loads_of(tree, flows);
  double longest_s = 0, bytes = 0;
  for (std::size_t m = 0; m < tree.ports.size(); ++m) {
    longest_s = std::max(
        {longest_s, loads.sent[m] / tree.ports[m].up_bytes_per_s, loads.received[m] / tree.ports[m].down_bytes_per_s});
    bytes += loads.sent[m];
  }
  for (std::size_t g = 0; g < tree.uplinks.size(); ++g)
    if (tree.uplinks[g].up_bytes_per_s > 0)
      longest_s = std::max({longest_s, loads.leaving[g] / tree.uplinks[g].up_bytes_per_s,
                            loads.entering[g] / tree.uplinks[g].down_bytes_per_s});
  return bytes / longest_s;
}

// The largest exchange of every series of several flows, in the order of the totals.
std::vector<const ProbeExchange*> largest_exchanges(const MemberMeasurements& measured) {
  std::map<int, const ProbeExchange*> of_series;
  for (const auto& sample : measured.samples)
    if (sample.exchange.phase != ProbePhase::flow) of_series[sample.exchange.series] = &sample.exchange;
  std::vector<const ProbeExchange*> list;
  for (const auto& [series, exchange] : of_series) list.push_back(exchange);
  return list;
}

// What the tree makes of the totals, and how far it is off.
void compare(const std::vector<const ProbeExchange*>& exchanges, MemberFit& fit) {
  MemberTree& tree = fit.tree;
  for (const auto& link : fit.links) {
    const double own = tree_rate(tree, {{link.from, link.to, std::int64_t{1} << 20}});
    tree.link_error = std::max(tree.link_error, std::abs(own / link.rate.bytes_per_s - 1));
  }
  for (std::size_t t = 0; t < fit.totals.size(); ++t) {
    MemberTotal& total = fit.totals[t];
    total.tree_bytes_per_s = tree_rate(tree, exchanges[t]->flows);
    if (total.phase == ProbePhase::spread || total.phase == ProbePhase::pairs)
      tree.total_error = std::max(tree.total_error, std::abs(total.tree_bytes_per_s / total.rate.bytes_per_s - 1));
  }
}

std::vector<MemberPort> fit_ports(const MemberFit& fit) {
  std::vector<std::vector<double>> up(at(fit.members)), down(at(fit.members));
  for (const auto& link : fit.links) {
    up[at(link.from)].push_back(link.rate.bytes_per_s);
    down[at(link.to)].push_back(link.rate.bytes_per_s);
  }
  for (const auto& total : fit.totals) {
    if (total.phase == ProbePhase::spread) up[at(total.flows[0].first)].push_back(total.rate.bytes_per_s);
    if (total.phase == ProbePhase::incast) down[at(total.flows[0].second)].push_back(total.rate.bytes_per_s);
  }
  std::vector<MemberPort> ports;
  for (std::size_t m = 0; m < up.size(); ++m) ports.push_back({port_rate(up[m]), port_rate(down[m]), 0});
  return ports;
}

// Members belong together where a pair reaches what its ports allow, both ways.
void find_groups(const MemberFit& fit, MemberTree& tree) {
  std::vector<int> root(at(fit.members));
  std::iota(root.begin(), root.end(), 0);
  const auto full = [&](int from, int to) {
    return fit.link(from, to).rate.bytes_per_s >=
           same_switch * std::min(tree.ports[at(from)].up_bytes_per_s, tree.ports[at(to)].down_bytes_per_s);
  };
  for (int a = 0; a < fit.members; ++a)
    for (int b = a + 1; b < fit.members; ++b)
      if (full(a, b) && full(b, a) && root[at(a)] != root[at(b)])
        std::replace(root.begin(), root.end(), std::max(root[at(a)], root[at(b)]), std::min(root[at(a)], root[at(b)]));
  std::map<int, int> number;
  tree.group.clear();
  for (const int one : root) tree.group.push_back(number.emplace(one, static_cast<int>(number.size())).first->second);
  tree.uplinks.assign(number.size(), {});
}

// The greatest rates at which bytes were seen to leave and enter the groups.
void fit_uplinks(const MemberFit& fit, const std::vector<const ProbeExchange*>& exchanges, MemberTree& tree) {
  std::vector<std::vector<double>> up(tree.uplinks.size()), down(tree.uplinks.size());
  const auto see = [&](const std::vector<ProbeFlow>& flows, double bytes_per_s) {
    const PortLoads loads = loads_of(tree, flows);
    double bytes = 0;
    for (const double sent : loads.sent) bytes += sent;
    for (std::size_t g = 0; g < up.size(); ++g) {
      up[g].push_back(loads.leaving[g] / bytes * bytes_per_s);
      down[g].push_back(loads.entering[g] / bytes * bytes_per_s);
    }
  };
  for (const auto& link : fit.links) see({{link.from, link.to, 1}}, link.rate.bytes_per_s);
  for (std::size_t t = 0; t < exchanges.size(); ++t) see(exchanges[t]->flows, fit.totals[t].rate.bytes_per_s);
  for (int g = 0; g < tree.groups(); ++g)
    if (tree.members_of(g) > 1) tree.uplinks[at(g)] = {port_rate(up[at(g)]), port_rate(down[at(g)]), 0};
}

void fit_tree(const MemberMeasurements& measured, MemberFit& fit) {
  const auto exchanges = largest_exchanges(measured);
  const MemberTree star{.ports = fit_ports(fit), .group = std::vector<int>(at(fit.members), 0), .uplinks = {{}}};
  const auto take = [&](MemberTree tree) {
    fit_latencies(fit, tree);
    fit.tree = std::move(tree);
    compare(exchanges, fit);
    return fit.tree.fits();
  };
  if (take(star)) return;
  MemberTree tree = star;
  find_groups(fit, tree);
  if (tree.groups() > 1 && tree.groups() < fit.members) {
    fit_uplinks(fit, exchanges, tree);
    if (take(tree)) return;
  }
  take(star);
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
    list.push_back({static_cast<int>(total.flows.size()) + 1, 1 / total.tree_bytes_per_s, 1 / total.rate.bytes_per_s});
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

bool MemberTree::fits() const {
  return link_error <= most_tree_error && total_error <= most_tree_total_error && latency_error_s <= least_latency_s;
}

int MemberTree::members_of(int one) const { return static_cast<int>(std::count(group.begin(), group.end(), one)); }

double alike_ports(const MemberTree& tree) {
  if (!tree.fits() || tree.groups() > 1) return 0;
  double least = tree.ports[0].up_bytes_per_s, most = least;
  for (const auto& port : tree.ports) {
    least = std::min({least, port.up_bytes_per_s, port.down_bytes_per_s});
    most = std::max({most, port.up_bytes_per_s, port.down_bytes_per_s});
  }
  return least >= (1 - alike_figures) * most ? least : 0;
}

const MemberLink& MemberFit::link(int from, int to) const {
  return links[at(from) * at(members - 1) + at(to) - (to > from ? 1U : 0U)];
}

std::vector<MemberLink> fit_links(const MemberMeasurements& measured) {
  check_measured(measured);
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
        throw input_error(fmt::format("the flow from member {} to {} was not measured", from, to),
                          "measure longer with `motley cluster probe --seconds`");
      const double round_trip_s = measured.round_trip_s[at(from) * at(measured.members) + at(to)];
      links.push_back({from, to, round_trip_s / 2, rate_of(found->second, round_trip_s)});
    }
  return links;
}

MemberFit fit_members(const MemberMeasurements& measured) {
  MemberFit fit{.members = measured.members,
                .links = fit_links(measured),
                .totals = fit_totals(measured),
                .tree = {},
                .incast = {},
                .genmodel = {},
                .date = measured.date};
  fit_tree(measured, fit);
  fit.incast = fit_incast(fit);
  if (!measured.collectives.empty()) fit.genmodel = fit_genmodel(measured.collectives, measured.date);
  return fit;
}

}  // namespace motley
