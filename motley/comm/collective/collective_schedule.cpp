#include "motley/comm/collective/collective_schedule.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/transport/collective_frame.hpp"

namespace motley {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::int64_t longest_step_bytes = std::int64_t{1} << 31;

bool receives(const CollectiveStep& step) {
  return step.kind == CollectiveStepKind::recv || step.kind == CollectiveStepKind::reduce;
}

bool names_one_chunk(const CollectiveProgram& program) {
  for (const auto& list : program.steps)
    for (const CollectiveStep& step : list)
      if (step.chunk != 0) return false;
  return true;
}

// Positions of the program to positions of the schedule's chunk: monotone, and block boundaries stay such.
struct Scale {
  std::int64_t from;  // bytes of a block in the program
  std::int64_t to;    // in the schedule
  std::int64_t align;
  std::int64_t operator()(std::int64_t position) const {
    const std::int64_t block = position / from;
    const auto inside = static_cast<Wide>(position % from) * static_cast<Wide>(to) / static_cast<Wide>(from);
    return block * to + static_cast<std::int64_t>(inside) / align * align;
  }
};

[[noreturn]] void wrong(const std::string& what) {
  throw input_error(
      "collective plan: " + what,
      "`motley verify PLAN` lists what is wrong with a file of `motley plan`; plan again if it was edited");
}

void check(const CollectiveProgram& program, int rank, std::int64_t reach) {
  if (program.ranks < 1 || static_cast<int>(program.steps.size()) != program.ranks || rank < 0 || rank >= program.ranks)
    wrong(fmt::format("{} ranks with {} lists of steps cannot be run as rank {}", program.ranks, program.steps.size(),
                      rank));
  if (program.chunks < 1 || program.bytes < 1 || program.bytes > largest_vector_bytes)
    wrong(fmt::format("{} bytes in {} chunks", program.bytes, program.chunks));
  for (int r = 0; r < program.ranks; ++r) {
    const auto& list = program.steps[static_cast<std::size_t>(r)];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const CollectiveStep& step = list[i];
      const auto place = [&] { return fmt::format("rank {} step {}: ", r, i); };
      if (step.kind != CollectiveStepKind::copy && (step.peer < 0 || step.peer >= program.ranks || step.peer == r))
        wrong(place() + fmt::format("peer {} is not another rank", step.peer));
      if (step.chunk < 0 || step.chunk >= program.chunks || step.first < 0 || step.last < step.first ||
          step.last > reach)
        wrong(place() + fmt::format("bytes [{}, {}) of chunk {} are out of range", step.first, step.last, step.chunk));
      for (const int earlier : step.after)
        if (earlier < 0 || static_cast<std::size_t>(earlier) >= i)
          wrong(place() + fmt::format("waits for step {}, which does not come before it", earlier));
    }
  }
}

using Key = std::tuple<int, std::int64_t, std::int64_t>;  // chunk and range

// The steps of `to` that receive from `from`, numbered in order, by what they receive.
std::map<Key, std::vector<std::uint32_t>> takers(const CollectiveProgram& program, int from, int to) {
  std::map<Key, std::vector<std::uint32_t>> numbers;
  std::uint32_t count = 0;
  for (const CollectiveStep& step : program.steps[static_cast<std::size_t>(to)])
    if (receives(step) && step.peer == from) numbers[{step.chunk, step.first, step.last}].push_back(count++);
  return numbers;
}

// For each place of a step with which `from` sends to `to`: the number of the step that takes it.
std::map<std::size_t, std::uint32_t> match(const CollectiveProgram& program, int from, int to) {
  auto waiting_by_range = takers(program, from, to);
  for (auto& [key, numbers] : waiting_by_range) std::ranges::reverse(numbers);
  std::map<std::size_t, std::uint32_t> matched;
  const auto& list = program.steps[static_cast<std::size_t>(from)];
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind != CollectiveStepKind::send || list[i].peer != to) continue;
    auto& waiting = waiting_by_range[{list[i].chunk, list[i].first, list[i].last}];
    if (waiting.empty())
      wrong(fmt::format("rank {} step {} sends bytes [{}, {}) of chunk {} that rank {} does not receive", from, i,
                        list[i].first, list[i].last, list[i].chunk, to));
    matched[i] = waiting.back();
    waiting.pop_back();
  }
  for (const auto& [key, waiting] : waiting_by_range)
    if (!waiting.empty())
      wrong(fmt::format("rank {} waits for bytes [{}, {}) of chunk {} that rank {} does not send", to, std::get<1>(key),
                        std::get<2>(key), std::get<0>(key), from));
  return matched;
}

bool conflicts(const ScheduleStep& a, const ScheduleStep& b) {
  if (a.kind == CollectiveStepKind::copy || b.kind == CollectiveStepKind::copy) return false;
  if (a.kind == CollectiveStepKind::send && b.kind == CollectiveStepKind::send) return false;
  return a.first < b.last && b.first < a.last;
}

void link(std::vector<ScheduleStep>& steps, const std::vector<CollectiveStep>& list) {
  for (std::uint32_t j = 0; j < steps.size(); ++j) {
    std::vector<std::uint32_t> earlier;
    for (const int i : list[j].after) earlier.push_back(static_cast<std::uint32_t>(i));
    for (std::uint32_t i = j; i-- > 0;) {
      if (!conflicts(steps[i], steps[j])) continue;
      earlier.push_back(i);
      // A write of all of this range has itself waited for what came before it.
      if (steps[i].kind != CollectiveStepKind::send && steps[i].first <= steps[j].first &&
          steps[i].last >= steps[j].last)
        break;
    }
    std::ranges::sort(earlier);
    earlier.erase(std::unique(earlier.begin(), earlier.end()), earlier.end());
    steps[j].prerequisites = static_cast<std::uint32_t>(earlier.size());
    for (const std::uint32_t i : earlier) steps[i].dependents.push_back(j);
  }
}

// Frames begin at `first`, at every block's border, and wherever a frame would grow too long.
void cut(ScheduleStep& step, std::int64_t block_bytes) {
  for (std::int64_t position = step.first; position < step.last;) {
    const std::int64_t block = position / block_bytes;
    const std::int64_t end =
        std::min({step.last, (block + 1) * block_bytes, position + std::int64_t{largest_payload_bytes}});
    step.pieces.push_back({static_cast<std::uint32_t>(position - step.first),
                           static_cast<std::uint32_t>(end - position), static_cast<std::uint32_t>(block),
                           position - block * block_bytes});
    position = end;
  }
}

void list_inbound(CollectiveSchedule& schedule) {
  schedule.inbound.assign(static_cast<std::size_t>(schedule.ranks), {});
  for (std::uint32_t place = 0; place < schedule.steps.size(); ++place) {
    const ScheduleStep& step = schedule.steps[place];
    if (step.kind == CollectiveStepKind::recv || step.kind == CollectiveStepKind::reduce)
      schedule.inbound[static_cast<std::size_t>(step.peer)].push_back(place);
  }
}

class Hash {
 public:
  void operator()(std::int64_t value) {
    state_ = (state_ ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15U;
    state_ ^= state_ >> 29;
  }
  std::uint32_t value() const { return static_cast<std::uint32_t>(state_ ^ (state_ >> 32)); }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325U;
};

std::uint32_t hash_of(const CollectiveProgram& program, const CollectiveSchedule& schedule) {
  Hash hash;
  for (const std::int64_t number : {std::int64_t{program.ranks}, std::int64_t{schedule.blocks}, schedule.chunk_bytes,
                                    static_cast<std::int64_t>(program.operation), std::int64_t{program.root}})
    hash(number);
  for (const auto& list : program.steps) {
    hash(static_cast<std::int64_t>(list.size()));
    for (const CollectiveStep& step : list)
      for (const std::int64_t number : {static_cast<std::int64_t>(step.kind), std::int64_t{step.peer},
                                        std::int64_t{step.chunk}, step.first, step.last})
        hash(number);
  }
  return hash.value();
}

}  // namespace

CollectiveSchedule compile_schedule(const CollectiveProgram& program, int rank, std::int64_t chunk_bytes, int blocks,
                                    std::int64_t align) {
  MOTLEY_CHECK(blocks > 0 && align > 0 && chunk_bytes > 0 && chunk_bytes % (blocks * align) == 0);
  const std::int64_t chunk = (program.bytes + std::max(1, program.chunks) - 1) / std::max(1, program.chunks);
  check(program, rank, chunk);
  const bool alike = names_one_chunk(program);
  const std::int64_t reach = alike ? chunk : chunk * program.chunks;
  if (reach % blocks != 0)
    throw input_error(fmt::format("collective plan: {} bytes are not {} equal blocks", reach, blocks),
                      fmt::format("plan with --bytes that are a multiple of {}", blocks));
  const Scale scale{reach / blocks, chunk_bytes / blocks, align};

  CollectiveSchedule schedule{.ranks = program.ranks, .rank = rank, .blocks = blocks, .chunk_bytes = chunk_bytes};
  const auto& list = program.steps[static_cast<std::size_t>(rank)];
  for (const CollectiveStep& step : list) {
    const std::int64_t start = step.chunk * chunk;
    const std::int64_t first = scale(start + step.first), last = scale(start + step.last);
    if (last - first > longest_step_bytes)
      throw input_error(
          fmt::format("collective plan: a step of {} bytes, more than {}", last - first, longest_step_bytes),
          "give the operation less at a time: a part of the buffer");
    schedule.steps.push_back({.kind = step.kind, .peer = step.peer, .first = first, .last = last});
    cut(schedule.steps.back(), chunk_bytes / blocks);
  }
  for (int peer = 0; peer < program.ranks; ++peer) {
    if (peer == rank) continue;
    for (const auto& [place, taker] : match(program, rank, peer)) schedule.steps[place].taker = taker;
    match(program, peer, rank);
  }
  list_inbound(schedule);
  link(schedule.steps, list);
  schedule.hash = hash_of(program, schedule);
  return schedule;
}

CollectiveSchedule transfer_schedule(int rank, int ranks, std::int64_t bytes,
                                     const std::vector<ScheduleTransfer>& transfers) {
  CollectiveSchedule schedule{
      .ranks = ranks, .rank = rank, .blocks = 1, .chunk_bytes = std::max<std::int64_t>(1, bytes)};
  // Both sides cut alike, and number the parts of what passes between them by themselves.
  for (const ScheduleTransfer& transfer : transfers) {
    std::uint32_t part = 0;
    for (std::int64_t first = transfer.first; first < transfer.last; first += longest_step_bytes) {
      ScheduleStep step{.kind = transfer.kind,
                        .peer = transfer.peer,
                        .first = first,
                        .last = std::min(transfer.last, first + longest_step_bytes)};
      step.taker = part++;
      cut(step, schedule.chunk_bytes);
      schedule.steps.push_back(std::move(step));
    }
  }
  list_inbound(schedule);
  return schedule;
}

}  // namespace motley
