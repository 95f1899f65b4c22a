// Hidden states on their way from one stage to the next, in the type that they are sent in, while both stages compute:
// what is sent waits in one of two slots for a thread that sends it, and a thread reads the rows of the next step into
// one of two buffers. crossing_bounds() says which rows go to whom. Each pair of sender and receiver has a group of its
// own, in which the sender is rank 0 and the receiver rank 1; those of a pair travel in pieces.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "motley/base/dtype.hpp"
#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/device/stream_order.hpp"
#include "motley/engine/stage/row_outbox.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

// Types are those of check_activation_type(). The groups outlive both ends, and end before them where something may be
// under way. All calls but expect() are for the thread that computes; each throws what the other thread met.
class CrossingSender {
 public:
  explicit CrossingSender(const ComputeDevice& device) : device_(device) {}
  ~CrossingSender();

  // `hidden`: [T, H] of the device, of any type, may be overwritten afterwards. `receivers`: by rank of the next stage;
  // null where another rank of this stage sends. Waits while the step before the last is not sent.
  void post(const at::Tensor& hidden, DType type, std::span<WorkerGroup* const> receivers);
  double waited_s() const { return waited_s_; }

 private:
  struct Slot {
    at::Tensor bytes;                               // of the host
    std::map<RowOutbox*, std::uint64_t> last = {};  // of the rows in here, that of each outbox
  };
  at::Tensor space(Slot& slot, at::IntArrayRef shape, at::ScalarType type) const;
  at::Tensor packed_on_device(const at::Tensor& rows);

  const ComputeDevice& device_;
  std::map<WorkerGroup*, std::unique_ptr<RowOutbox>> outboxes_;
  std::array<Slot, 2> slots_;
  at::Tensor packed_;  // bytes of the device: of one piece
  std::uint64_t posted_ = 0;
  double waited_s_ = 0;
};

// A step's rows that are to come.
struct ArrivingRows {
  std::uint64_t step = 0;
  std::int64_t rows = 0;
  DType type = DType::fp32;     // as they are sent
  WorkerGroup* from = nullptr;  // with the sender; null: who takes them fills their place by itself
};

class CrossingReceiver {
 public:
  // `buffers`: [2 T, H] of the device, in the type that this stage computes in. `stage`: its ranks, which gather what
  // each has received; null for a single one.
  CrossingReceiver(const ComputeDevice& device, const at::Tensor& buffers, WorkerGroup* stage);
  ~CrossingReceiver();
  CrossingReceiver(const CrossingReceiver&) = delete;
  CrossingReceiver& operator=(const CrossingReceiver&) = delete;

  // By any thread, in the order of the steps.
  void expect(const ArrivingRows& next);
  // The rows of the first step that was announced, until release(): [T, H]. `meeting` is called before the ranks
  // gather. Throws a peer error for rows of another size or that are malformed.
  at::Tensor take(std::uint64_t step, const std::function<void()>& meeting = {});
  // What this thread has asked of the device is all that reads them.
  void release();
  double waited_s() const { return waited_s_; }
  // Whether the rows of the step after the one that is computed are there.
  bool has_next();

 private:
  enum class State { announced, arriving, there };
  struct Entry {
    ArrivingRows rows;
    State state = State::announced;
  };
  struct Buffer {
    at::Tensor rows;              // of the device
    at::Tensor host;              // bytes: of rows on their way up
    std::vector<std::byte> sent;  // rows of another type
    StreamMoment filled, read;
  };
  bool next_can_come() const;
  void run();
  at::Tensor host_rows(const ArrivingRows& arriving, Buffer& buffer) const;
  std::span<std::byte> sent_bytes(const ArrivingRows& arriving, Buffer& buffer) const;
  void receive(const ArrivingRows& arriving, Buffer& buffer) const;
  void bring_up(const ArrivingRows& arriving, Buffer& buffer, std::int64_t first, std::int64_t count) const;
  void gather(const ArrivingRows& arriving, Buffer& buffer) const;

  const ComputeDevice& device_;
  WorkerGroup* const stage_;
  std::array<Buffer, 2> buffers_;
  double waited_s_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;  // the first is the one that is computed, or that comes next
  std::uint64_t first_ = 0;    // its number
  bool computing_ = false;     // with the first
  bool closed_ = false;
  std::exception_ptr failure_;
  std::jthread thread_;
};

}  // namespace motley
