#include "motley/comm/state/state_transfer.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <optional>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"

namespace motley {
namespace {

std::string bytes_of(const StateDigest& digest) {
  return std::string(reinterpret_cast<const char*>(digest.bytes.data()), state_digest_bytes);
}

// One joiner's pull: connections to the peers, and what they say, handed to StatePull.
class StateTransfer {
 public:
  StateTransfer(const std::string& group, const StateDigest& manifest, const std::vector<StatePeer>& peers,
                const PlaceState& place, const StateTransferOptions& options)
      : digest_(manifest),
        peers_(peers),
        place_(place),
        options_(options),
        in_(options.bytes_per_s),
        faults_(peers.size()) {
    std::vector<std::future<ByteStream>> streams;  // one that does not answer holds none up
    for (const auto& peer : peers) streams.push_back(std::async(std::launch::async, peer.connect));
    for (auto& stream : streams) {
      auto& connection = connections_.emplace_back();
      try {
        // A manifest is the longest that may come.
        connection.emplace(stream.get(), max_manifest_bytes);
        connection->queue(StateMessageKind::hello, bytes_of(manifest) + group);
      } catch (const Error& error) {
        drop(connections_.size() - 1, error.message());
      }
    }
  }

  StateTransferOutcome run() {
    const double start_s = now_s();
    StateTransferOutcome outcome;
    while (!pull_ || !pull_->done()) {
      const double elapsed_s = now_s() - start_s;
      if (options_.stop.stop_requested()) outcome.cause = "stopped";
      if (elapsed_s > options_.timeout_s) outcome.cause = fmt::format("not complete after {} s", options_.timeout_s);
      if (std::none_of(connections_.begin(), connections_.end(), [](const auto& each) { return each.has_value(); }))
        outcome.cause = "no peer is left";
      if (!outcome.cause.empty()) break;
      wait(options_.timeout_s - elapsed_s);
      for (std::size_t peer = 0; peer < connections_.size(); ++peer)
        if (connections_[peer]) move(peer);
      leave_silent(elapsed_s);
      ask();
    }
    outcome.complete = outcome.cause.empty();
    for (std::size_t i = 0; i < peers_.size(); ++i) outcome.peers[peers_[i].name].fault = faults_[i];
    if (pull_) {
      outcome.revision = pull_->manifest().revision;
      outcome.kept_bytes = pull_->kept_bytes();
      for (const auto& [peer, report] : pull_->peers()) {
        outcome.peers[peers_[static_cast<std::size_t>(peer)].name].bytes = report.bytes;
        outcome.pulled_bytes += report.bytes;
      }
    }
    return outcome;
  }

 private:
  void wait(double left_s) {
    const double paced_s = in_.wait_s(now_s());
    std::vector<pollfd> files;
    for (const auto& connection : connections_)
      if (connection)
        files.push_back({connection->descriptor(),
                         static_cast<short>((paced_s > 0 ? 0 : POLLIN) | (connection->writing() ? POLLOUT : 0)), 0});
    double wait_s = std::min(paced_s > 0 ? paced_s : 0.1, left_s);
    if (paced_s <= 0 &&
        std::any_of(connections_.begin(), connections_.end(), [](const auto& each) { return each && each->pending(); }))
      wait_s = 0;
    poll(files.data(), files.size(), static_cast<int>(std::ceil(std::max(wait_s, 0.0) * 1e3)));
  }

  void drop(std::size_t peer, const std::string& cause) {
    connections_[peer].reset();
    faults_[peer] = cause;
    if (pull_) pull_->lose_peer(static_cast<int>(peer), cause);
  }

  void move(std::size_t peer) {
    try {
      StatePace unlimited(0);
      auto& connection = *connections_[peer];
      connection.write_some(unlimited, now_s());
      while (connections_[peer]) {
        const std::uint64_t before = connection.received_bytes();
        const auto message = connection.receive(in_, now_s());
        if (connection.received_bytes() > before && pull_) pull_->heard(static_cast<int>(peer), now_s());
        if (!message) return;
        take(peer, *message);
      }
    } catch (const Error& error) {
      drop(peer, error.message());
    }
  }

  void take(std::size_t peer, const StateMessage& message) {
    const int id = static_cast<int>(peer);
    const std::span<const std::byte> payload = message.payload;
    if (message.kind == StateMessageKind::refusal)
      return drop(peer, std::string(reinterpret_cast<const char*>(payload.data()),
                                    std::min<std::size_t>(payload.size(), 1000)));
    if (message.kind == StateMessageKind::manifest) {
      if (sha256(payload) != digest_) return drop(peer, "sent another manifest than was asked for");
      if (!pull_) {
        auto manifest = decode_manifest({reinterpret_cast<const char*>(payload.data()), payload.size()});
        auto destination = place_(manifest);
        pull_.emplace(std::move(manifest), std::move(destination), options_.pull);
      }
      return pull_->add_peer(id, now_s());
    }
    if (message.kind != StateMessageKind::chunk || payload.size() < state_digest_bytes || !pull_ || !pull_->active(id))
      return drop(peer, "sent what was not asked for");
    StateDigest digest;
    std::memcpy(digest.bytes.data(), payload.data(), state_digest_bytes);
    pull_->deliver(id, digest, payload.subspan(state_digest_bytes), now_s());
    if (!pull_->active(id)) drop(peer, pull_->peers().at(id).fault);
  }

  // Those who owe chunks and send none, and those who do not answer at all.
  void leave_silent(double elapsed_s) {
    if (pull_) pull_->expire(now_s());
    for (std::size_t peer = 0; peer < connections_.size(); ++peer) {
      if (!connections_[peer]) continue;
      const int id = static_cast<int>(peer);
      const bool known = pull_ && pull_->peers().contains(id);
      if (known && !pull_->active(id)) drop(peer, pull_->peers().at(id).fault);
      if (!known && elapsed_s > options_.pull.progress_timeout_s)
        drop(peer, fmt::format("did not answer within {} s", options_.pull.progress_timeout_s));
    }
  }

  void ask() {
    if (!pull_) return;
    for (const auto& request : pull_->requests(now_s()))
      connections_[static_cast<std::size_t>(request.peer)]->queue(StateMessageKind::request, bytes_of(request.chunk));
  }

  const StateDigest digest_;
  const std::vector<StatePeer>& peers_;
  const PlaceState& place_;
  const StateTransferOptions& options_;
  StatePace in_;
  std::vector<std::optional<StateConnection>> connections_;  // empty: left
  std::vector<std::string> faults_;
  std::optional<StatePull> pull_;
};

}  // namespace

StateTransferOutcome pull_state(const std::string& group, const StateDigest& manifest,
                                const std::vector<StatePeer>& peers, const PlaceState& place,
                                const StateTransferOptions& options) {
  return StateTransfer(group, manifest, peers, place, options).run();
}

}  // namespace motley
