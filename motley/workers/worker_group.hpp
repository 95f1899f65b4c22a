// Workers that run a model together, as the engine sees them: operations wait as long as it takes, and end well or
// throw. Only the driver knows how long a stage may compute; it ends workers that exceed the timeout, or the epoch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/plan/collective_programs.hpp"
#include "motley/workers/activity_log.hpp"
#include "motley/workers/worker_messages.hpp"

namespace motley {

// A peer error: the group is of no more use, since a member is lost or the epoch was stopped.
class GroupBroken : public Error {
 public:
  GroupBroken(const std::string& message, const std::string& hint, std::vector<std::string> not_there)
      : Error(ErrorCode::peer, message, hint), suspects(std::move(not_there)) {}
  std::vector<std::string> suspects;  // members that did not do their part
};

class WorkerGroup {
 public:
  // `members` are names, by rank; the group's own name tells it from others in messages. Over a fabric, which outlives
  // the group; every member must do the same within `timeout_s`. `addresses` are those of the members' fabrics;
  // `window_bytes` as Fabric::connect() says; `stop` ends whatever runs or waits in the group. Throws GroupBroken,
  // which names the members that cannot be reached.
  WorkerGroup(std::string name, const std::vector<std::string>& members, int rank, std::uint64_t epoch,
              const std::vector<WorkerAddress>& addresses, Fabric& fabric, double timeout_s, std::stop_token stop = {},
              std::int64_t window_bytes = 0);

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }

  // Sums of vectors that travel in parts follow the group's rounds from now on, at all ranks: their terms are added in
  // the order of the rounds, and all ranks still end with the same bits.
  void add_up_along(const CollectiveGroup& group);

  // Operations are noted there as waits for the members, which have these places. The log outlives the group.
  void tell(ActivityLog& log, std::vector<int> places);

  // All ranks must call the same operations in the same order. Each throws GroupBroken, which names who is lost, or
  // who does something else.
  //
  // The sum, in place: terms are added in rank order in fp32 and rounded once. So every rank ends with the same bits,
  // and an element's do not depend on where it lies in the tensor, nor on the tensor's size.
  void all_reduce(std::span<std::byte> data, CollectiveElement element);
  // The same sum, of which rank r gets bytes [bounds[r], bounds[r + 1]), in their place; the others' are lost.
  void reduce_scatter(std::span<std::byte> data, std::span<const std::int64_t> bounds, CollectiveElement element);
  // In place: rank r brings bytes [bounds[r], bounds[r + 1]) of `data`.
  void all_gather(std::span<std::byte> data, std::span<const std::int64_t> bounds);
  // send() returns once `data` may be overwritten. In shared memory that does not wait for the receiver while no more
  // than the window is under way.
  void send(std::span<const std::byte> data, int peer);
  void receive(std::span<std::byte> data, int peer);

  // Time spent waiting for others, for reports.
  double waited_s() const { return waited_s_; }

 private:
  template <class Operation>
  void wait(Doing doing, int peer, const Operation& operation);
  template <class Operation>
  void meet(const Operation& operation);
  void check(const OperationOutcome& outcome);

  Communicator communicator_;
  const OperationOptions options_;
  ActivityLog* log_ = nullptr;
  std::vector<int> places_;
  bool in_rounds_ = false;  // of add_up_along()
  std::vector<std::byte> terms_;
  double waited_s_ = 0;
};

// The crossing from a stage of `a` ranks to one of `b`: rows are cut into b intervals, interval j travels once, from
// sender rank j * a / b to receiver rank j, and the receivers gather all rows. Empty intervals send nothing.
std::vector<std::int64_t> crossing_bounds(std::int64_t rows, int receivers);
int crossing_sender(int receiver, int senders, int receivers);

}  // namespace motley
