// The rounds of a program that was written as steps.
#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "motley/base/error.hpp"
#include "motley/base/index.hpp"
#include "motley/cost/collective/genmodel.hpp"

namespace motley {
namespace {

// Ranges of one rank, with the round in which each was last written and whether by adding.
class WrittenRanges {
 public:
  // The last round in which something in [first, last) was written.
  int round_of(std::int64_t first, std::int64_t last) const {
    int round = 0;
    for_each(first, last, [&](const Written& written) { round = std::max(round, written.round); });
    return round;
  }

  // The earliest round for an addition: with those before it on the same range, which are one round together, or after
  // what was there.
  int base_of(std::int64_t first, std::int64_t last, bool adds) const {
    int round = 0;
    for_each(first, last, [&](const Written& written) {
      round = std::max(round, adds && written.adds ? written.base : written.round);
    });
    return round;
  }

  // Whether anything in [first, last) was written otherwise than by adding.
  bool copied(std::int64_t first, std::int64_t last) const {
    bool found = false;
    for_each(first, last, [&](const Written& written) { found = found || !written.adds; });
    return found;
  }

  void write(std::int64_t first, std::int64_t last, int round, int base, bool adds) {
    split(first);
    split(last);
    auto from = pieces_.lower_bound(first), to = pieces_.lower_bound(last);
    if (from == to) {
      pieces_[first] = {last, {round, base, adds}};
      return;
    }
    std::int64_t reached = first;
    std::vector<std::pair<std::int64_t, std::int64_t>> holes;
    for (; from != to; ++from) {
      if (from->first > reached) holes.push_back({reached, from->first});
      reached = from->second.last;
      Written& written = from->second.written;
      written = {std::max(written.round, round), adds && written.adds ? std::max(written.base, base) : base, adds};
    }
    if (reached < last) holes.push_back({reached, last});
    for (const auto& [begin, end] : holes) pieces_[begin] = {end, {round, base, adds}};
  }

 private:
  struct Written {
    int round = 0;  // that wrote it last
    int base = 0;   // the round before the additions to it
    bool adds = false;
  };
  struct Piece {
    std::int64_t last = 0;
    Written written;
  };

  template <class Visit>
  void for_each(std::int64_t first, std::int64_t last, Visit&& visit) const {
    auto piece = pieces_.upper_bound(first);
    if (piece != pieces_.begin() && std::prev(piece)->second.last > first) --piece;
    for (; piece != pieces_.end() && piece->first < last; ++piece) visit(piece->second.written);
  }

  void split(std::int64_t border) {
    auto piece = pieces_.lower_bound(border);
    if (piece == pieces_.begin()) return;
    --piece;
    if (piece->second.last <= border || piece->first == border) return;
    pieces_[border] = piece->second;
    piece->second.last = border;
  }

  std::map<std::int64_t, Piece> pieces_;
};

void sort_by_pairs(std::vector<CollectiveRound>& rounds) {
  for (auto& round : rounds)
    std::stable_sort(round.begin(), round.end(), [](const CollectiveTransfer& a, const CollectiveTransfer& b) {
      return std::tie(a.from, a.to, a.first) < std::tie(b.from, b.to, b.first);
    });
}

void place(std::vector<CollectiveRound>& rounds, int round, const CollectiveTransfer& transfer) {
  if (rounds.size() < at(round)) rounds.resize(at(round));
  rounds[at(round) - 1].push_back(transfer);
}

// Transfers in an order in which they can happen, and the earliest round of each.
class Arrivals {
 public:
  explicit Arrivals(int ranks) : written_(at(ranks)) {}

  struct Ready {
    int round = 0;        // after which the content is complete at its sender
    bool copied = false;  // that content, or a part of it
  };
  Ready ready(int rank, int chunk, std::int64_t first, std::int64_t last) {
    const auto& ranges = written_[at(rank)][chunk];
    return {ranges.round_of(first, last), ranges.copied(first, last)};
  }

  void arrive(const CollectiveTransfer& transfer, int chunk, const Ready& ready) {
    auto& ranges = written_[at(transfer.to)][chunk];
    const bool adds = transfer.kind == CollectiveStepKind::reduce;
    // A range is overwritten at any time: it is not read in between.
    const int base = adds ? ranges.base_of(transfer.first, transfer.last, true) : 0;
    const int round = std::max(ready.round, base) + 1;
    ranges.write(transfer.first, transfer.last, round, base, adds);
    if (adds) additions_ = std::max(additions_, round);
    mixed_ = mixed_ || (adds && ready.copied);
    list_.push_back({transfer, chunk, round});
  }

  std::vector<CollectiveRound> rounds() const {
    std::vector<CollectiveRound> rounds;
    const auto later = mixed_ ? std::vector<int>{} : copies_after();
    int most = 0;
    for (const int count : later) most = std::max(most, count);
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const bool copy = !mixed_ && list_[i].transfer.kind != CollectiveStepKind::reduce;
      place(rounds, copy ? additions_ + 1 + most - later[i] : list_[i].earliest, list_[i].transfer);
    }
    sort_by_pairs(rounds);
    return rounds;
  }

 private:
  struct Arrival {
    CollectiveTransfer transfer;
    int chunk = 0;
    int earliest = 0;
  };

  // Rounds of copies that each copy has still to be handed on in.
  std::vector<int> copies_after() const {
    std::vector<int> later(list_.size(), 0);
    std::vector<std::map<int, WrittenRanges>> handed_on(written_.size());
    for (std::size_t i = list_.size(); i-- > 0;) {
      const auto& transfer = list_[i].transfer;
      if (transfer.kind == CollectiveStepKind::reduce) continue;
      later[i] = handed_on[at(transfer.to)][list_[i].chunk].round_of(transfer.first, transfer.last);
      handed_on[at(transfer.from)][list_[i].chunk].write(transfer.first, transfer.last, later[i] + 1, 0, false);
    }
    return later;
  }

  std::vector<std::map<int, WrittenRanges>> written_;  // by rank and chunk
  std::vector<Arrival> list_;
  int additions_ = 0;   // rounds of them
  bool mixed_ = false;  // an addition needs a copy
};

}  // namespace

std::vector<CollectiveRound> rounds_of(const CollectiveProgram& program) {
  using Key = std::tuple<int, int, int, std::int64_t, std::int64_t>;
  std::map<Key, std::deque<Arrivals::Ready>> under_way;
  Arrivals arrivals(program.ranks);
  const auto run = [&](int rank, const CollectiveStep& step) {
    if (step.kind == CollectiveStepKind::copy) return true;
    if (step.kind == CollectiveStepKind::send) {
      under_way[{rank, step.peer, step.chunk, step.first, step.last}].push_back(
          arrivals.ready(rank, step.chunk, step.first, step.last));
      return true;
    }
    auto& waiting = under_way[{step.peer, rank, step.chunk, step.first, step.last}];
    if (waiting.empty()) return false;
    arrivals.arrive({step.peer, rank, step.first, step.last, step.kind}, step.chunk, waiting.front());
    waiting.pop_front();
    return true;
  };
  // In the order of the lists, as far as each comes; out of order only where a list would stand still.
  std::vector<std::vector<bool>> done;
  std::vector<std::size_t> next(at(program.ranks), 0);
  for (const auto& steps : program.steps) done.emplace_back(steps.size(), false);
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < program.ranks; ++rank) {
      const auto& steps = program.steps[at(rank)];
      auto& place = next[at(rank)];
      while (place < steps.size() && (done[at(rank)][place] || run(rank, steps[place]))) {
        done[at(rank)][place++] = true;
        moved = true;
      }
    }
    if (moved) continue;
    for (int rank = 0; rank < program.ranks && !moved; ++rank) {
      const auto& steps = program.steps[at(rank)];
      std::vector<const CollectiveStep*> waiting;
      for (std::size_t s = next[at(rank)]; s < steps.size() && !moved; ++s) {
        if (done[at(rank)][s]) continue;
        const bool blocked = std::any_of(waiting.begin(), waiting.end(), [&](const CollectiveStep* earlier) {
          return earlier->chunk == steps[s].chunk && earlier->first < steps[s].last && steps[s].first < earlier->last;
        });
        if (!blocked && run(rank, steps[s]))
          moved = done[at(rank)][s] = true;
        else
          waiting.push_back(&steps[s]);
      }
    }
  }
  for (int rank = 0; rank < program.ranks; ++rank) MOTLEY_CHECK(next[at(rank)] == program.steps[at(rank)].size());
  return arrivals.rounds();
}

std::vector<CollectiveRound> settled_rounds(const std::vector<CollectiveRound>& rounds, int ranks) {
  Arrivals arrivals(ranks);
  std::vector<Arrivals::Ready> ready;
  for (const auto& round : rounds) {
    ready.clear();
    for (const auto& transfer : round) ready.push_back(arrivals.ready(transfer.from, 0, transfer.first, transfer.last));
    for (std::size_t i = 0; i < round.size(); ++i) arrivals.arrive(round[i], 0, ready[i]);
  }
  return arrivals.rounds();
}

}  // namespace motley
