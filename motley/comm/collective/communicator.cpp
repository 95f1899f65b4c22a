#include "motley/comm/collective/communicator.hpp"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/collective/collective_defaults.hpp"

namespace motley {
namespace {

constexpr double longest_wait_s = 0.1;
constexpr double spread_s = 0.05;  // how long a rank that gave up tries to tell the others
// Between hosts early frames are copied out, up to this limit, so that they do not block the stream.
constexpr std::int64_t held_between_hosts_bytes = 32 << 20;

}  // namespace

std::string_view name(OperationStatus status) {
  constexpr std::array<std::string_view, 5> names{"ok", "aborted", "revoked", "timed_out", "invalid"};
  return names[static_cast<std::size_t>(status)];
}

OperationOutcome unsuccessful(OperationStatus status, std::string cause) {
  OperationOutcome outcome;
  outcome.status = status;
  outcome.cause = std::move(cause);
  return outcome;
}

struct Communicator::Call {
  OperationShape shape;
  ExecutionBuffers buffers;
  int blocks = 1;
  const CollectiveSchedule* schedule = nullptr;  // empty: one round, from the input to the slots in `data`
  std::uint64_t operation = 0;
  int source = -1;  // of a message that is awaited
};

// Takes what the transport delivers: frames of the running operation go to its execution, later ones wait.
class Communicator::Sink : public FrameSink {
 public:
  Sink(Communicator& owner) : owner_(owner), group_(group_hash(owner.epoch_.group)) {}

  void begin(const Call& call, double now_s) {
    call_ = &call;
    start_s_ = now_s;
    last_s_.assign(static_cast<std::size_t>(owner_.size()), 0.0);
  }
  void end() { call_ = nullptr; }

  CollectiveFrame frame() const {
    return {.group = group_, .epoch = owner_.epoch_.number, .operation = call_->operation, .shape = call_->shape};
  }

  std::span<std::byte> place(int peer, const CollectiveFrame& frame) noexcept override {
    return turn(peer, frame) == Turn::now ? owner_.progress_->place(peer, frame) : std::span<std::byte>{};
  }

  Verdict on_frame(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload) noexcept override {
    if (frame.kind == FrameKind::revoke) {
      if (ours(frame) && !revoked) {
        revoked = std::string(reinterpret_cast<const char*>(payload.data()), payload.size());
        moved = true;
      }
      return Verdict::taken;
    }
    switch (turn(peer, frame)) {
      case Turn::never: return Verdict::taken;
      case Turn::later: return Verdict::later;
      case Turn::now: break;
    }
    const bool aside = !owner_.one_host_ && owner_.progress_->held_bytes() < held_between_hosts_bytes;
    switch (owner_.progress_->on_frame(peer, frame, payload, aside ? OperationProgress::Holding::yes : holding)) {
      case OperationProgress::Answer::later: return Verdict::later;
      case OperationProgress::Answer::taken:
      case OperationProgress::Answer::refused: break;
    }
    last_s_[static_cast<std::size_t>(peer)] = owner_.transport_->now_s() - start_s_;
    return Verdict::taken;
  }

  void on_lost(int peer, const std::string& cause) noexcept override { lost.try_emplace(peer, cause); }

  double last_s(int peer) const { return last_s_[static_cast<std::size_t>(peer)]; }

  OperationProgress::Holding holding = OperationProgress::Holding::no;
  std::optional<std::string> revoked;  // by another rank: why
  std::map<int, std::string> lost;     // peers, and why
  bool moved = false;

 private:
  enum class Turn { now, later, never };

  bool ours(const CollectiveFrame& frame) const { return frame.group == group_ && frame.epoch == owner_.epoch_.number; }
  // Frames of other epochs are dropped, whatever sent them.
  Turn turn(int peer, const CollectiveFrame& frame) const {
    if (!ours(frame) || frame.kind != FrameKind::data) return Turn::never;
    if (call_ == nullptr) return Turn::later;
    const bool message = frame.shape.call == CollectiveCall::message;
    if (message != (call_->shape.call == CollectiveCall::message)) return Turn::later;
    if (message && peer != call_->source) return Turn::later;
    if (frame.operation == call_->operation) return Turn::now;
    return frame.operation > call_->operation ? Turn::later : Turn::never;
  }

  Communicator& owner_;
  std::uint32_t group_;
  const Call* call_ = nullptr;
  double start_s_ = 0;
  std::vector<double> last_s_;
};

Communicator::Communicator(Epoch epoch, std::unique_ptr<Transport> transport)
    : epoch_(std::move(epoch)),
      one_host_(one_host(epoch_)),
      transport_(std::move(transport)),
      sink_(std::make_unique<Sink>(*this)),
      schedules_(transport_->rank(), transport_->size()) {
  MOTLEY_CHECK(transport_->size() == static_cast<int>(epoch_.members.size()));
  messages_sent_.resize(epoch_.members.size());
  messages_received_.resize(epoch_.members.size());
}

Communicator::~Communicator() = default;

void Communicator::revoke(std::string cause) {
  {
    const std::lock_guard lock(revocation_);
    if (revoked_.load()) return;
    revocation_cause_ = std::move(cause);
    revoked_.store(true);
  }
  transport_->wake();
}

void Communicator::attend(double seconds, const std::stop_token& stop) {
  const std::stop_callback on_stop(stop, [this] { transport_->wake(); });
  for (const double until_s = transport_->now_s() + seconds;;) {
    const bool moved = transport_->poll(*sink_);
    const double left_s = until_s - transport_->now_s();
    if (left_s <= 0 || end_ || revoked_.load() || sink_->revoked || stop.stop_requested()) return;
    if (!moved) transport_->wait(std::min(left_s, longest_wait_s));
  }
}

// ---- one operation ----

OperationOutcome Communicator::run(Call& call, const OperationOptions& options) {
  const double start_s = transport_->now_s();
  OperationOutcome outcome;
  if (end_) {
    outcome.status = OperationStatus::revoked;
    outcome.cause = "the epoch has ended: " + end_->cause;
    outcome.suspects = end_->suspects;
    return outcome;
  }
  std::vector<std::byte> backup;
  if (options.on_abort == OnAbort::restore) backup.assign(call.buffers.data.begin(), call.buffers.data.end());
  before_.clear();
  for (int peer = 0; peer < size(); ++peer)
    before_.emplace_back(transport_->traffic(peer).sent_bytes, transport_->traffic(peer).received_bytes);

  sink_->begin(call, start_s);
  if (call.schedule == nullptr) {
    one_round_.start(sink_->frame(), rank(), size(), call.buffers.input, call.buffers.data);
    progress_ = &one_round_;
  } else {
    execution_.start(*call.schedule, sink_->frame(), call.buffers,
                     chunks_at_once(call.schedule->chunk_bytes, one_host_));
    progress_ = &execution_;
  }
  drive(options, start_s + options.timeout_s, outcome);
  sink_->end();

  auto extra = progress_->peak_held_bytes() + static_cast<std::int64_t>(backup.size() + scratch_.size());
  for (int peer = 0; peer < size(); ++peer) extra += transport_->traffic(peer).buffer_bytes;
  peak_extra_bytes_ = std::max(peak_extra_bytes_, extra);
  if (outcome.status != OperationStatus::ok) {
    std::ranges::copy(backup, call.buffers.data.begin());
    end_ = outcome;
    spread(outcome);
  }
  outcome.time_s = transport_->now_s() - start_s;
  for (int peer = 0; peer < size(); ++peer) {
    const LinkTraffic& traffic = transport_->traffic(peer);
    const auto [sent, received] = before_[static_cast<std::size_t>(peer)];
    if (traffic.sent_bytes != sent || traffic.received_bytes != received)
      outcome.links.push_back(
          {peer, traffic.sent_bytes - sent, traffic.received_bytes - received, sink_->last_s(peer)});
  }
  return outcome;
}

// Hands the transport what it has room for, a frame to each peer in turn.
bool Communicator::push() {
  bool moved = false;
  for (bool more = true; more;) {
    more = false;
    for (int offset = 1; offset < size(); ++offset) {
      const int peer = (rank() + offset) % size();
      const OperationProgress::Outgoing* outgoing = progress_->next(peer);
      if (outgoing == nullptr || !transport_->send(peer, outgoing->frame, outgoing->payload)) continue;
      progress_->sent(peer);
      more = moved = true;
    }
  }
  return moved;
}

void Communicator::drive(const OperationOptions& options, double deadline_s, OperationOutcome& outcome) {
  const std::stop_callback on_stop(options.stop, [this] { transport_->wake(); });
  // A rank that has given up sends nothing more: others might complete with it.
  if (revoked_.load() && ended(options, deadline_s, outcome)) return;
  for (int round = 0;; ++round) {
    bool moved = push();
    moved = transport_->poll(*sink_) || moved;
    if (progress_->refusal() || sink_->revoked || !sink_->lost.empty() || revoked_.load(std::memory_order_relaxed) ||
        (round & 63) == 63)
      if (ended(options, deadline_s, outcome)) return;
    if (progress_->done() && transport_->flushed()) return;
    if (moved) continue;
    // Nothing moves: what came before its turn may stand in the way of what is awaited.
    sink_->holding = OperationProgress::Holding::yes;
    moved = transport_->poll(*sink_);
    sink_->holding = OperationProgress::Holding::no;
    if (moved) continue;
    if (ended(options, deadline_s, outcome)) return;
    const double now_s = transport_->now_s();
    transport_->wait(std::clamp(deadline_s - now_s, 0.0, longest_wait_s));
    outcome.waited_s += transport_->now_s() - now_s;
  }
}

// True when the operation cannot go on; says why.
bool Communicator::ended(const OperationOptions& options, double deadline_s, OperationOutcome& outcome) {
  const auto end = [&](OperationStatus status, std::string cause, std::vector<int> suspects) {
    outcome.status = status;
    outcome.cause = std::move(cause);
    outcome.suspects = std::move(suspects);
    return true;
  };
  if (const auto& refusal = progress_->refusal()) return end(OperationStatus::invalid, refusal->cause, {refusal->peer});
  if (revoked_.load()) {
    const std::lock_guard lock(revocation_);
    return end(OperationStatus::revoked, revocation_cause_, {});
  }
  if (sink_->revoked) return end(OperationStatus::revoked, *sink_->revoked, {});
  // A peer may have left because it has finished.
  std::vector<int> missed;
  for (const auto& [peer, cause] : sink_->lost)
    if (progress_->needs(peer)) missed.push_back(peer);
  if (!missed.empty())
    return end(OperationStatus::aborted, fmt::format("lost rank {}: {}", missed.front(), sink_->lost[missed.front()]),
               missed);
  if (options.stop.stop_requested()) return end(OperationStatus::aborted, "asked to stop", {});
  if (transport_->now_s() < deadline_s) return false;
  std::vector<int> suspects = progress_->awaited();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && progress_->next(peer) != nullptr && std::ranges::find(suspects, peer) == suspects.end())
      suspects.push_back(peer);
  std::string cause = fmt::format("not complete after {} s", options.timeout_s);
  if (!suspects.empty()) cause += fmt::format("; waiting for rank {}", fmt::join(suspects, ", "));
  return end(OperationStatus::timed_out, std::move(cause), std::move(suspects));
}

// Tells the others that this rank has given the epoch up, as far as that is possible in a moment.
void Communicator::spread(const OperationOutcome& outcome) {
  CollectiveFrame frame{.kind = FrameKind::revoke, .group = group_hash(epoch_.group), .epoch = epoch_.number};
  std::string cause =
      outcome.status == OperationStatus::revoked ? outcome.cause : fmt::format("rank {}: {}", rank(), outcome.cause);
  cause.resize(std::min<std::size_t>(cause.size(), 1000));
  frame.length = static_cast<std::uint32_t>(cause.size());
  transport_->revoke(frame, cause);
  class Deaf : public FrameSink {
    Verdict on_frame(int, const CollectiveFrame&, std::span<const std::byte>) noexcept override {
      return Verdict::taken;
    }
    void on_lost(int, const std::string&) noexcept override {}
  } deaf;
  for (const double until_s = transport_->now_s() + spread_s;;) {
    const bool moved = transport_->poll(deaf);
    if (transport_->flushed() || transport_->now_s() >= until_s) return;
    if (!moved) transport_->wait(std::max(0.0, until_s - transport_->now_s()));
  }
}

// ---- the operations ----

namespace {

OperationOutcome refused(std::string cause) { return unsuccessful(OperationStatus::invalid, std::move(cause)); }

bool whole(std::span<const std::byte> data, std::int64_t unit) {
  return static_cast<std::int64_t>(data.size()) % unit == 0;
}

}  // namespace

void Communicator::use_plans(std::vector<CollectiveProgram> plans) { schedules_.use_plans(std::move(plans)); }

OperationOutcome Communicator::run_planned(Call& call, const OperationOptions& options) {
  if (size() == 1 || call.buffers.data.empty()) return {};
  try {
    call.schedule = &schedules_.planned(call.shape, call.blocks);
  } catch (const Error& error) {
    return refused(with_hint(error));
  }
  call.shape.plan = call.schedule->hash;
  call.operation = operations_++;
  return run(call, options);
}

OperationOutcome Communicator::all_reduce(std::span<std::byte> data, CollectiveElement element,
                                          const OperationOptions& options) {
  if (!whole(data, element_bytes(element)))
    return refused(fmt::format("{} bytes are not whole elements of {}", data.size(), name(element)));
  if (static_cast<std::int64_t>(data.size()) <= most_at_once()) return reduce_at_once(data, element, options);
  Call call{.shape = {.call = CollectiveCall::all_reduce,
                      .element = element,
                      .reduction = options.reduction,
                      .bytes = static_cast<std::int64_t>(data.size())},
            .buffers = {data}};
  OperationOutcome outcome = run_planned(call, options);
  if (outcome.status == OperationStatus::ok && options.reduction == CollectiveReduction::mean)
    divide_by(element, data, size());
  return outcome;
}

// Two ranks send no more in one round than in two. In shared memory the second round costs less than adding everything
// on both sides does.
std::int64_t Communicator::most_at_once() const {
  return size() == 2 && transport_->traffic(1 - rank()).kind != "shm" ? largest_payload_bytes : one_round_bytes;
}

// One round: everybody gathers everything in working space and adds up, in the order of the ranks.
OperationOutcome Communicator::reduce_at_once(std::span<std::byte> data, CollectiveElement element,
                                              const OperationOptions& options) {
  if (size() == 1 || data.empty()) return {};
  const auto ranks = static_cast<std::size_t>(size());
  scratch_.resize(data.size() * ranks);
  Call call{.shape = {.call = CollectiveCall::all_reduce,
                      .element = element,
                      .reduction = options.reduction,
                      .bytes = static_cast<std::int64_t>(data.size())},
            .buffers = {.data = scratch_, .input = data}};
  call.operation = operations_++;
  OperationOptions without_copy = options;
  without_copy.on_abort = OnAbort::undefined;
  OperationOutcome outcome = run(call, without_copy);
  if (outcome.status != OperationStatus::ok) return outcome;
  terms_.clear();
  for (std::size_t r = 0; r < ranks; ++r) terms_.push_back(scratch_.data() + r * data.size());
  terms_[static_cast<std::size_t>(rank())] = data.data();
  reduce_terms(element, options.reduction, data, terms_);
  if (options.reduction == CollectiveReduction::mean) divide_by(element, data, size());
  return outcome;
}

OperationOutcome Communicator::reduce_scatter(std::span<std::byte> data, CollectiveElement element,
                                              const OperationOptions& options) {
  if (!whole(data, element_bytes(element) * size()))
    return refused(fmt::format("{} bytes are not {} equal blocks of {}", data.size(), size(), name(element)));
  Call call{.shape = {.call = CollectiveCall::reduce_scatter,
                      .element = element,
                      .reduction = options.reduction,
                      .bytes = static_cast<std::int64_t>(data.size())},
            .buffers = {data},
            .blocks = size()};
  OperationOutcome outcome = run_planned(call, options);
  const std::size_t block = data.size() / static_cast<std::size_t>(size());
  if (outcome.status == OperationStatus::ok && options.reduction == CollectiveReduction::mean)
    divide_by(element, data.subspan(block * static_cast<std::size_t>(rank()), block), size());
  return outcome;
}

OperationOutcome Communicator::all_gather(std::span<std::byte> data, const OperationOptions& options) {
  if (!whole(data, size())) return refused(fmt::format("{} bytes are not {} equal blocks", data.size(), size()));
  Call call{.shape = {.call = CollectiveCall::all_gather, .bytes = static_cast<std::int64_t>(data.size())},
            .buffers = {data},
            .blocks = size()};
  return run_planned(call, options);
}

// Everybody sends its block to everybody.
OperationOutcome Communicator::all_gather(std::span<std::byte> data, std::span<const std::int64_t> bounds,
                                          const OperationOptions& options) {
  const auto bytes = static_cast<std::int64_t>(data.size());
  if (bounds.size() != static_cast<std::size_t>(size()) + 1 || bounds.front() != 0 || bounds.back() != bytes ||
      !std::ranges::is_sorted(bounds))
    return refused(
        fmt::format("the bounds {} do not divide {} bytes among {} ranks", fmt::join(bounds, ", "), bytes, size()));
  if (size() == 1 || data.empty()) return {};
  const auto mine = static_cast<std::size_t>(rank());
  std::vector<ScheduleTransfer> transfers;
  for (std::size_t r = 0; r < static_cast<std::size_t>(size()); ++r) {
    if (r == mine) continue;
    const int peer = static_cast<int>(r);
    transfers.push_back({CollectiveStepKind::send, peer, bounds[mine], bounds[mine + 1]});
    transfers.push_back({CollectiveStepKind::recv, peer, bounds[r], bounds[r + 1]});
  }
  const CollectiveSchedule schedule = transfer_schedule(rank(), size(), bytes, transfers);
  Call call{.shape = {.call = CollectiveCall::all_gather, .bytes = bytes}, .buffers = {data}, .schedule = &schedule};
  call.operation = operations_++;
  return run(call, options);
}

OperationOutcome Communicator::broadcast(std::span<std::byte> data, int root, const OperationOptions& options) {
  if (root < 0 || root >= size())
    return refused(fmt::format("the root must be from 0 to {}, found {}", size() - 1, root));
  Call call{.shape = {.call = CollectiveCall::broadcast,
                      .root = static_cast<std::uint16_t>(root),
                      .bytes = static_cast<std::int64_t>(data.size())},
            .buffers = {data}};
  return run_planned(call, options);
}

OperationOutcome Communicator::reduce(std::span<std::byte> data, CollectiveElement element, int root,
                                      const OperationOptions& options) {
  if (root < 0 || root >= size())
    return refused(fmt::format("the root must be from 0 to {}, found {}", size() - 1, root));
  if (!whole(data, element_bytes(element)))
    return refused(fmt::format("{} bytes are not whole elements of {}", data.size(), name(element)));
  Call call{.shape = {.call = CollectiveCall::reduce,
                      .element = element,
                      .reduction = options.reduction,
                      .root = static_cast<std::uint16_t>(root),
                      .bytes = static_cast<std::int64_t>(data.size())},
            .buffers = {data}};
  OperationOutcome outcome = run_planned(call, options);
  if (outcome.status == OperationStatus::ok && rank() == root && options.reduction == CollectiveReduction::mean)
    divide_by(element, data, size());
  return outcome;
}

OperationOutcome Communicator::all_to_all(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                                          std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                                          const OperationOptions& options) {
  const auto ranks = static_cast<std::size_t>(size());
  if (in_bytes.size() != ranks || out_bytes.size() != ranks)
    return refused(fmt::format("{} blocks to send and {} to receive do not fit {} ranks", in_bytes.size(),
                               out_bytes.size(), ranks));
  std::vector<ScheduleTransfer> transfers;
  std::int64_t from = 0, to = 0, mine_from = 0, mine_to = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (in_bytes[r] < 0 || out_bytes[r] < 0) return refused("a block has a negative size");
    if (static_cast<int>(r) == rank()) {
      mine_from = from;
      mine_to = to;
    } else {
      transfers.push_back({CollectiveStepKind::send, static_cast<int>(r), from, from + in_bytes[r]});
      transfers.push_back({CollectiveStepKind::recv, static_cast<int>(r), to, to + out_bytes[r]});
    }
    from += in_bytes[r];
    to += out_bytes[r];
  }
  const auto mine = static_cast<std::size_t>(rank());
  if (from != static_cast<std::int64_t>(in.size()) || to != static_cast<std::int64_t>(out.size()) ||
      in_bytes[mine] != out_bytes[mine])
    return refused(fmt::format("blocks of {} and {} bytes do not fit the buffers of {} and {} bytes", from, to,
                               in.size(), out.size()));
  const CollectiveSchedule schedule = transfer_schedule(rank(), size(), std::max(from, to), transfers);
  Call call{.shape = {.call = CollectiveCall::all_to_all}, .buffers = {out, in}, .schedule = &schedule};
  call.operation = operations_++;
  OperationOutcome outcome = run(call, options);
  if (outcome.status == OperationStatus::ok) std::copy_n(in.begin() + mine_from, in_bytes[mine], out.begin() + mine_to);
  return outcome;
}

OperationOutcome Communicator::run_message(Call& call, int peer, CollectiveStepKind kind,
                                           const OperationOptions& options) {
  const auto bytes = static_cast<std::int64_t>(std::max(call.buffers.data.size(), call.buffers.input.size()));
  const CollectiveSchedule schedule = transfer_schedule(rank(), size(), bytes, {{kind, peer, 0, bytes}});
  call.shape = {.call = CollectiveCall::message, .bytes = bytes};
  call.schedule = &schedule;
  return run(call, options);
}

OperationOutcome Communicator::send(std::span<const std::byte> data, int peer, const OperationOptions& options) {
  if (peer < 0 || peer >= size() || peer == rank())
    return refused(fmt::format("the peer must be another rank, from 0 to {}, found {}", size() - 1, peer));
  if (data.empty()) return {};
  Call call{.shape = {}, .buffers = {{}, data}, .operation = messages_sent_[static_cast<std::size_t>(peer)]++};
  return run_message(call, peer, CollectiveStepKind::send, options);
}

OperationOutcome Communicator::recv(std::span<std::byte> data, int peer, const OperationOptions& options) {
  if (peer < 0 || peer >= size() || peer == rank())
    return refused(fmt::format("the peer must be another rank, from 0 to {}, found {}", size() - 1, peer));
  if (data.empty()) return {};
  Call call{.shape = {},
            .buffers = {data},
            .operation = messages_received_[static_cast<std::size_t>(peer)]++,
            .source = peer};
  return run_message(call, peer, CollectiveStepKind::recv, options);
}

OperationOutcome Communicator::barrier(const OperationOptions& options) {
  std::vector<std::byte> marks(static_cast<std::size_t>(size()));
  Call call{.shape = {.call = CollectiveCall::barrier, .bytes = size()}, .buffers = {marks}, .blocks = size()};
  return run_planned(call, options);
}

}  // namespace motley
