// Rows on their way to one worker: a thread sends them, so that who has computed them goes on.
#pragma once

#include <ATen/ATen.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/device/stream_order.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

enum class RowCoding {
  values,  // as the tensor has them
  int8     // of fp32 in the host's memory (int8_rows.hpp)
};

// One thread calls it; the group is used by no other meanwhile. Each call throws what sending threw before.
class RowOutbox {
 public:
  RowOutbox(WorkerGroup& group, int receiver, const ComputeDevice& device);
  // With the last rows, or once the group has ended.
  ~RowOutbox();
  RowOutbox(const RowOutbox&) = delete;
  RowOutbox& operator=(const RowOutbox&) = delete;

  // Contiguous rows of the device or the host; what this thread asked of the device may still be making them. They
  // stay as they are until they are sent. Counts what was pushed, from 1 on.
  std::uint64_t push(at::Tensor rows, RowCoding coding = RowCoding::values);
  // Until the first `count` that were pushed are sent.
  void wait_for(std::uint64_t count);
  // Whether all are. The group is then the caller's, up to the next push().
  bool idle();
  // By the calling thread, where idle.
  void send_at_once(const at::Tensor& rows, RowCoding coding);

 private:
  struct Rows {
    at::Tensor values;
    RowCoding coding = RowCoding::values;
    StreamMoment made;
  };
  void run();
  void send(const Rows& rows);

  WorkerGroup& group_;
  const int receiver_;
  const ComputeDevice& device_;
  at::Tensor host_;  // bytes: of rows of the device
  std::vector<std::byte> packed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Rows> waiting_;
  std::uint64_t pushed_ = 0, sent_ = 0;
  bool closed_ = false;
  std::exception_ptr failure_;
  std::jthread thread_;
};

}  // namespace motley
