#include "motley/comm/collective/execution.hpp"

#include <algorithm>
#include <iterator>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"

namespace motley {
namespace {

bool receives(const ScheduleStep& step) {
  return step.kind == CollectiveStepKind::recv || step.kind == CollectiveStepKind::reduce;
}

}  // namespace

void Execution::start(const CollectiveSchedule& schedule, const CollectiveFrame& frame, ExecutionBuffers buffers,
                      int window) {
  schedule_ = &schedule;
  frame_ = frame;
  buffers_ = buffers;
  const std::size_t bytes = std::max(buffers.data.size(), buffers.input.size());
  MOTLEY_CHECK(window > 0 && bytes % static_cast<std::size_t>(schedule.blocks) == 0);
  block_bytes_ = static_cast<std::int64_t>(bytes) / schedule.blocks;
  chunk_block_bytes_ = schedule.chunk_bytes / schedule.blocks;
  chunks_ = static_cast<std::uint32_t>(ceil_div(block_bytes_, chunk_block_bytes_));
  last_block_bytes_ = block_bytes_ - (static_cast<std::int64_t>(chunks_) - 1) * chunk_block_bytes_;
  open_first_ = open_last_ = 0;
  open_.resize(std::min<std::size_t>(static_cast<std::size_t>(window), std::max(1U, chunks_)));
  outbox_.resize(static_cast<std::size_t>(schedule.ranks));
  for (auto& box : outbox_) box.clear();
  completed_.clear();
  held_.clear();
  held_bytes_ = peak_held_bytes_ = 0;
  refusal_.reset();
  settle();
}

// ---- the buffer ----

// Only the last chunk may be cut short.
std::int64_t Execution::length_of(std::uint32_t chunk, const SchedulePiece& piece) const {
  if (chunk + 1 < chunks_) return piece.length;
  return std::clamp<std::int64_t>(last_block_bytes_ - piece.inside, 0, piece.length);
}

std::size_t Execution::place_of(std::uint32_t chunk, const SchedulePiece& piece) const {
  return static_cast<std::size_t>(piece.block * block_bytes_ + chunk * chunk_block_bytes_ + piece.inside);
}

// ---- steps and chunks ----

void Execution::open(std::uint32_t index) {
  Chunk& slot = chunk(index);
  const auto& steps = schedule_->steps;
  slot.steps.resize(steps.size());
  slot.arrived.resize(steps.size());
  slot.left = static_cast<std::uint32_t>(steps.size());
  for (std::uint32_t i = 0; i < steps.size(); ++i) {
    StepState& state = slot.steps[i];
    state = {.waits = steps[i].prerequisites};
    for (const SchedulePiece& piece : steps[i].pieces)
      if (length_of(index, piece) > 0) ++state.pieces;
    if (receives(steps[i])) slot.arrived[i].assign(steps[i].pieces.size(), false);
  }
  for (std::uint32_t i = 0; i < steps.size(); ++i)
    if (steps[i].prerequisites == 0) ready(index, i);
}

// Earlier chunks first: they are what others wait for, and what the caches still hold.
void Execution::enqueue(std::deque<Ready>& box, Ready step) {
  auto place = box.end();
  while (place != box.begin() && std::prev(place)->chunk > step.chunk) --place;
  box.insert(place, step);
}

// All that the step waited for is complete.
void Execution::ready(std::uint32_t index, std::uint32_t place) {
  const ScheduleStep& step = schedule_->steps[place];
  const StepState& state = chunk(index).steps[place];
  if (state.pieces == 0 || step.kind == CollectiveStepKind::copy)
    completed_.emplace_back(index, place);
  else if (step.kind == CollectiveStepKind::send)
    enqueue(outbox_[static_cast<std::size_t>(step.peer)], {index, place, 0});
}

void Execution::complete(std::uint32_t index, std::uint32_t place) {
  Chunk& slot = chunk(index);
  slot.steps[place].complete = true;
  --slot.left;
  for (const std::uint32_t next : schedule_->steps[place].dependents)
    if (--slot.steps[next].waits == 0) ready(index, next);
}

// Follows up what is complete until nothing changes: steps behind it, chunks behind those, frames that were held.
void Execution::settle() {
  for (bool changed = true; changed;) {
    changed = false;
    while (!completed_.empty()) {
      const auto [index, place] = completed_.back();
      completed_.pop_back();
      complete(index, place);
      changed = true;
    }
    while (open_first_ < open_last_ && chunk(open_first_).left == 0) ++open_first_;
    while (open_last_ < chunks_ && open_last_ < open_first_ + open_.size()) {
      open(open_last_++);
      changed = true;
    }
    if (!changed) return;
    for (auto held = held_.begin(); held != held_.end();) {
      const std::uint32_t place = schedule_->inbound[static_cast<std::size_t>(held->peer)][held->frame.step];
      if (chunk(held->frame.chunk).steps[place].waits == 0) {
        apply(held->peer, held->frame, held->payload);
        held_bytes_ -= static_cast<std::int64_t>(held->payload.size());
        held = held_.erase(held);
      } else {
        ++held;
      }
    }
  }
}

// ---- out ----

const Execution::Outgoing* Execution::next(int peer) {
  auto& box = outbox_[static_cast<std::size_t>(peer)];
  if (box.empty()) return nullptr;
  Ready& front = box.front();
  const ScheduleStep& step = schedule_->steps[front.step];
  while (length_of(front.chunk, step.pieces[front.piece]) == 0)
    ++front.piece;  // the last chunk's; one is left: see ready()
  const SchedulePiece& piece = step.pieces[front.piece];
  const auto length = static_cast<std::size_t>(length_of(front.chunk, piece));
  outgoing_.frame = frame_;
  outgoing_.frame.chunk = front.chunk;
  outgoing_.frame.step = step.taker;
  outgoing_.frame.offset = piece.offset;
  outgoing_.frame.length = static_cast<std::uint32_t>(length);
  const std::span<const std::byte> source = buffers_.input.empty() ? buffers_.data : buffers_.input;
  outgoing_.payload = source.subspan(place_of(front.chunk, piece), length);
  return &outgoing_;
}

void Execution::sent(int peer) {
  auto& box = outbox_[static_cast<std::size_t>(peer)];
  Ready& front = box.front();
  ++front.piece;
  if (--chunk(front.chunk).steps[front.step].pieces > 0) return;
  completed_.emplace_back(front.chunk, front.step);
  box.pop_front();
  settle();
}

// ---- in ----

// The piece that the frame carries, where there is one of that offset and length.
std::optional<std::size_t> Execution::piece_of(int peer, const CollectiveFrame& frame) const {
  const auto& inbound = schedule_->inbound[static_cast<std::size_t>(peer)];
  if (frame.chunk >= chunks_ || frame.step >= inbound.size()) return std::nullopt;
  const ScheduleStep& step = schedule_->steps[inbound[frame.step]];
  const auto found = std::ranges::lower_bound(step.pieces, frame.offset, {}, &SchedulePiece::offset);
  if (found == step.pieces.end() || found->offset != frame.offset) return std::nullopt;
  const std::int64_t length = length_of(frame.chunk, *found);
  if (length == 0 || length != frame.length) return std::nullopt;
  return static_cast<std::size_t>(found - step.pieces.begin());
}

Execution::Answer Execution::on_frame(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload,
                                      Holding holding) {
  if (frame.shape != frame_.shape) return refuse_shape(peer, frame, frame_.shape);
  const auto piece = piece_of(peer, frame);
  if (!piece || payload.size() != frame.length) return refuse_stranger(peer, frame);
  if (frame.chunk < open_first_) return Answer::taken;  // seen before
  if (frame.chunk >= open_last_) return Answer::later;
  const std::uint32_t place = schedule_->inbound[static_cast<std::size_t>(peer)][frame.step];
  Chunk& slot = chunk(frame.chunk);
  if (slot.arrived[place][*piece]) return Answer::taken;  // seen before
  if (slot.steps[place].waits > 0) {
    if (holding == Holding::no) return Answer::later;
    slot.arrived[place][*piece] = true;
    held_.push_back({peer, frame, {payload.begin(), payload.end()}});
    held_bytes_ += static_cast<std::int64_t>(payload.size());
    peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
    return Answer::taken;
  }
  slot.arrived[place][*piece] = true;
  apply(peer, frame, payload);
  settle();
  return Answer::taken;
}

// The step may run, and the piece is its own.
void Execution::apply(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload) {
  const std::uint32_t place = schedule_->inbound[static_cast<std::size_t>(peer)][frame.step];
  const ScheduleStep& step = schedule_->steps[place];
  const SchedulePiece& piece = step.pieces[*piece_of(peer, frame)];
  const auto into = buffers_.data.subspan(place_of(frame.chunk, piece), payload.size());
  if (step.kind == CollectiveStepKind::reduce)
    reduce_into(frame_.shape.element, frame_.shape.reduction, into, payload);
  else if (into.data() != payload.data())
    std::ranges::copy(payload, into.begin());
  if (--chunk(frame.chunk).steps[place].pieces == 0) completed_.emplace_back(frame.chunk, place);
}

std::span<std::byte> Execution::place(int peer, const CollectiveFrame& frame) {
  const auto piece = frame.shape == frame_.shape ? piece_of(peer, frame) : std::nullopt;
  if (!piece || frame.chunk < open_first_ || frame.chunk >= open_last_) return {};
  const std::uint32_t place = schedule_->inbound[static_cast<std::size_t>(peer)][frame.step];
  const ScheduleStep& step = schedule_->steps[place];
  const Chunk& slot = chunk(frame.chunk);
  if (step.kind != CollectiveStepKind::recv || slot.steps[place].waits > 0 || slot.arrived[place][*piece]) return {};
  return buffers_.data.subspan(place_of(frame.chunk, step.pieces[*piece]), frame.length);
}

// A piece of the step has not come.
bool Execution::lacks(const Chunk& slot, std::uint32_t chunk, std::uint32_t place) const {
  const ScheduleStep& step = schedule_->steps[place];
  if (!receives(step) || slot.steps[place].complete) return false;
  for (std::size_t piece = 0; piece < step.pieces.size(); ++piece)
    if (!slot.arrived[place][piece] && length_of(chunk, step.pieces[piece]) > 0) return true;
  return false;
}

bool Execution::needs(int peer) const {
  for (std::uint32_t index = open_first_; index < chunks_; ++index) {
    const bool begun = index < open_last_;
    const Chunk& slot = open_[index % open_.size()];
    for (std::uint32_t place = 0; place < schedule_->steps.size(); ++place) {
      const ScheduleStep& step = schedule_->steps[place];
      if (step.peer != peer) continue;
      if (!begun || lacks(slot, index, place)) return true;
      if (step.kind == CollectiveStepKind::send && !slot.steps[place].complete) return true;
    }
    if (!begun) return false;  // chunks that have not begun are alike
  }
  return false;
}

std::vector<int> Execution::awaited() const {
  std::vector<int> peers;
  if (done()) return peers;
  const Chunk& slot = open_[open_first_ % open_.size()];
  for (std::uint32_t place = 0; place < schedule_->steps.size(); ++place)
    if (lacks(slot, open_first_, place)) peers.push_back(schedule_->steps[place].peer);
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace motley
