#include "motley/solve/chain_dp.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();
constexpr std::int64_t not_filled = -1;  // of closing_

constexpr ChainPosition all_positions[] = {ChainPosition::middle, ChainPosition::first, ChainPosition::last,
                                           ChainPosition::only};

const PositionTerms& terms(const ChainOption& option, ChainPosition position) {
  return option.at[static_cast<int>(position)];
}

using EndCounts = ChainSolver::EndCounts;

std::size_t kinds_of(const ChainProblem& problem) {
  std::size_t kinds = 1;
  for (const std::uint16_t kind : problem.kind_of_unit) kinds = std::max<std::size_t>(kinds, kind + 1U);
  return kinds;
}

EndCounts end_counts(const ChainProblem& problem) {
  const auto units = static_cast<std::size_t>(problem.units);
  EndCounts counts(kinds_of(problem), std::vector<std::int64_t>(units + 1));
  for (std::size_t placed = 0; placed < units; ++placed) {
    const std::size_t own = problem.kind_of_unit.empty() ? 0 : problem.kind_of_unit[units - 1 - placed];
    for (std::size_t kind = 0; kind < counts.size(); ++kind)
      counts[kind][placed + 1] = counts[kind][placed] + (kind == own ? 1 : 0);
  }
  return counts;
}

// Of the line's last units, by how many there are, from one unit's of each kind.
template <class Value, class OfKind>
std::vector<Value> sums_at_end(const EndCounts& counts, const OfKind& of_kind) {
  std::vector<Value> sums(counts.front().size());
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    const Value each = of_kind(kind);
    for (std::size_t placed = 0; placed < sums.size(); ++placed)
      sums[placed] += static_cast<Value>(counts[kind][placed]) * each;
  }
  return sums;
}

// Of the units that are placed when `total` of them are, and were not when `rest` were.
template <class Value, class ByKind>
Value sum_of_units(const EndCounts& counts, const ByKind& of_kind, std::int64_t rest, std::int64_t total) {
  const auto count = [&](std::size_t kind) {
    return counts[kind][static_cast<std::size_t>(total)] - counts[kind][static_cast<std::size_t>(rest)];
  };
  Value sum = of_kind(0, count(0));
  for (std::size_t kind = 1; kind < counts.size(); ++kind) sum = sum + of_kind(kind, count(kind));
  return sum;
}

StageSeconds busy(const EndCounts& counts, const ChainOption& option, ChainPosition position, std::int64_t rest,
                  std::int64_t total) {
  const auto of_kind = [&](std::size_t kind, std::int64_t units) {
    return option.per_unit[kind] * static_cast<double>(units);
  };
  return terms(option, position).fixed + sum_of_units<StageSeconds>(counts, of_kind, rest, total);
}

bool expired(Instant deadline) { return Clock::now() >= deadline; }

using Places = ChainSolver::Places;

// Gives equal places one group.
template <class Equal>
Places group_places(std::size_t places, Equal equal) {
  Places result;
  for (int place = 0; place < static_cast<int>(places); ++place) {
    const auto same =
        std::find_if(result.of_group.begin(), result.of_group.end(), [&](int other) { return equal(place, other); });
    result.group.push_back(static_cast<int>(same - result.of_group.begin()));
    if (same == result.of_group.end()) result.of_group.push_back(place);
  }
  return result;
}

// Places that are alike for every hop into them.
Places entry_places(const ChainProblem& problem) {
  return group_places(problem.hops.size(), [&](int a, int b) {
    return std::all_of(problem.hops.begin(), problem.hops.end(), [&](const auto& row) { return row[a] == row[b]; });
  });
}

// Places that are alike for every return from them.
Places exit_places(const ChainProblem& problem) {
  return group_places(problem.hops.size(),
                      [&](int a, int b) { return problem.return_latency_s[a] == problem.return_latency_s[b]; });
}

void check_problem(const ChainProblem& problem) {
  const std::size_t classes = problem.counts.size(), places = problem.hops.size();
  MOTLEY_CHECK(problem.must_use.size() == classes && problem.return_latency_s.size() == places);
  MOTLEY_CHECK(problem.kind_of_unit.empty() || std::ssize(problem.kind_of_unit) == problem.units);
  const std::size_t kinds = kinds_of(problem);
  for (const auto& option : problem.options) {
    MOTLEY_CHECK(option.per_unit.size() >= kinds && (option.unit_size.empty() || option.unit_size.size() >= kinds));
    MOTLEY_CHECK(option.takes.size() == classes && static_cast<std::size_t>(option.place) < places);
    MOTLEY_CHECK(std::any_of(option.takes.begin(), option.takes.end(), [](int n) { return n > 0; }));
  }
}

}  // namespace

StageSeconds chain_seconds(const ChainProblem& problem, const std::vector<ChainStage>& stages) {
  StageSeconds total;
  const EndCounts counts = end_counts(problem);
  std::int64_t left = problem.units;  // units of this stage and of those behind it
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& option = problem.options[stages[i].option];
    const int position = (i == 0 ? 1 : 0) | (i + 1 == stages.size() ? 2 : 0);
    StageSeconds seconds = busy(counts, option, static_cast<ChainPosition>(position), left - stages[i].units, left);
    left -= stages[i].units;
    if (i + 1 < stages.size())
      seconds = seconds + problem.hops[option.place][problem.options[stages[i + 1].option].place];
    total = {total.latency_s + seconds.latency_s, std::max(total.load_s, seconds.load_s)};
  }
  if (stages.size() > 1)
    total.latency_s += problem.return_latency_s[problem.options[stages.back().option].place]
                                               [problem.options[stages.front().option].place];
  return total;
}

double chain_cells(const ChainProblem& problem) {
  double cells = static_cast<double>(problem.units) * static_cast<double>(entry_places(problem).of_group.size()) *
                 static_cast<double>(exit_places(problem).of_group.size());
  for (const int count : problem.counts) cells *= count + 1;
  return cells;
}

ChainSolver::ChainSolver(const ChainProblem& problem)
    : problem_(problem), entry_(entry_places(problem)), exit_(exit_places(problem)), counts_(end_counts(problem)) {
  check_problem(problem);
  for (const int count : problem.counts) {
    digit_.push_back(used_states_);
    used_states_ *= count + 1;
  }
  for (const auto& option : problem.options) {
    std::int64_t offset = 0;
    for (std::size_t k = 0; k < digit_.size(); ++k) offset += option.takes[k] * digit_[k];
    option_offset_.push_back(offset);
  }
  rows_.resize(static_cast<std::size_t>(used_states_) * entry_.of_group.size() * exit_.of_group.size());
  width_ = static_cast<std::size_t>(problem.units + 1);
  latency_.resize(rows_.size() * width_);
  steps_.resize(latency_.size());
  window_.resize(width_);
  reach_.resize(problem.options.size() * entry_.of_group.size() * width_);
  closing_.resize(problem.options.size() * entry_.of_group.size());
  std::vector<double> least(counts_.size(), unbounded);
  for (const auto& option : problem.options)
    for (std::size_t kind = 0; kind < least.size(); ++kind)
      least[kind] = std::min(least[kind], option.per_unit[kind].latency_s * (1 - objective_tolerance));
  const auto of_kind = [&](std::size_t kind, std::int64_t units) {
    return units > 0 ? static_cast<double>(units) * least[kind] : 0;
  };
  for (const auto& option : problem.options) {
    EndSums& sums = end_sums_.emplace_back();
    sums.latency_s = sums_at_end<double>(counts_, [&](std::size_t kind) { return option.per_unit[kind].latency_s; });
    if (alike()) continue;
    sums.load_s = sums_at_end<double>(counts_, [&](std::size_t kind) { return option.per_unit[kind].load_s; });
    sums.size = sums_at_end<std::int64_t>(
        counts_, [&](std::size_t kind) { return option.unit_size.empty() ? 1 : option.unit_size[kind]; });
  }
  for (std::int64_t placed = 0; placed <= problem.units; ++placed)
    least_left_s_.push_back(sum_of_units<double>(counts_, of_kind, placed, problem.units));
}

// Where all are alike, by their number, so that equal numbers take equal times to the last bit.
double ChainSolver::units_s(int option, std::int64_t rest, std::int64_t total) const {
  const std::vector<double>& sums = end_sums_[static_cast<std::size_t>(option)].latency_s;
  if (alike()) return sums[static_cast<std::size_t>(total - rest)];
  return sums[static_cast<std::size_t>(total)] - sums[static_cast<std::size_t>(rest)];
}

std::int32_t ChainSolver::row_index(std::int64_t used, int entry, int exit) const {
  const auto entries = static_cast<std::int64_t>(entry_.of_group.size()),
             exits = static_cast<std::int64_t>(exit_.of_group.size());
  return static_cast<std::int32_t>((used * entries + entry) * exits + exit);
}

// Units of a stage, where all are alike.
std::int64_t ChainSolver::most_alike(const ChainOption& option, ChainPosition position, double hop_load_s,
                                     double bound) const {
  const PositionTerms& own = terms(option, position);
  const std::int64_t size = option.unit_size.empty() ? 1 : option.unit_size.front();
  const std::int64_t most = std::min(own.capacity / size, problem_.units);
  const double each = option.per_unit.front().load_s;
  const auto fits = [&](std::int64_t units) {
    return own.fixed.load_s + each * static_cast<double>(units) + hop_load_s <= bound;
  };
  if (most < 1 || bound == unbounded || fits(most)) return std::max<std::int64_t>(0, most);
  if (!fits(1)) return 0;
  // The quotient may be off by one in its last bit; the load itself decides.
  const double fixed = own.fixed.load_s + hop_load_s;
  auto units = std::clamp<std::int64_t>(static_cast<std::int64_t>((bound - fixed) / each), 1, most);
  while (units < most && fits(units + 1)) ++units;
  while (units > 1 && !fits(units)) --units;
  return units;
}

ChainSolver::Reach ChainSolver::reach(int option, ChainPosition position, double hop_load_s, double bound) const {
  const PositionTerms& own = terms(problem_.options[option], position);
  const EndSums& sums = end_sums_[option];
  return {.load_s = sums.load_s.data(),
          .size = sums.size.data(),
          .most_load_s = bound - own.fixed.load_s - hop_load_s,
          .most_size = own.capacity,
          .units = problem_.units};
}

void ChainSolver::fill_reach(int option, double hop_load_s, double bound, std::int64_t* reaches) const {
  if (alike()) {
    const std::int64_t most = most_alike(problem_.options[option], ChainPosition::middle, hop_load_s, bound);
    for (std::int64_t rest = 0; rest <= problem_.units; ++rest) reaches[rest] = rest + most;
    return;
  }
  const Reach stage = reach(option, ChainPosition::middle, hop_load_s, bound);
  std::int64_t total = 0;
  for (std::int64_t rest = 0; rest <= problem_.units; ++rest)
    reaches[rest] = total = stage.from(rest, std::max(total, rest));
}

std::int64_t ChainSolver::least_before_first(int option, double hop_load_s, double bound) const {
  if (alike()) return problem_.units - most_alike(problem_.options[option], ChainPosition::first, hop_load_s, bound);
  const Reach stage = reach(option, ChainPosition::first, hop_load_s, bound);
  const auto falls_short = [&](std::int64_t rest) { return !stage.holds(rest, problem_.units); };
  return *std::ranges::partition_point(std::views::iota(std::int64_t{0}, problem_.units + 1), falls_short);
}

std::size_t ChainSolver::row_of_entry(int option, int entry) const {
  return static_cast<std::size_t>(option) * entry_.of_group.size() + static_cast<std::size_t>(entry);
}

void ChainSolver::fill_reaches(int option_index, int entry, double bound) {
  const double hop_load_s = problem_.hops[problem_.options[option_index].place][entry_.of_group[entry]].load_s;
  const std::size_t row = row_of_entry(option_index, entry);
  fill_reach(option_index, hop_load_s, bound, &reach_[row * width_]);
  closing_[row] = least_before_first(option_index, hop_load_s, bound);
}

std::int64_t ChainSolver::most_units(int option, double bound) const {
  std::int64_t most = 0;
  if (alike()) {
    for (const ChainPosition position : all_positions)
      most = std::max(most, most_alike(problem_.options[option], position, 0, bound));
    return most;
  }
  Reach stage = reach(option, ChainPosition::only, 0, bound);
  for (const ChainPosition position : all_positions) {
    const Reach other = reach(option, position, 0, bound);
    stage.most_load_s = std::max(stage.most_load_s, other.most_load_s);
    stage.most_size = std::max(stage.most_size, other.most_size);
  }
  // Where a stage begins further on, only whether it holds more than those before counts.
  for (std::int64_t rest = 0; rest + most < problem_.units; ++rest) most = stage.from(rest, rest + most) - rest;
  return most;
}

// Of a stage that holds the line's last ones.
std::int64_t ChainSolver::most_at_end(int option, ChainPosition position, double bound) const {
  if (alike()) return most_alike(problem_.options[option], position, 0, bound);
  const Reach stage = reach(option, position, 0, bound);
  const auto holds = [&](std::int64_t total) { return stage.holds(0, total); };
  return *std::ranges::partition_point(std::views::iota(std::int64_t{1}, problem_.units + 1), holds) - 1;
}

// For every class, the most units that one of its items can account for: an upper bound, as options divide their
// capacity evenly over the items they take.
std::vector<double> ChainSolver::capacity_per_item(double bound) const {
  std::vector<double> best(digit_.size(), 0);
  for (int number = 0; number < static_cast<int>(problem_.options.size()); ++number) {
    const ChainOption& option = problem_.options[number];
    const std::int64_t most = most_units(number, bound);
    const int items = std::accumulate(option.takes.begin(), option.takes.end(), 0);
    for (std::size_t k = 0; k < best.size(); ++k)
      if (option.takes[k] > 0) best[k] = std::max(best[k], static_cast<double>(most) / items);
  }
  return best;
}

// Chains of one stage so far: the last one, or the only one.
void ChainSolver::start_chains(int option_index, double bound, Best& best) {
  const auto& option = problem_.options[option_index];
  bool enough = true;
  double room = 0;  // of the items that are left
  for (std::size_t k = 0; k < digit_.size(); ++k) {
    if (option.takes[k] > problem_.counts[k]) return;
    enough = enough && option.takes[k] >= problem_.must_use[k];
    room += (problem_.counts[k] - option.takes[k]) * per_item_[k];
  }
  const auto row = row_index(option_offset_[option_index], entry_.group[option.place], exit_.group[option.place]);
  const std::int64_t most = std::min(most_at_end(option_index, ChainPosition::last, bound), problem_.units - 1);
  const std::int64_t least = least_total(room);
  double* latencies = &latency_[static_cast<std::size_t>(row) * width_];
  Step* steps = &steps_[static_cast<std::size_t>(row) * width_];
  Row& reach = rows_[row];
  for (std::int64_t units = least; units <= most; ++units) {
    const double latency = terms(option, ChainPosition::last).fixed.latency_s + units_s(option_index, 0, units);
    if (reach.low <= units && units <= reach.high && latencies[units] <= latency) continue;
    latencies[units] = latency;
    steps[units] = {option_index, static_cast<std::int32_t>(units), -1};
  }
  if (most >= least) {
    reach = {least, std::max(reach.high, most)};
    evaluated_ += most - least + 1;
  }

  if (!enough || most_at_end(option_index, ChainPosition::only, bound) < problem_.units) return;
  const double latency = busy(counts_, option, ChainPosition::only, 0, problem_.units).latency_s;
  if (latency < best.latency_s) best = {latency, {option_index, problem_.units}, -1, 0};
}

// Fewer units than this cannot be completed with room for this many more.
std::int64_t ChainSolver::least_total(double room) const {
  const double missing = static_cast<double>(problem_.units) - room * (1 + objective_tolerance);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(missing)));
}

// States that were never reached, or pruned, at both ends of the rows of these items.
void ChainSolver::trim(std::int64_t used) {
  const auto first = row_index(used, 0, 0), last = row_index(used + 1, 0, 0);
  for (auto row = first; row < last; ++row) {
    const double* latencies = &latency_[static_cast<std::size_t>(row) * width_];
    Row& reach = rows_[row];
    while (reach.low <= reach.high && latencies[reach.low] == unbounded) ++reach.low;
    while (reach.low <= reach.high && latencies[reach.high] == unbounded) --reach.high;
  }
}

// Puts a stage in front of a row's chains: best over its units, as a minimum over a sliding window of
// latency(row, j) less the sum over the line's last j units.
template <bool alike>
void ChainSolver::add_middle(std::int32_t from, std::int32_t to, int option_index, const StageSeconds& hop,
                             const std::int64_t* furthest, std::int64_t least, double cutoff_s) {
  const auto& option = problem_.options[option_index];
  const double* source = &latency_[static_cast<std::size_t>(from) * width_];
  double* target = &latency_[static_cast<std::size_t>(to) * width_];
  Step* steps = &steps_[static_cast<std::size_t>(to) * width_];
  const Row have = rows_[from];
  Row& reach = rows_[to];
  const double* sums = end_sums_[static_cast<std::size_t>(option_index)].latency_s.data();
  const double fixed = terms(option, ChainPosition::middle).fixed.latency_s + hop.latency_s;

  const std::int64_t first = std::max(have.low + 1, least);
  const std::int64_t last = std::min(furthest[have.high], problem_.units - 1);  // the first stage still needs a unit
  if (first > last) return;
  if (reach.low > reach.high) reach = {first, first - 1};
  for (std::int64_t j = last; j > reach.high; --j) target[j] = unbounded;
  for (std::int64_t j = first; j < reach.low; ++j) target[j] = unbounded;
  reach = {std::min(reach.low, first), std::max(reach.high, last)};

  Candidate* const window = window_.data();
  std::size_t head = 0, tail = 0;
  std::int64_t entering = have.low;
  while (entering < have.high && furthest[entering] < first) ++entering;
  for (std::int64_t total = first; total <= last; ++total) {
    for (; entering <= std::min(total - 1, have.high); ++entering) {
      if (source[entering] == unbounded) continue;
      const double key = source[entering] - sums[entering];
      while (tail > head && window[tail - 1].key > key) --tail;
      window[tail++] = {key, entering};
    }
    while (head < tail && furthest[window[head].units] < total) ++head;
    if (head == tail) continue;
    const std::int64_t rest = window[head].units;
    const double latency = source[rest] + fixed + (alike ? sums[total - rest] : sums[total] - sums[rest]);
    if (latency >= target[total]) continue;
    if (latency + least_left_s_[static_cast<std::size_t>(total)] >= cutoff_s) continue;
    target[total] = latency;
    steps[total] = {option_index, static_cast<std::int32_t>(total - rest), from};
  }
  evaluated_ += last - first + 1;
}

void ChainSolver::close_chain(std::int32_t from, int option_index, const StageSeconds& hop, double return_s,
                              std::int64_t least, Best& best) {
  const double fixed = terms(problem_.options[option_index], ChainPosition::first).fixed.latency_s;
  const double* source = &latency_[static_cast<std::size_t>(from) * width_];
  const Row have = rows_[from];
  for (std::int64_t rest = std::min(have.high, problem_.units - 1); rest >= std::max(have.low, least); --rest) {
    const double latency =
        source[rest] + (fixed + units_s(option_index, rest, problem_.units)) + hop.latency_s + return_s;
    if (latency < best.latency_s) best = {latency, {option_index, problem_.units - rest}, from, rest};
    ++evaluated_;
  }
}

void ChainSolver::extend_chains(std::int64_t used, int option_index, double bound, Best& best) {
  const auto& option = problem_.options[option_index];
  bool enough = true;
  double room = 0;
  for (std::size_t k = 0; k < digit_.size(); ++k) {
    const std::int64_t taken = used / digit_[k] % (problem_.counts[k] + 1) + option.takes[k];
    if (taken > problem_.counts[k]) return;
    enough = enough && taken >= problem_.must_use[k];
    room += static_cast<double>(problem_.counts[k] - taken) * per_item_[k];
  }
  const std::int64_t least = least_total(room);
  for (int entry = 0; entry < static_cast<int>(entry_.of_group.size()); ++entry) {
    const StageSeconds& hop = problem_.hops[option.place][entry_.of_group[entry]];
    const std::size_t row = row_of_entry(option_index, entry);
    const std::int64_t* middle = &reach_[row * width_];
    for (int exit = 0; exit < static_cast<int>(exit_.of_group.size()); ++exit) {
      const auto from = row_index(used, entry, exit);
      if (rows_[from].low > rows_[from].high) continue;
      if (closing_[row] == not_filled) fill_reaches(option_index, entry, bound);
      const auto to = row_index(used + option_offset_[option_index], entry_.group[option.place], exit);
      alike() ? add_middle<true>(from, to, option_index, hop, middle, least, best.latency_s)
              : add_middle<false>(from, to, option_index, hop, middle, least, best.latency_s);
      if (enough)
        close_chain(from, option_index, hop, problem_.return_latency_s[exit_.of_group[exit]][option.place],
                    closing_[row], best);
    }
  }
}

Chain ChainSolver::trace(const Best& best) const {
  Chain chain;
  chain.stages.push_back(best.stage);
  std::int64_t rest = best.rest;
  for (std::int32_t row = best.row; row >= 0;) {
    const Step& step = steps_[static_cast<std::size_t>(row) * width_ + static_cast<std::size_t>(rest)];
    chain.stages.push_back({step.option, step.units});
    rest -= step.units;
    row = step.row;
  }
  chain.seconds = chain_seconds(problem_, chain.stages);
  return chain;
}

std::optional<Chain> ChainSolver::least_latency(double load_bound, double cutoff_s) {
  std::fill(rows_.begin(), rows_.end(), Row{});
  per_item_ = capacity_per_item(load_bound);
  double room = 0;
  for (std::size_t k = 0; k < per_item_.size(); ++k) room += problem_.counts[k] * per_item_[k];
  if (least_total(room) > 1) return std::nullopt;
  Best best;
  best.latency_s = cutoff_s;
  const int options = static_cast<int>(problem_.options.size());
  std::ranges::fill(closing_, not_filled);
  for (int option = 0; option < options; ++option) start_chains(option, load_bound, best);
  for (std::int64_t used = 1; used < used_states_; ++used) {
    trim(used);
    for (int option = 0; option < options; ++option) extend_chains(used, option, load_bound, best);
  }
  if (best.stage.units == 0) return std::nullopt;
  return trace(best);
}

ChainFront pareto_front(ChainSolver& solver, Instant deadline) {
  ParetoFront<Chain> front;
  ChainFront result;
  double bound = unbounded;
  while (auto chain = solver.least_latency(bound)) {
    bound = chain->seconds.load_s * (1 - objective_tolerance);
    const StageSeconds seconds = chain->seconds;
    front.insert(seconds.latency_s, seconds.load_s, std::move(*chain));
    if (!expired(deadline)) continue;
    result.end = SearchEnd::deadline;
    break;
  }
  for (const auto& point : front.points()) result.chains.push_back(point.payload);
  return result;
}

// Let h(T) be the least latency under the load bound T, per job in flight; it falls as T grows. The least cycle is the
// least max(T, h(T)), so a bisection closes in on where they cross; asking for "strictly below the best so far" proves
// the end.
CycleAnswer least_cycle(ChainSolver& solver, double in_flight, double cutoff_s, Instant deadline) {
  const auto cycle = [&](const Chain& chain) {
    return std::max(chain.seconds.load_s, chain.seconds.latency_s / in_flight);
  };
  CycleAnswer answer;
  double high = cutoff_s, low = 0;
  for (int round = 0;; ++round) {
    if (low >= high * (1 - objective_tolerance)) return answer;
    const bool proving = round % 4 == 0;
    const double bound = proving ? high * (1 - objective_tolerance) : low + (high - low) / 2;
    auto chain = solver.least_latency(bound, high * in_flight);  // a slower one would not be better
    const double least = chain ? chain->seconds.latency_s / in_flight : unbounded;
    if (proving && least >= bound) return answer;
    low = std::max(low, std::min(bound, least));
    if (chain && cycle(*chain) < high) {
      high = cycle(*chain);
      answer.chain = std::move(chain);
    }
    if (expired(deadline)) {
      answer.end = SearchEnd::deadline;
      return answer;
    }
  }
}

}  // namespace motley
