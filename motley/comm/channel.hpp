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

// What a frame is. Everything but the payload's content is known to the receiver beforehand; any difference is a peer error.
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
  // Returns once the payload may be overwritten. Never waits for the receiver as long as no more than two of the largest
  // frames are under way.
  virtual void send(const FrameTag& tag, std::span<const std::byte> payload) = 0;
  // Waits for the next frame, checks that it is the expected one, and copies its payload. Throws a peer error when the tag
  // differs, the frame is malformed, or the other side is gone.
  virtual void receive(const FrameTag& expected, std::span<std::byte> payload) = 0;
  // Time this side has spent waiting, for reports.
  virtual double waited_s() const = 0;
};

// Two connected descriptors, to be inherited by two workers; `side` 0 and 1. Memory-backed files without a name: nothing stays
// behind whoever dies.
struct DescriptorPair {
  std::array<int, 2> descriptors{-1, -1};
};
DescriptorPair make_shared_memory_pair(std::int64_t largest_frame_bytes);
DescriptorPair make_tcp_pair();  // connected over loopback

// Takes ownership of the descriptor. `kind` is "shm" or "tcp".
std::unique_ptr<Channel> open_channel(const std::string& kind, int descriptor, int side, std::int64_t largest_frame_bytes,
                                      std::string peer_name);

// The ranks of one stage.
class Group {
 public:
  // `peers[r]` leads to rank r; peers[rank] is empty.
  Group(int rank, std::vector<std::unique_ptr<Channel>> peers, std::uint64_t epoch);
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  void begin_step(std::uint64_t step);
  // In place; every rank ends with the same bits: terms are added in rank order, in fp32.
  void all_reduce(ElementType type, std::span<std::byte> data);
  // Rank r contributes rows [bounds[r], bounds[r+1]) of `data` (rows of `row_bytes`); all end with all rows.
  void all_gather_rows(ElementType type, std::span<std::byte> data, std::int64_t columns, const std::vector<std::int64_t>& bounds);
  // Rank 0 receives rank r's block into `out[r]`; the others send `mine`.
  void gather(ElementType type, std::span<const std::byte> mine, const std::vector<std::span<std::byte>>& out);

 private:
  int rank_;
  std::vector<std::unique_ptr<Channel>> peers_;
  std::uint64_t epoch_;
  std::uint64_t step_ = 0;
  std::vector<std::uint32_t> sent_, received_;
  std::vector<std::byte> scratch_;
};

// The crossing from a stage of `a` ranks to one of `b`: rows are cut into b intervals, interval j travels once, from sender
// rank j * a / b to receiver rank j, and the receivers gather all rows. Empty intervals send nothing.
std::vector<std::int64_t> crossing_bounds(std::int64_t rows, int receivers);
int crossing_sender(int receiver, int senders, int receivers);

}  // namespace motley
