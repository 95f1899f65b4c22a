// The state of a session's members in items, which joiners are given one after the other while the group's steps go on.
//
//   SlicedStateSync sync({}, {.count = 200, .save = ..., .place = ..., .load = ...});
//   Session session({..., .share_state = std::ref(sync)});
//
// For programs in which a step changes an item depending on this item and on the step's reduced results alone, as SGD
// and Adam do where a parameter and its moments are one item. A joiner takes part in the steps at once, as a learner:
// it adds nothing, and applies a step's result to the items that it has, which therefore stay current. At the beginning
// of every step it is given the next ones, for a share of a step's time. When it has all, digests are compared in the
// same way, since it may be that what the program says of itself is not true; then, and if its members leave before,
// the learner is given everything at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "motley/comm/session/session.hpp"

namespace motley {

struct SlicedStateOptions {
  // How much longer steps may become: with what goes along with slices, less than a tenth. But an item goes as a whole.
  double share = 0.08;
  double timeout_s = 600;  // of an operation
};

// How a process gives and takes the items of its state, which have the same numbers in all members.
struct StateItems {
  std::size_t count = 0;
  // Where the item lies; it stays as it is until the next call.
  std::function<std::span<const std::byte>(std::size_t item)> save;
  // Room for the item. Throws an input error where it does not fit.
  std::function<std::span<std::byte>(std::size_t item, std::size_t bytes)> place;
  // It has arrived where place() said.
  std::function<void(std::size_t item)> load = [](std::size_t) {};
};

// How this process came by its state the last time.
struct SlicedStateReport {
  std::int64_t received_bytes = 0;
  std::size_t slices = 0;    // steps at whose beginning something was given
  double longest_s = 0;      // slice
  std::size_t differed = 0;  // items that were not what the members have: the program's word was wrong
};

class SlicedStateSync {
 public:
  // Throws an input error for a share or a number of items that is none.
  SlicedStateSync(SlicedStateOptions options, StateItems items);

  // A ShareHook.
  OperationOutcome operator()(SessionStep& step);

  // Items that this process has: the first ones, all unless it is learning. What a committed step changes in the
  // others does not count.
  std::size_t held() const { return std::min(position_, items_.count); }
  const SlicedStateReport& report() const { return report_; }

 private:
  struct Word;    // what a member says to all others
  struct Header;  // before an item, or in its place
  static constexpr std::int64_t everything = std::numeric_limits<std::int64_t>::max();

  std::size_t end() const { return 2 * items_.count; }
  void begin(const SessionStep& step);
  std::int64_t bytes_to_ask(std::uint64_t epoch);
  OperationOutcome exchange(SessionStep& step, std::vector<Word>& words);
  OperationOutcome give(Communicator& group, int learner, const Word& asked);
  OperationOutcome take(Communicator& group, int giver, const Word& asked, std::int64_t& moved);
  OperationOutcome learn(SessionStep& step, int giver, const Word& asked);

  SlicedStateOptions options_;
  StateItems items_;
  std::uint64_t settled_epoch_ = 0;  // in which all hold the state
  SlicedStateReport report_;

  // Of a learner. It has the items before position_; behind the last one positions count those that are compared.
  std::size_t position_ = 0;
  std::uint64_t current_ = 0;  // the step whose result its items have
  bool at_once_ = false;       // it needs everything at one boundary
  // How much is asked for.
  std::uint64_t epoch_ = 0;  // of the last slice
  double ended_s_ = 0;       // when it did
  double balance_s_ = 0;     // what slices may take of the steps' time; negative: they have taken more
  double took_s_ = 0;
  std::int64_t asked_ = 0, moved_ = 0;
  std::size_t learners_ = 1;  // share the time
};

}  // namespace motley
