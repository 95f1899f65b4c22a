#include "motley/engine/stage/row_outbox.hpp"

#include <c10/core/InferenceMode.h>

#include "motley/base/error.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/stage/packed_rows.hpp"

namespace motley {

RowOutbox::RowOutbox(WorkerGroup& group, int receiver, const ComputeDevice& device)
    : group_(group), receiver_(receiver), device_(device), thread_([this] { run(); }) {}

RowOutbox::~RowOutbox() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}  // thread_ goes first, and waits

std::uint64_t RowOutbox::push(at::Tensor rows, RowCoding coding) {
  std::uint64_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    waiting_.push_back({std::move(rows), coding, moment_on(device_)});
    count = ++pushed_;
  }
  changed_.notify_all();
  return count;
}

void RowOutbox::wait_for(std::uint64_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || sent_ >= count; });
  if (failure_) std::rethrow_exception(failure_);
}

bool RowOutbox::idle() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  return sent_ == pushed_;
}

void RowOutbox::send_at_once(const at::Tensor& rows, RowCoding coding) { send({rows, coding, moment_on(device_)}); }

void RowOutbox::run() {
  const c10::InferenceMode guard;
  use_own_stream(device_);
  for (;;) {
    Rows rows;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      rows = std::move(waiting_.front());
      waiting_.pop_front();
    }
    try {
      send(rows);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      changed_.notify_all();
      return;
    }
    rows = {};
    {
      const std::lock_guard lock(mutex_);
      ++sent_;
    }
    changed_.notify_all();
  }
}

void RowOutbox::send(const Rows& rows) {
  at::Tensor host = rows.values;
  if (host.is_cpu()) {
    wait_until(rows.made);
  } else {
    come_after(rows.made, device_);
    host = device_.to_host(rows.values, host_);
  }
  if (rows.coding == RowCoding::values) return group_.send(bytes_of(host), receiver_);
  pack_int8(host, packed_);
  group_.send(packed_, receiver_);
}

}  // namespace motley
