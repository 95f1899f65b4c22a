// Collective operations among the members of one epoch. No operation changes the membership, none outlives its
// deadline, and every one ends in exactly one of five ways, on each rank for itself; whether a step of several ranks
// counts is the vote's business, one floor above.
//
//   Communicator group(epoch, fabric.connect(epoch, rank, 10));
//   const OperationOutcome outcome = group.all_reduce(gradients, CollectiveElement::fp32, {.timeout_s = 10});
//   if (outcome.status != OperationStatus::ok) ...  // outcome.cause, outcome.suspects
//
// A communicator belongs to one thread at a time; revoke() alone may be called from any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/comm/collective/execution.hpp"
#include "motley/comm/collective/one_round.hpp"
#include "motley/comm/collective/schedule_cache.hpp"
#include "motley/comm/net/epoch.hpp"
#include "motley/comm/transport/collective_element.hpp"
#include "motley/comm/transport/transport.hpp"
#include "motley/plan/collective_program.hpp"

namespace motley {

enum class OperationStatus {
  ok,
  aborted,    // this rank gave up: a peer was lost, or it was asked to stop
  revoked,    // the epoch was given up, by revoke() here or by another rank
  timed_out,  // the deadline passed
  invalid     // the call is wrong, or ranks disagree about it
};
std::string_view name(OperationStatus status);

// What happened on the link to one peer during an operation.
struct LinkUsage {
  int peer = 0;
  std::int64_t sent_bytes = 0;      // with headers
  std::int64_t received_bytes = 0;  // with headers
  double last_s = 0;                // from the start of the operation to the last frame from this peer
};

// After any end but ok the communicator is done for, and every later call ends as revoked; except for an invalid call
// that was refused before anything was sent (`cause` then does not name a peer).
struct OperationOutcome {
  OperationStatus status = OperationStatus::ok;
  std::string cause;          // empty where ok
  std::vector<int> suspects;  // ranks that did not deliver what was awaited
  double time_s = 0;
  double waited_s = 0;           // of that time: nothing could be moved
  std::vector<LinkUsage> links;  // peers with traffic
};

OperationOutcome unsuccessful(OperationStatus status, std::string cause);

enum class OnAbort {
  undefined,  // the buffer's contents are lost
  restore     // a copy is taken first and put back: bit for bit what the caller gave
};

struct OperationOptions {
  CollectiveReduction reduction = CollectiveReduction::sum;
  double timeout_s = 30;
  std::stop_token stop = {};
  OnAbort on_abort = OnAbort::undefined;
};

class Communicator {
 public:
  // The transport's rank and size must be the epoch's.
  Communicator(Epoch epoch, std::unique_ptr<Transport> transport);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Epoch& epoch() const { return epoch_; }
  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }

  // Programs to run in place of the library's own: of those for an operation (and root) the one made for the nearest
  // size. Vectors of at most one_round_bytes stay with the library's all_reduce. All ranks must give the same; ranks
  // that do not are told so by the next operation. Throws an input error for another number of ranks.
  void use_plans(std::vector<CollectiveProgram> plans);

  // In place: every rank ends with the same bits.
  OperationOutcome all_reduce(std::span<std::byte> data, CollectiveElement element, const OperationOptions& options);
  // In place: `data` holds size() equal blocks; the reduced block of this rank stands in its place afterwards, the
  // others' contents are lost.
  OperationOutcome reduce_scatter(std::span<std::byte> data, CollectiveElement element,
                                  const OperationOptions& options);
  // In place: `data` holds size() equal blocks, this rank's in its place.
  OperationOutcome all_gather(std::span<std::byte> data, const OperationOptions& options);
  // In place: rank r's block are the bytes from bounds[r] to bounds[r + 1]; the same bounds on all ranks.
  OperationOutcome all_gather(std::span<std::byte> data, std::span<const std::int64_t> bounds,
                              const OperationOptions& options);
  OperationOutcome broadcast(std::span<std::byte> data, int root, const OperationOptions& options);
  // In place at the root; the others' data are lost or untouched, as the program has it.
  OperationOutcome reduce(std::span<std::byte> data, CollectiveElement element, int root,
                          const OperationOptions& options);
  // Block r of `out` comes from rank r's block for this rank in its `in`. Blocks lie one after the other, their bytes
  // are given by rank; what A sends to B must be what B expects of A.
  OperationOutcome all_to_all(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                              std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                              const OperationOptions& options);
  // Messages of a pair of ranks arrive in the order in which they were sent. They take turns with the operations of
  // all ranks: both sides must call in one order.
  OperationOutcome send(std::span<const std::byte> data, int peer, const OperationOptions& options);
  OperationOutcome recv(std::span<std::byte> data, int peer, const OperationOptions& options);
  OperationOutcome barrier(const OperationOptions& options);

  // Serves the transport while no operation runs: acknowledges, repairs broken connections, sends again what was lost
  // with them. A thread with nothing else to do calls this, which lets peers recover a broken connection. Ends after
  // `seconds`, or when the epoch or `stop` does.
  void attend(double seconds, const std::stop_token& stop = {});

  // Gives the epoch up: running and later operations end as revoked, here and, as the word spreads, everywhere. From
  // any thread.
  void revoke(std::string cause);

  const LinkTraffic& traffic(int peer) const { return transport_->traffic(peer); }
  // The most that was ever held in addition to the callers' buffers: pieces that came before their turn, copies for
  // restoring, working space, the transport's buffers.
  std::int64_t peak_extra_bytes() const { return peak_extra_bytes_; }

 private:
  struct Call;
  class Sink;

  OperationOutcome run(Call& call, const OperationOptions& options);
  OperationOutcome run_planned(Call& call, const OperationOptions& options);
  std::int64_t most_at_once() const;  // bytes of an all_reduce in one round
  OperationOutcome reduce_at_once(std::span<std::byte> data, CollectiveElement element,
                                  const OperationOptions& options);
  OperationOutcome run_message(Call& call, int peer, CollectiveStepKind kind, const OperationOptions& options);
  void drive(const OperationOptions& options, double deadline_s, OperationOutcome& outcome);
  bool ended(const OperationOptions& options, double deadline_s, OperationOutcome& outcome);
  bool push();
  void spread(const OperationOutcome& outcome);

  Epoch epoch_;
  bool one_host_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Sink> sink_;
  Execution execution_;
  OneRound one_round_;
  OperationProgress* progress_ = &execution_;  // of the running operation
  std::uint64_t operations_ = 0;
  std::vector<std::uint64_t> messages_sent_, messages_received_;  // by peer
  ScheduleCache schedules_;
  std::vector<std::byte> scratch_;
  // Kept from call to call for their memory alone.
  std::vector<std::pair<std::int64_t, std::int64_t>> before_;  // bytes sent to and received from each peer
  std::vector<const std::byte*> terms_;
  std::int64_t peak_extra_bytes_ = 0;
  std::optional<OperationOutcome> end_;  // why nothing runs any more

  std::atomic<bool> revoked_{false};
  std::mutex revocation_;
  std::string revocation_cause_;
};

}  // namespace motley
