#include "motley/comm/collective/one_round.hpp"

#include <algorithm>

namespace motley {

void OneRound::start(const CollectiveFrame& frame, int rank, int ranks, std::span<const std::byte> own,
                     std::span<std::byte> slots) {
  outgoing_ = {frame, own};
  outgoing_.frame.length = static_cast<std::uint32_t>(own.size());
  slots_ = slots;
  peers_.assign(static_cast<std::size_t>(ranks), {});
  peers_[static_cast<std::size_t>(rank)] = {true, true};
  left_ = 2 * (ranks - 1);
  refusal_.reset();
}

std::span<std::byte> OneRound::slot(int peer) const {
  return slots_.subspan(static_cast<std::size_t>(peer) * outgoing_.payload.size(), outgoing_.payload.size());
}

bool OneRound::fits(const CollectiveFrame& frame) const {
  return frame.chunk == 0 && frame.step == 0 && frame.offset == 0 && frame.length == outgoing_.frame.length;
}

const OperationProgress::Outgoing* OneRound::next(int peer) {
  return peers_[static_cast<std::size_t>(peer)].sent ? nullptr : &outgoing_;
}

void OneRound::sent(int peer) {
  peers_[static_cast<std::size_t>(peer)].sent = true;
  --left_;
}

OperationProgress::Answer OneRound::on_frame(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload,
                                             Holding) {
  if (frame.shape != outgoing_.frame.shape) return refuse_shape(peer, frame, outgoing_.frame.shape);
  if (!fits(frame) || payload.size() != frame.length) return refuse_stranger(peer, frame);
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  if (from.arrived) return Answer::taken;  // seen before
  from.arrived = true;
  --left_;
  const auto into = slot(peer);
  if (into.data() != payload.data()) std::ranges::copy(payload, into.begin());
  return Answer::taken;
}

std::span<std::byte> OneRound::place(int peer, const CollectiveFrame& frame) {
  const bool wanted = frame.shape == outgoing_.frame.shape && fits(frame);
  return wanted && !peers_[static_cast<std::size_t>(peer)].arrived ? slot(peer) : std::span<std::byte>{};
}

std::vector<int> OneRound::awaited() const {
  std::vector<int> ranks;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer)
    if (!peers_[peer].arrived) ranks.push_back(static_cast<int>(peer));
  return ranks;
}

bool OneRound::needs(int peer) const {
  const Peer& state = peers_[static_cast<std::size_t>(peer)];
  return !state.sent || !state.arrived;
}

}  // namespace motley
