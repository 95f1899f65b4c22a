#include "motley/engine/stage/peer_rows.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <vector>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::int64_t slots = 2;  // a step is sent while the one before is fetched

struct Offer {
  PeerBufferHandle handle = {};
  std::uint8_t made = 0;
};

template <class T>
std::span<std::byte> bytes_in(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

std::byte* slot_of(void* buffer, std::uint64_t step, std::int64_t most_bytes) {
  return static_cast<std::byte*>(buffer) + static_cast<std::int64_t>(step % slots) * most_bytes;
}

}  // namespace

std::set<std::pair<int, int>> pairs_that_can(WorkerGroup& workers, const std::set<std::pair<int, int>>& pairs,
                                             bool able) {
  std::vector<std::pair<int, int>> own;
  for (const auto& pair : pairs)
    if (pair.first == workers.rank() || pair.second == workers.rank()) own.push_back(pair);
  const auto other = [&](const std::pair<int, int>& pair) {
    return pair.first == workers.rank() ? pair.second : pair.first;
  };
  std::uint8_t mine = able ? 1 : 0;
  for (const auto& pair : own) workers.send(bytes_in(mine), other(pair));
  std::set<std::pair<int, int>> both;
  for (const auto& pair : own) {
    std::uint8_t theirs = 0;
    workers.receive(bytes_in(theirs), other(pair));
    if (able && theirs == 1) both.insert(pair);
  }
  return both;
}

PeerSender::PeerSender(WorkerGroup& workers, int receiver, const PeerMemory& memory, std::int64_t most_bytes)
    : receiver_(receiver), memory_(memory), most_bytes_(most_bytes) {
  Offer offer;
  if (const auto buffer = memory_.allocate(slots * most_bytes_)) {
    buffer_ = buffer->memory;
    offer = {.handle = buffer->handle, .made = 1};
  }
  workers.send(bytes_in(offer), receiver_);
}

PeerSender::~PeerSender() {
  if (buffer_ != nullptr) memory_.free(buffer_);
}

bool PeerSender::agrees(WorkerGroup& workers) {
  std::uint8_t opened = 0;
  workers.receive(bytes_in(opened), receiver_);
  return opened == 1;
}

void PeerSender::send(WorkerGroup& workers, const at::Tensor& rows) {
  auto bytes = static_cast<std::int64_t>(rows.nbytes());
  MOTLEY_CHECK(rows.is_contiguous() && bytes <= most_bytes_);
  std::uint64_t fetched = 0;
  if (sent_ >= slots) workers.receive(bytes_in(fetched), receiver_);
  memory_.copy(slot_of(buffer_, sent_++, most_bytes_), rows.const_data_ptr(), bytes);
  workers.send(bytes_in(bytes), receiver_);
}

PeerReceiver::PeerReceiver(WorkerGroup& workers, int sender, const PeerMemory& memory, std::int64_t most_bytes)
    : sender_(sender), memory_(memory), most_bytes_(most_bytes) {
  Offer offer;
  workers.receive(bytes_in(offer), sender_);
  if (offer.made == 1) buffer_ = memory_.open(offer.handle);
  std::uint8_t opened = agrees() ? 1 : 0;
  workers.send(bytes_in(opened), sender_);
}

PeerReceiver::~PeerReceiver() {
  if (buffer_ != nullptr) memory_.close(buffer_);
}

void PeerReceiver::receive(WorkerGroup& workers, const at::Tensor& rows) {
  MOTLEY_CHECK(rows.is_contiguous() && static_cast<std::int64_t>(rows.nbytes()) <= most_bytes_);
  std::int64_t bytes = 0;
  workers.receive(bytes_in(bytes), sender_);
  if (bytes != static_cast<std::int64_t>(rows.nbytes()))
    throw Error(ErrorCode::peer,
                fmt::format("{} bytes of rows came from a GPU, {} were to come", bytes, rows.nbytes()));
  memory_.copy(rows.mutable_data_ptr(), slot_of(buffer_, received_++, most_bytes_), bytes);
  workers.send(bytes_in(received_), sender_);
}

}  // namespace motley
