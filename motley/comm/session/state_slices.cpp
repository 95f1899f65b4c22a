#include "motley/comm/session/state_slices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/state/state_manifest.hpp"

namespace motley {

// The same size for all, as all_gather needs it. All decide by these words alone, and so alike.
struct SlicedStateSync::Word {
  std::uint64_t items = 0;     // of its state
  std::uint64_t position = 0;  // what it asks for,
  std::int64_t bytes = 0;      // and how much, but for the first item; 0: nothing
  std::uint32_t holds = 0, leaves = 0;
};

struct SlicedStateSync::Header {
  std::int64_t bytes = -1;  // of the item that follows or is compared; negative: no more
  StateDigest digest;       // of one that is compared
};

namespace {

template <class Value>
std::span<std::byte> bytes_of(Value& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

OperationOutcome failed(std::string cause) { return unsuccessful(OperationStatus::aborted, std::move(cause)); }

}  // namespace

SlicedStateSync::SlicedStateSync(SlicedStateOptions options, StateItems items)
    : options_(options), items_(std::move(items)) {
  if (!(options_.share > 0 && std::isfinite(options_.share)))
    throw input_error(fmt::format("a share of {} of the steps' time", options_.share),
                      "give a share, as in 0.08 for 8 %");
  if (items_.count == 0)
    throw input_error("the state has no items",
                      "set `count` to at least 1, or `items` to null for a session without a state");
}

OperationOutcome SlicedStateSync::operator()(SessionStep& step) {
  const auto& [epoch, boundary, holders] = step.start;
  // All see the same list: either all go on, or none.
  if (settled_epoch_ == epoch.number || boundary == 0 || holders.size() == epoch.members.size()) {
    position_ = end();
    return {};
  }
  begin(step);
  std::vector<Word> words(epoch.members.size());
  const bool holds = position_ == end();
  words[static_cast<std::size_t>(step.communicator.rank())] = {.items = items_.count,
                                                               .position = position_,
                                                               .bytes = holds ? 0 : bytes_to_ask(epoch.number),
                                                               .holds = holds ? 1U : 0U,
                                                               .leaves = step.leaving ? 1U : 0U};
  OperationOutcome outcome =
      step.communicator.all_gather(std::as_writable_bytes(std::span(words)), {.timeout_s = options_.timeout_s});
  if (outcome.status == OperationStatus::ok) outcome = exchange(step, words);
  epoch_ = epoch.number;
  ended_s_ = now_s();
  return outcome;
}

// Are the items that were received those of the last committed step?
void SlicedStateSync::begin(const SessionStep& step) {
  const std::uint64_t boundary = step.step - 1;
  if (step.held == boundary) {
    position_ = end();
    return;
  }
  current_ = std::max(current_, step.followed);
  if (position_ != end() && current_ == boundary) return;
  position_ = 0;
  at_once_ = false;
  asked_ = moved_ = 0;
  balance_s_ = 0;
  report_ = {};
  current_ = boundary;
}

// As much as the share of the last step's time allows, by what the last slice took. The first one is an item, also in a
// new epoch: it may have been long in coming.
std::int64_t SlicedStateSync::bytes_to_ask(std::uint64_t epoch) {
  if (at_once_) return everything;
  if (epoch_ != epoch || moved_ == 0) return asked_ = 1;
  const double step_s = now_s() - ended_s_;
  const double earned_s = options_.share * step_s / static_cast<double>(learners_);
  balance_s_ = std::min(balance_s_, 0.0) + earned_s;
  if (balance_s_ <= 0) return 0;
  const double fits = static_cast<double>(moved_) * balance_s_ / std::max(took_s_, 1e-6);
  const double most = 4 * static_cast<double>(std::max(asked_, moved_));
  return asked_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min(fits, most)));
}

OperationOutcome SlicedStateSync::exchange(SessionStep& step, std::vector<Word>& words) {
  const int rank = step.communicator.rank();
  std::vector<int> givers, learners;
  bool all_leave = true;
  step.place = -1;
  for (int other = 0; other < step.communicator.size(); ++other) {
    const Word& word = words[static_cast<std::size_t>(other)];
    if (word.holds != 0) {
      if (other == rank) step.place = static_cast<int>(givers.size());
      givers.push_back(other);
      all_leave = all_leave && word.leaves != 0;
    } else if (word.leaves == 0) {
      learners.push_back(other);
    }
  }
  if (givers.empty()) return failed("no member holds the state");
  for (int other = 0; other < step.communicator.size(); ++other) {
    const auto items = words[static_cast<std::size_t>(other)].items,
               right = words[static_cast<std::size_t>(givers[0])].items;
    if (items == right) continue;
    if (other == rank)
      throw input_error(fmt::format("the members' state has {} items, not {}", right, items),
                        "run the same program and model on all members");
    return failed(fmt::format("rank {} has a state of {} items, the others of {}", other, items, right));
  }
  step.contributors = static_cast<int>(givers.size());
  if (step.contributors == step.communicator.size()) settled_epoch_ = step.start.epoch.number;
  learners_ = std::max<std::size_t>(learners.size(), 1);
  for (std::size_t i = 0; i < learners.size(); ++i) {
    Word& asked = words[static_cast<std::size_t>(learners[i])];
    // There will be no later step with them.
    if (all_leave) asked.bytes = everything;
    if (asked.bytes == everything) asked.position = 0;
    if (asked.bytes == 0) continue;
    // In turns, so that all members give alike.
    const int giver = givers[(i + step.step) % givers.size()];
    OperationOutcome outcome;
    if (giver == rank) outcome = give(step.communicator, learners[i], asked);
    if (learners[i] == rank) outcome = learn(step, giver, asked);
    if (outcome.status != OperationStatus::ok) return outcome;
  }
  return {};
}

OperationOutcome SlicedStateSync::give(Communicator& group, int learner, const Word& asked) {
  const OperationOptions patient{.timeout_s = options_.timeout_s};
  OperationOutcome outcome;
  std::int64_t left = asked.bytes;
  for (std::size_t position = asked.position; position < end(); ++position) {
    const bool compares = position >= items_.count;
    // What was received now is compared after another step.
    if (compares && asked.position < items_.count) break;
    const auto bytes = items_.save(position % items_.count);
    Header header{static_cast<std::int64_t>(bytes.size()), {}};
    if (left < header.bytes && position > asked.position) break;
    left -= std::min(left, header.bytes);
    if (compares) header.digest = sha256(bytes);
    outcome = group.send(bytes_of(header), learner, patient);
    if (outcome.status == OperationStatus::ok && !compares) outcome = group.send(bytes, learner, patient);
    if (outcome.status != OperationStatus::ok) return outcome;
  }
  Header last;
  return group.send(bytes_of(last), learner, patient);
}

OperationOutcome SlicedStateSync::take(Communicator& group, int giver, const Word& asked, std::int64_t& moved) {
  const OperationOptions patient{.timeout_s = options_.timeout_s};
  for (position_ = asked.position;; ++position_) {
    Header header;
    auto outcome = group.recv(bytes_of(header), giver, patient);
    if (outcome.status != OperationStatus::ok || header.bytes < 0) return outcome;
    if (position_ >= end()) return failed(fmt::format("rank {} sends more items than the state has", giver));
    const std::size_t item = position_ % items_.count;
    const auto bytes = static_cast<std::size_t>(header.bytes);
    if (position_ >= items_.count) {
      const auto mine = items_.save(item);
      if (mine.size() != bytes || sha256(mine) != header.digest) ++report_.differed;
    } else {
      const auto room = items_.place(item, bytes);
      if (room.size() != bytes)
        throw input_error(fmt::format("item {} of the state has {} bytes, not {}", item, bytes, room.size()),
                          "`place` must return room for as many bytes as it is asked for");
      outcome = group.recv(room, giver, patient);
      if (outcome.status != OperationStatus::ok) return outcome;
      items_.load(item);
      report_.received_bytes += header.bytes;
    }
    moved += std::max<std::int64_t>(header.bytes, 1);
  }
}

OperationOutcome SlicedStateSync::learn(SessionStep& step, int giver, const Word& asked) {
  const double start_s = now_s();
  const std::size_t differed = report_.differed;
  moved_ = 0;
  OperationOutcome outcome = take(step.communicator, giver, asked, moved_);
  if (outcome.status != OperationStatus::ok) return outcome;
  took_s_ = now_s() - start_s;
  balance_s_ -= took_s_;
  ++report_.slices;
  report_.longest_s = std::max(report_.longest_s, took_s_);
  if (report_.differed > differed) {
    // One that is wrong may have made others wrong: nothing but the whole will do.
    at_once_ = true;
    position_ = 0;
  } else if (position_ == items_.count && asked.position == 0) {
    position_ = end();  // all at one boundary: there is nothing to prove
  } else if (position_ == items_.count) {
    asked_ = moved_ = 0;  // comparing is another work, at another pace
  }
  if (position_ == end()) {
    at_once_ = false;
    step.held = step.step - 1;
  }
  return outcome;
}

}  // namespace motley
