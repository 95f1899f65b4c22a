#include "motley/engine/stage/crossing.hpp"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/scalar_type.hpp"
#include "motley/engine/stage/packed_rows.hpp"
#include "motley/model/crossing_types.hpp"

namespace motley {
namespace {

// What one piece of rows is: copied, sent and copied again while others are on their way.
constexpr std::int64_t piece_bytes = std::int64_t{1} << 20;
// Fewer are sent by the thread that computes, and read by it where it waits: waking another takes longer.
constexpr std::int64_t few_bytes = std::int64_t{32} << 10;

// Calls `use(first, count)` for the pieces of rows [first, last).
template <class Use>
void in_pieces(std::int64_t first, std::int64_t last, std::int64_t row_bytes, const Use& use) {
  const std::int64_t most = std::max<std::int64_t>(1, piece_bytes / row_bytes);
  for (; first < last; first += most) use(first, std::min(most, last - first));
}

}  // namespace

// Copies to the slots may be under way.
CrossingSender::~CrossingSender() {
  outboxes_.clear();
  (void)device_.lives();
}

// Its memory is pinned where the device has its own, so that copies do not hold up this thread.
at::Tensor CrossingSender::space(Slot& slot, at::IntArrayRef shape, at::ScalarType type) const {
  const auto bytes = c10::multiply_integers(shape) * static_cast<std::int64_t>(c10::elementSize(type));
  if (!slot.bytes.defined() || slot.bytes.size(0) < bytes)
    slot.bytes = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(device_.has_own_memory()));
  return slot.bytes.narrow(0, 0, bytes).view(type).view(shape);
}

// One piece takes the place of another: each is copied from there before, in the order of this thread's stream.
at::Tensor CrossingSender::packed_on_device(const at::Tensor& rows) {
  const std::int64_t row_bytes = crossing_bytes(DType::int8, rows.size(1)), bytes = rows.size(0) * row_bytes;
  if (!packed_.defined() || packed_.size(0) < bytes) packed_ = device_.empty({bytes}, at::kByte);
  const at::Tensor packed = packed_.narrow(0, 0, bytes).view({rows.size(0), row_bytes});
  device_.pack_int8(rows, packed);
  return packed;
}

void CrossingSender::post(const at::Tensor& hidden, DType type, std::span<WorkerGroup* const> receivers) {
  // What the device does not pack comes down in fp32, and the outbox packs it.
  const bool in_bytes = type == DType::int8, packs = in_bytes && device_.packs_int8();
  const RowCoding coding = in_bytes && !packs ? RowCoding::int8 : RowCoding::values;
  Slot& slot = slots_[posted_++ % slots_.size()];
  const Instant start = Clock::now();
  for (const auto& [outbox, count] : slot.last) outbox->wait_for(count);
  waited_s_ += seconds_since(start);
  slot.last.clear();
  const std::int64_t row_bytes = crossing_bytes(type, hidden.size(1));
  const at::Tensor rows = packs ? space(slot, {hidden.size(0), row_bytes}, at::kByte)
                                : space(slot, hidden.sizes(), in_bytes ? at::kFloat : scalar_type(type));
  const std::vector<std::int64_t> bounds = crossing_bounds(hidden.size(0), static_cast<int>(receivers.size()));
  for (std::size_t j = 0; j < receivers.size(); ++j) {
    if (receivers[j] == nullptr || bounds[j] == bounds[j + 1]) continue;
    auto& outbox = outboxes_[receivers[j]];
    if (!outbox) outbox = std::make_unique<RowOutbox>(*receivers[j], 1, device_);
    const bool at_once = (bounds[j + 1] - bounds[j]) * row_bytes <= few_bytes && outbox->idle();
    in_pieces(bounds[j], bounds[j + 1], row_bytes, [&](std::int64_t first, std::int64_t count) {
      const at::Tensor part = rows.narrow(0, first, count), from = hidden.narrow(0, first, count);
      part.copy_(packs ? packed_on_device(from) : from, /*non_blocking=*/true);
      if (!at_once) {
        slot.last[outbox.get()] = outbox->push(part, coding);
        return;
      }
      const double waited_before_s = receivers[j]->waited_s();
      outbox->send_at_once(part, coding);
      waited_s_ += receivers[j]->waited_s() - waited_before_s;
    });
  }
}

// ---- arriving ----

CrossingReceiver::CrossingReceiver(const ComputeDevice& device, const at::Tensor& buffers, WorkerGroup* stage)
    : device_(device), stage_(stage) {
  const std::int64_t most = buffers.size(0) / 2;
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    buffers_[i].rows = buffers.narrow(0, static_cast<std::int64_t>(i) * most, most);
  thread_ = std::jthread([this] { run(); });
}

CrossingReceiver::~CrossingReceiver() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
  (void)device_.lives();  // copies from the host may be under way
}

void CrossingReceiver::expect(const ArrivingRows& next) {
  bool comes_now = false;
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back({next});
    comes_now = next_can_come();
  }
  if (comes_now) changed_.notify_all();
}

// The thread reads only while a step is computed: a step that is waited for is read by who waits. The rows after the
// next find no place before this step is done.
bool CrossingReceiver::next_can_come() const {
  return computing_ && entries_.size() > 1 && entries_[1].state == State::announced && entries_[1].rows.from != nullptr;
}

bool CrossingReceiver::has_next() {
  const std::lock_guard lock(mutex_);
  return computing_ && entries_.size() > 1 && entries_[1].state == State::there;
}

void CrossingReceiver::run() {
  const c10::InferenceMode guard;
  use_own_stream(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closed_ || next_can_come(); });
    if (closed_) break;
    Entry& next = entries_[1];  // stays where it is
    next.state = State::arriving;
    Buffer& buffer = buffers_[(first_ + 1) % buffers_.size()];
    lock.unlock();
    std::exception_ptr failure;
    try {
      receive(next.rows, buffer);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    next.state = State::there;
    failure_ = failure;
    changed_.notify_all();
    if (failure_) break;
  }
  lock.unlock();
  (void)device_.lives();  // nothing of this thread is under way
}

at::Tensor CrossingReceiver::take(std::uint64_t step, const std::function<void()>& meeting) {
  std::unique_lock lock(mutex_);
  MOTLEY_CHECK(!computing_ && !entries_.empty() && entries_.front().rows.step == step);
  Entry& entry = entries_.front();
  const ArrivingRows& arriving = entry.rows;
  Buffer& buffer = buffers_[first_ % buffers_.size()];
  if (entry.state == State::announced) {
    lock.unlock();
    if (arriving.from != nullptr) {
      const double waited_before_s = arriving.from->waited_s();
      receive(arriving, buffer);
      waited_s_ += arriving.from->waited_s() - waited_before_s;
    } else {
      come_after(buffer.read, device_);
    }
  } else {
    if (entry.state != State::there) {
      const Instant start = Clock::now();
      changed_.wait(lock, [&] { return entry.state == State::there; });
      waited_s_ += seconds_since(start);
    }
    if (failure_) std::rethrow_exception(failure_);
    lock.unlock();
    come_after(buffer.filled, device_);
  }
  if (stage_ != nullptr && arriving.from != nullptr) {
    if (meeting) meeting();
    gather(arriving, buffer);
  }
  lock.lock();
  computing_ = true;
  if (next_can_come()) changed_.notify_all();
  return buffer.rows.narrow(0, 0, arriving.rows);
}

void CrossingReceiver::release() {
  const std::lock_guard lock(mutex_);
  buffers_[first_ % buffers_.size()].read = moment_on(device_);
  entries_.pop_front();
  ++first_;
  computing_ = false;
}

at::Tensor CrossingReceiver::host_rows(const ArrivingRows& arriving, Buffer& buffer) const {
  return device_.host_space(buffer.rows.narrow(0, 0, arriving.rows), buffer.host);
}

// Where they arrive: among the rows themselves, if they come in their type.
std::span<std::byte> CrossingReceiver::sent_bytes(const ArrivingRows& arriving, Buffer& buffer) const {
  if (arriving.type != DType::int8 && scalar_type(arriving.type) == buffer.rows.scalar_type())
    return bytes_of(host_rows(arriving, buffer));
  buffer.sent.resize(static_cast<std::size_t>(arriving.rows * crossing_bytes(arriving.type, buffer.rows.size(1))));
  return buffer.sent;
}

void CrossingReceiver::receive(const ArrivingRows& arriving, Buffer& buffer) const {
  if (device_.has_own_memory()) wait_until(buffer.filled);  // the host's memory is read until then
  come_after(buffer.read, device_);
  const int ranks = stage_ != nullptr ? stage_->size() : 1, rank = stage_ != nullptr ? stage_->rank() : 0;
  const std::vector<std::int64_t> bounds = crossing_bounds(arriving.rows, ranks);
  const std::int64_t row_bytes = crossing_bytes(arriving.type, buffer.rows.size(1));
  const std::span<std::byte> sent = sent_bytes(arriving, buffer);
  const auto at = static_cast<std::size_t>(rank);
  in_pieces(bounds[at], bounds[at + 1], row_bytes, [&](std::int64_t first, std::int64_t count) {
    arriving.from->receive(
        sent.subspan(static_cast<std::size_t>(first * row_bytes), static_cast<std::size_t>(count * row_bytes)), 0);
    if (stage_ == nullptr) bring_up(arriving, buffer, first, count);
  });
  buffer.filled = moment_on(device_);
}

void CrossingReceiver::bring_up(const ArrivingRows& arriving, Buffer& buffer, std::int64_t first,
                                std::int64_t count) const {
  const at::Tensor all = buffer.rows.narrow(0, 0, arriving.rows), on_host = host_rows(arriving, buffer);
  const at::Tensor host = on_host.narrow(0, first, count);
  const std::int64_t row_bytes = crossing_bytes(arriving.type, buffer.rows.size(1));
  const std::span<std::byte> sent =
      sent_bytes(arriving, buffer)
          .subspan(static_cast<std::size_t>(first * row_bytes), static_cast<std::size_t>(count * row_bytes));
  if (sent.data() != static_cast<std::byte*>(host.mutable_data_ptr())) unpack_rows(sent, arriving.type, host);
  if (device_.has_own_memory()) all.narrow(0, first, count).copy_(host, /*non_blocking=*/true);
}

void CrossingReceiver::gather(const ArrivingRows& arriving, Buffer& buffer) const {
  std::vector<std::int64_t> bounds = crossing_bounds(arriving.rows, stage_->size());
  for (std::int64_t& bound : bounds) bound *= crossing_bytes(arriving.type, buffer.rows.size(1));
  stage_->all_gather(sent_bytes(arriving, buffer), bounds);
  bring_up(arriving, buffer, 0, arriving.rows);
  buffer.filled = moment_on(device_);
}

}  // namespace motley
