#include "motley/engine/peer_rows.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/engine/backend.hpp"

namespace motley {
namespace {

constexpr std::int64_t slots = 2;  // a step is sent while the one before is fetched

struct Offer {
  cuda::PeerHandle handle = {};
  std::uint8_t made = 0;
};

template <class T>
std::span<std::byte> bytes_in(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

std::byte* slot_of(void* buffer, std::uint64_t step, std::int64_t most_bytes) {
  return static_cast<std::byte*>(buffer) + static_cast<std::int64_t>(step % slots) * most_bytes;
}

void copy(const cuda::Kernels& kernels, at::Device device, void* to, const void* from, std::int64_t bytes) {
  if (const int error = kernels.peer_copy(to, from, bytes, native_stream(device)))
    throw Error(ErrorCode::environment, fmt::format("{}: CUDA error {} ({}) while copying between GPUs", device.str(),
                                                    error, kernels.error_text(error)));
  wait_for_stream(device);
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

PeerSender::PeerSender(WorkerGroup& workers, int receiver, const cuda::Kernels& kernels, at::Device device,
                       std::int64_t most_bytes)
    : receiver_(receiver), kernels_(kernels), device_(device), most_bytes_(most_bytes) {
  Offer offer;
  offer.made = kernels_.peer_allocate(slots * most_bytes_, &buffer_, &offer.handle) == 0 ? 1 : 0;
  workers.send(bytes_in(offer), receiver_);
}

PeerSender::~PeerSender() {
  if (buffer_ != nullptr) kernels_.peer_free(buffer_);
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
  copy(kernels_, device_, slot_of(buffer_, sent_++, most_bytes_), rows.const_data_ptr(), bytes);
  workers.send(bytes_in(bytes), receiver_);
}

PeerReceiver::PeerReceiver(WorkerGroup& workers, int sender, const cuda::Kernels& kernels, at::Device device,
                           std::int64_t most_bytes)
    : sender_(sender), kernels_(kernels), device_(device), most_bytes_(most_bytes) {
  Offer offer;
  workers.receive(bytes_in(offer), sender_);
  if (offer.made == 1 && kernels_.peer_open(offer.handle, &buffer_) != 0) buffer_ = nullptr;
  std::uint8_t opened = agrees() ? 1 : 0;
  workers.send(bytes_in(opened), sender_);
}

PeerReceiver::~PeerReceiver() {
  if (buffer_ != nullptr) kernels_.peer_close(buffer_);
}

void PeerReceiver::receive(WorkerGroup& workers, const at::Tensor& rows) {
  MOTLEY_CHECK(rows.is_contiguous() && static_cast<std::int64_t>(rows.nbytes()) <= most_bytes_);
  std::int64_t bytes = 0;
  workers.receive(bytes_in(bytes), sender_);
  if (bytes != static_cast<std::int64_t>(rows.nbytes()))
    throw Error(ErrorCode::peer,
                fmt::format("{} bytes of rows came from a GPU, {} were to come", bytes, rows.nbytes()));
  copy(kernels_, device_, rows.mutable_data_ptr(), slot_of(buffer_, received_++, most_bytes_), bytes);
  workers.send(bytes_in(received_), sender_);
}

}  // namespace motley
