#include "motley/plan/collective_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "motley/base/index.hpp"

namespace motley {
namespace {

constexpr std::size_t most_violations = 8;

std::string step_place(int rank, std::size_t step) { return fmt::format("program[{}][{}]", rank, step); }

std::vector<Violation> check_form(const CollectiveProgram& program) {
  std::vector<Violation> wrong;
  const auto fail = [&](std::string place, std::string what, std::string hint) {
    if (wrong.size() < most_violations) wrong.push_back({std::move(place), std::move(what), std::move(hint)});
  };
  const bool blocks =
      program.operation == CollectiveOperation::reduce_scatter || program.operation == CollectiveOperation::all_gather;
  if (program.ranks < 1 || program.steps.size() != at(program.ranks)) {
    fail("program", fmt::format("{} ranks have {} lists of steps", program.ranks, program.steps.size()),
         "give one list per rank");
    return wrong;
  }
  if (program.bytes < 1 || program.chunks < 1 || program.bytes % program.chunks != 0) {
    fail("chunks", fmt::format("{} bytes cannot be cut into {} equal chunks", program.bytes, program.chunks),
         "choose a number of chunks that divides the bytes");
    return wrong;
  }
  if (blocks && program.chunk_bytes() % program.ranks != 0)
    fail("bytes", fmt::format("{} ranks cannot have equal blocks of {} bytes", program.ranks, program.chunk_bytes()),
         "the bytes must be a multiple of ranks times chunks");
  if (program.root < 0 || program.root >= program.ranks) fail("root", "is not a rank", "count ranks from 0");
  for (int rank = 0; rank < program.ranks; ++rank) {
    const auto& steps = program.steps[at(rank)];
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const auto& step = steps[s];
      if (step.chunk < 0 || step.chunk >= program.chunks)
        fail(step_place(rank, s), fmt::format("chunk {} does not exist", step.chunk), "count chunks from 0");
      if (step.first < 0 || step.first >= step.last || step.last > program.chunk_bytes())
        fail(step_place(rank, s), fmt::format("[{}, {}) is not a range of a chunk", step.first, step.last),
             fmt::format("give 0 <= first < last <= {}", program.chunk_bytes()));
      if (step.kind != CollectiveStepKind::copy && (step.peer < 0 || step.peer >= program.ranks || step.peer == rank))
        fail(step_place(rank, s), fmt::format("rank {} cannot be a peer of rank {}", step.peer, rank),
             "give another rank");
      for (const int earlier : step.after)
        if (earlier < 0 || at(earlier) >= steps.size() || at(earlier) == s)
          fail(step_place(rank, s), fmt::format("waits for step {}, which does not exist", earlier),
               "count places in the same rank's list from 0");
    }
  }
  return wrong;
}

// A step as it was run: a receive together with its send, or a copy.
struct Done {
  int rank = 0;  // who receives or copies
  const CollectiveStep* step = nullptr;
};

// Orders steps by what must come before, a send and its receive being one event: an order that exists here exists for
// every execution that buffers more.
class Rendezvous {
 public:
  explicit Rendezvous(const CollectiveProgram& program) : program_(program) {
    int events = 0;
    for (const auto& steps : program.steps) event_.emplace_back(steps.size(), -1);
    pair(events);
    if (!wrong.empty()) return;
    after_.resize(at(events));
    open_.resize(at(events), 0);
    for (int rank = 0; rank < program.ranks; ++rank) constrain(rank);
    run();
  }

  std::vector<Violation> wrong;
  std::vector<Done> order;

 private:
  using Key = std::tuple<int, int, int, std::int64_t, std::int64_t>;  // from, to, chunk, range

  void pair(int& events) {
    std::map<Key, std::deque<std::size_t>> sends;
    for (int rank = 0; rank < program_.ranks; ++rank)
      for (std::size_t s = 0; s < program_.steps[at(rank)].size(); ++s) {
        const auto& step = program_.steps[at(rank)][s];
        if (step.kind == CollectiveStepKind::send)
          sends[{rank, step.peer, step.chunk, step.first, step.last}].push_back(s);
      }
    for (int rank = 0; rank < program_.ranks; ++rank) {
      for (std::size_t s = 0; s < program_.steps[at(rank)].size(); ++s) {
        const auto& step = program_.steps[at(rank)][s];
        if (step.kind == CollectiveStepKind::send) continue;
        event_[at(rank)][s] = events++;
        done_.push_back({rank, &step});
        if (step.kind == CollectiveStepKind::copy) continue;
        const auto found = sends.find({step.peer, rank, step.chunk, step.first, step.last});
        if (found == sends.end() || found->second.empty()) {
          fail(rank, s,
               fmt::format("rank {} never sends [{}, {}) of chunk {} to rank {}", step.peer, step.first, step.last,
                           step.chunk, rank),
               "every receive needs a send of the same range");
          continue;
        }
        event_[at(step.peer)][found->second.front()] = event_[at(rank)][s];
        found->second.pop_front();
      }
    }
    for (const auto& [key, left] : sends)
      if (!left.empty())
        fail(std::get<0>(key), left.front(), fmt::format("rank {} never receives it", std::get<1>(key)),
             "add a receive of the same range for every send");
  }

  void before(int rank, std::size_t earlier, std::size_t later) {
    const int from = event_[at(rank)][earlier], to = event_[at(rank)][later];
    if (!after_[at(from)].empty() && after_[at(from)].back() == to) return;
    after_[at(from)].push_back(to);
    ++open_[at(to)];
  }

  // What a rank's list demands: `after`, and the order of steps on overlapping ranges of which one writes.
  void constrain(int rank) {
    const auto& steps = program_.steps[at(rank)];
    std::map<int, std::vector<std::int64_t>> borders;
    for (const auto& step : steps) {
      borders[step.chunk].push_back(step.first);
      borders[step.chunk].push_back(step.last);
    }
    struct Piece {
      std::optional<std::size_t> writer;
      std::vector<std::size_t> readers;  // since it was written
    };
    std::map<int, std::vector<Piece>> pieces;
    for (auto& [chunk, list] : borders) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
      pieces[chunk].resize(list.size());
    }
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const auto& step = steps[s];
      for (const int earlier : step.after) before(rank, at(earlier), s);
      const auto& list = borders[step.chunk];
      auto place = static_cast<std::size_t>(std::lower_bound(list.begin(), list.end(), step.first) - list.begin());
      for (; list[place] < step.last; ++place) {
        Piece& piece = pieces[step.chunk][place];
        if (piece.writer) before(rank, *piece.writer, s);
        if (step.kind == CollectiveStepKind::send) {
          piece.readers.push_back(s);
          continue;
        }
        for (const auto reader : piece.readers) before(rank, reader, s);
        piece.readers.clear();
        piece.writer = s;
      }
    }
  }

  void run() {
    std::deque<int> free;
    for (std::size_t event = 0; event < open_.size(); ++event)
      if (open_[event] == 0) free.push_back(static_cast<int>(event));
    while (!free.empty()) {
      const int event = free.front();
      free.pop_front();
      order.push_back(done_[at(event)]);
      for (const int next : after_[at(event)])
        if (--open_[at(next)] == 0) free.push_back(next);
    }
    for (int rank = 0; rank < program_.ranks; ++rank)
      for (std::size_t s = 0; s < event_[at(rank)].size(); ++s)
        if (open_[at(event_[at(rank)][s])] > 0) {
          fail(rank, s, "waits forever", "break the cycle of steps that wait for each other: move one of them up");
          break;
        }
  }

  void fail(int rank, std::size_t step, std::string what, std::string hint) {
    if (wrong.size() < most_violations) wrong.push_back({step_place(rank, step), std::move(what), std::move(hint)});
  }

  const CollectiveProgram& program_;
  std::vector<std::vector<int>> event_;  // of every rank's steps
  std::vector<Done> done_;               // by event
  std::vector<std::vector<int>> after_;
  std::vector<int> open_;  // events before it that have not happened
};

// Who has contributed to a range, one bit per rank; the last bit: what was there before the operation, and is of no
// rank.
using Contributors = std::vector<std::uint64_t>;

class Contributions {
 public:
  Contributions(const CollectiveProgram& program, const std::vector<Done>& order) : program_(program), order_(order) {
    for (const auto& done : order) {
      pieces_[done.step->chunk].push_back(done.step->first);
      pieces_[done.step->chunk].push_back(done.step->last);
    }
    const bool alike = std::all_of(order.begin(), order.end(), [](const Done& done) { return done.step->chunk == 0; });
    for (int chunk = 0; chunk < (alike ? 1 : program.chunks); ++chunk) {
      auto& borders = pieces_[chunk];
      borders.push_back(0);
      borders.push_back(program.chunk_bytes());
      if (of_blocks())
        for (int rank = 1; rank < program.ranks; ++rank) borders.push_back(block() * rank);
      std::sort(borders.begin(), borders.end());
      borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    }
  }

  std::vector<Violation> check() {
    for (const auto& [chunk, borders] : pieces_)
      for (std::size_t begin = 0; begin + 1 < borders.size(); begin += batch)
        check_pieces(chunk, borders, begin, std::min(begin + batch, borders.size() - 1));
    return std::move(wrong_);
  }

 private:
  static constexpr std::size_t batch = 64;  // ranges looked at together: memory against passes over the order

  bool of_blocks() const {
    return program_.operation == CollectiveOperation::reduce_scatter ||
           program_.operation == CollectiveOperation::all_gather;
  }
  std::int64_t block() const { return program_.chunk_bytes() / program_.ranks; }

  Contributors single(int rank) const {
    Contributors set(at(program_.ranks) / 64 + 1, 0);
    set[at(rank) / 64] |= std::uint64_t{1} << (rank % 64);
    return set;
  }

  bool has_input(int rank, std::int64_t position) const {
    if (program_.operation == CollectiveOperation::all_gather) return position / block() == rank;
    return program_.operation != CollectiveOperation::broadcast || rank == program_.root;
  }
  Contributors input(int rank, std::int64_t position) const {
    return single(has_input(rank, position) ? rank : program_.ranks);
  }

  void check_pieces(int chunk, const std::vector<std::int64_t>& borders, std::size_t begin, std::size_t end) {
    const std::size_t width = end - begin;
    std::vector<Contributors> held(at(program_.ranks) * width);
    for (int rank = 0; rank < program_.ranks; ++rank)
      for (std::size_t p = 0; p < width; ++p) held[at(rank) * width + p] = input(rank, borders[begin + p]);
    for (const auto& done : order_) {
      const auto& step = *done.step;
      if (step.chunk != chunk || step.last <= borders[begin] || step.first >= borders[end]) continue;
      for (std::size_t p = 0; p < width; ++p) {
        if (borders[begin + p] < step.first || borders[begin + p] >= step.last) continue;
        auto& mine = held[at(done.rank) * width + p];
        if (step.kind == CollectiveStepKind::copy) {
          mine = input(done.rank, borders[begin + p]);
          continue;
        }
        const auto& other = held[at(step.peer) * width + p];
        if (step.kind == CollectiveStepKind::recv) {
          mine = other;
          continue;
        }
        for (std::size_t word = 0; word < mine.size(); ++word) {
          if (mine[word] & other[word])
            fail(done.rank, chunk, borders[begin + p], borders[begin + p + 1], "counts a contribution twice");
          mine[word] |= other[word];
        }
      }
    }
    Contributors everybody(at(program_.ranks) / 64 + 1, 0);
    for (int rank = 0; rank < program_.ranks; ++rank) everybody[at(rank) / 64] |= std::uint64_t{1} << (rank % 64);
    for (int rank = 0; rank < program_.ranks; ++rank)
      for (std::size_t p = 0; p < width; ++p)
        check_result(rank, chunk, borders[begin + p], borders[begin + p + 1], held[at(rank) * width + p], everybody);
  }

  void check_result(int rank, int chunk, std::int64_t first, std::int64_t last, const Contributors& set,
                    const Contributors& everybody) {
    const auto owner = of_blocks() ? static_cast<int>(first / block()) : rank;
    switch (program_.operation) {
      case CollectiveOperation::reduce_scatter:
        if (owner != rank) return;
        [[fallthrough]];
      case CollectiveOperation::all_reduce:
        if (set != everybody) fail(rank, chunk, first, last, "lacks contributions");
        return;
      case CollectiveOperation::all_gather:
        if (set != single(owner)) fail(rank, chunk, first, last, fmt::format("is not rank {}'s", owner));
        return;
      case CollectiveOperation::broadcast:
        if (set != single(program_.root)) fail(rank, chunk, first, last, "is not the root's");
    }
  }

  void fail(int rank, int chunk, std::int64_t first, std::int64_t last, const std::string& what) {
    if (wrong_.size() < most_violations)
      wrong_.push_back({fmt::format("rank {}", rank), fmt::format("[{}, {}) of chunk {} {}", first, last, chunk, what),
                        "the program does not compute its collective"});
  }

  const CollectiveProgram& program_;
  const std::vector<Done>& order_;
  std::map<int, std::vector<std::int64_t>> pieces_;
  std::vector<Violation> wrong_;
};

}  // namespace

std::vector<Violation> check_program(const CollectiveProgram& program) {
  if (auto wrong = check_form(program); !wrong.empty()) return wrong;
  const Rendezvous rendezvous(program);
  if (!rendezvous.wrong.empty()) return rendezvous.wrong;
  return Contributions(program, rendezvous.order).check();
}

std::vector<Violation> verify(const CollectivePlan& plan) {
  if (plan.program.ranks != static_cast<int>(plan.cluster.devices.size()))
    return {{"ranks", fmt::format("{} ranks for {} devices", plan.program.ranks, plan.cluster.devices.size()),
             "a collective has a rank per device of its cluster"}};
  return check_program(plan.program);
}

CollectiveProgram read_collective_program(const std::filesystem::path& file) {
  auto plan = read_plan_file<CollectivePlan>(file);
  if (const auto violations = verify(plan); !violations.empty())
    throw input_error(fmt::format("{}: {}: {}", file.string(), violations.front().place, violations.front().what),
                      "run `motley verify PLAN` to list all violations");
  return std::move(plan.program);
}

}  // namespace motley
