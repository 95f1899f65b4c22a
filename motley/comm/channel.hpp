// Data between workers: ordered, reliable frames over shared memory or TCP, and the few collectives that a pipeline of
// tensor-parallel stages needs. The kind of connection is chosen per pair of workers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace motley {

enum class ElementType : std::uint8_t { fp32 = 0, bf16 = 1, bytes = 2 };

// How the payload relates to the whole tensor. Sender and receiver must agree, and the receiver asserts it.
enum class Layout : std::uint8_t {
  replicated = 0,   // the whole tensor
  token_slice = 1,  // rows [row_first, row_first + rows) of it
  partial = 2       // a term of a sum
};

// What a frame is. Everything but the payload's content is known to the receiver beforehand; any difference is a peer
// error.
struct FrameTag {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::uint32_t sequence_number = 0;  // of the frame within the step on this channel
  ElementType type = ElementType::fp32;
  Layout layout = Layout::replicated;
  std::int64_t row_first = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t bytes() const;
  bool operator==(const FrameTag&) const = default;
};

class Channel {
 public:
  virtual ~Channel() = default;
  // Returns once the payload may be overwritten. Never waits for the receiver as long as no more than two of the
  // largest frames are under way.
  virtual void send(const FrameTag& tag, std::span<const std::byte> payload) = 0;
  // Waits for the next frame, checks that it is the expected one, and copies its payload. Throws a peer error when the
  // tag differs, the frame is malformed, or the other side is gone.
  virtual void receive(const FrameTag& expected, std::span<std::byte> payload) = 0;
  // Bytes, headers included, that may be under way before send() waits for the receiver.
  virtual std::int64_t window_bytes() const = 0;
  // Time this side has spent waiting, for reports.
  virtual double waited_s() const = 0;
  // Headers and payloads, since the start.
  virtual std::int64_t sent_bytes() const = 0;
};

// Two connected descriptors, to be inherited by two workers; `side` 0 and 1. Memory-backed files without a name:
// nothing stays behind whoever dies.
struct DescriptorPair {
  std::array<int, 2> descriptors{-1, -1};
};
// All descriptors close on exec: whoever starts a worker clears that flag for those that belong to it, in the child.
// Both throw environment errors. The memory grows as it is used, up to four of the largest frames and at most 128 MiB.
DescriptorPair make_shared_memory_pair(std::int64_t largest_frame_bytes);
DescriptorPair make_tcp_pair();  // connected over loopback

// Takes ownership of the descriptor. `kind` is "shm" or "tcp". Shared memory knows its size; `largest_frame_bytes`
// sizes the queue before a TCP socket. Larger frames travel too, but then send() waits for the receiver. A channel
// belongs to one thread. Throws a peer error where the descriptor is no such channel.
std::unique_ptr<Channel> open_channel(const std::string& kind, int descriptor, int side,
                                      std::int64_t largest_frame_bytes, std::string peer_name);

// The ranks of one stage.
class Group {
 public:
  // `peers[r]` leads to rank r; peers[rank] is empty.
  Group(int rank, std::vector<std::unique_ptr<Channel>> peers, std::uint64_t epoch);
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Frames are numbered from here on; all ranks must call the same operations in the same order.
  void begin_step(std::uint64_t step);
  // In place, fp32 or bf16; every rank ends with the same bits: terms are added in rank order, in fp32, and rounded
  // once.
  void all_reduce(ElementType type, std::span<std::byte> data);
  // Rank r contributes rows [bounds[r], bounds[r+1]) of `data`; all end with all rows.
  void all_gather_rows(ElementType type, std::span<std::byte> data, std::int64_t columns,
                       const std::vector<std::int64_t>& bounds);
  // Rank 0 receives rank r's block into `out[r]`, and copies its own `mine` into `out[0]`; the others send `mine`.
  void gather(ElementType type, std::span<const std::byte> mine, const std::vector<std::span<std::byte>>& out);

  // Sums over the channels to the other ranks.
  double waited_s() const;
  std::int64_t sent_bytes() const;

 private:
  struct Peer {
    std::unique_ptr<Channel> channel;  // empty: this rank
    std::uint32_t sent = 0;            // frames of this step
    std::uint32_t received = 0;
  };
  void send(Peer& peer, FrameTag tag, std::span<const std::byte> payload);
  void receive(Peer& peer, FrameTag tag, std::span<std::byte> payload);
  void reduce_directly(ElementType type, std::span<std::byte> data);
  void reduce_scattered(ElementType type, std::span<std::byte> data);
  void sum_terms(ElementType type, std::span<std::byte> data, std::int64_t row_first);

  int rank_;
  std::vector<Peer> peers_;
  std::uint64_t epoch_;
  std::uint64_t step_ = 0;
  std::int64_t piece_bytes_;  // of a tensor that is exchanged at once
  std::vector<float> sum_;
  std::vector<std::byte> term_;
};

// The crossing from a stage of `a` ranks to one of `b`: rows are cut into b intervals, interval j travels once, from
// sender rank j * a / b to receiver rank j, and the receivers gather all rows. Empty intervals send nothing.
std::vector<std::int64_t> crossing_bounds(std::int64_t rows, int receivers);
int crossing_sender(int receiver, int senders, int receivers);

// One rank's part of a crossing. `whole` describes the tensor that `data` holds; `receivers[j]` leads to receiver j,
// and may be empty where crossing_sender() is another rank; `sender` leads to the one that crossing_sender() names;
// `group` is the receiving stage's, nullptr for a single rank.
void send_crossing(const FrameTag& whole, std::span<const std::byte> data, int rank, int senders,
                   const std::vector<Channel*>& receivers);
void receive_crossing(const FrameTag& whole, std::span<std::byte> data, Channel& sender, Group* group);

}  // namespace motley
