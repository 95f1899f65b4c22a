// A peer behind TCP: as many streams as it takes to fill the way there.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <map>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/transport/edge.hpp"
#include "motley/comm/transport/stream_lane.hpp"

namespace motley {
namespace {

constexpr int stream_frames_per_poll = 4;
// From this round trip on, one stream's window and its recovery from a lost packet limit it more than the way does.
constexpr double far_s = 1e-3;
// Far streams' windows grow where frames wait for them, up to this many times what the way itself holds.
constexpr std::size_t near_window_bytes = 1 << 20, first_far_window_bytes = 512 << 10, most_far_window_bytes = 4 << 20;
constexpr double windows_per_way = 2;
constexpr double meter_s = 0.1;
constexpr int first_far_streams = 4;
// More streams are worth it while they raise the rate by that factor.
constexpr double worthwhile = 1.1;
constexpr double trial_s = 0.25;

// As the kernel has it (linux/tcp.h, which cannot be included with the C library's header): that ends with `known`.
struct KernelTcpInfo {
  tcp_info known;
  std::uint64_t pacing_rate, most_pacing_rate, bytes_acknowledged, bytes_received;
  std::uint32_t segments_sent, segments_received, unsent_bytes, least_round_trip_us;
};
static_assert(offsetof(KernelTcpInfo, least_round_trip_us) == 148);

// The least so far: what busy processors add is not the way's.
double round_trip_s(int socket) {
  KernelTcpInfo info{};
  socklen_t size = sizeof info;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.least_round_trip_us * 1e-6 : 0;
}

class SocketsEdge : public StreamEdge {
 public:
  explicit SocketsEdge(StreamEdgeOptions options) : options_(std::move(options)) {
    traffic_.kind = "tcp";
    traffic_.streams = 0;
  }

  bool connected() const override {
    return std::ranges::any_of(lanes_, [](const auto& entry) { return entry.second.lane.up(); });
  }

  void adopt(std::uint16_t stream, ByteStream connection) override {
    if (stream >= options_.most_streams) return;
    watch(options_.epoll, connection.descriptor(), options_.peer, stream);
    const bool first = lanes_.empty();
    if (first) {
      way_s_ = round_trip_s(connection.descriptor());
      far_ = way_s_ >= far_s;
    }
    if (connection.encrypted()) traffic_.kind = "tls";
    const auto [entry, fresh] = lanes_.try_emplace(stream, far_ ? first_far_window_bytes : near_window_bytes);
    if (!fresh) ++traffic_.reconnects;
    Connection& place = entry->second;
    place.asked = place.gone = false;
    place.refusal.clear();
    place.lane.adopt(std::move(connection));
    traffic_.streams = static_cast<int>(lanes_.size());
    count_buffers();
    if (first && far_ && options_.dials) open_streams(first_far_streams);
  }

  void refused(std::uint16_t stream, const std::string& cause) override {
    const auto found = lanes_.find(stream);
    if (found == lanes_.end() || !found->second.asked) return;
    found->second.gone = true;
    found->second.refusal = cause;
  }

  bool send(const CollectiveFrame& frame, std::span<const std::byte> payload) override {
    if (!cause_.empty()) return false;
    const std::size_t needed = collective_header_bytes + payload.size() + 8;
    StreamLane* best = nullptr;
    for (auto& [stream, place] : lanes_)
      if (place.lane.room() >= needed && (best == nullptr || place.lane.room() > best->room())) best = &place.lane;
    if (best == nullptr && far_) best = widened();
    if (best == nullptr) {
      crowded_ = true;
      return false;
    }
    const std::int64_t before = best->sent_bytes();
    best->send(frame, payload);
    traffic_.sent_bytes += best->sent_bytes() - before;
    best->write();
    return true;
  }

  // A stream may be full of frames that wait for others: the word goes its own way, too.
  void revoke(const CollectiveFrame& frame, const std::string& cause) override {
    send(frame, std::as_bytes(std::span(cause)));
    options_.revoke(cause);
  }

  bool poll(FrameSink& sink, double now_s) override {
    bool moved = false;
    for (auto& [stream, place] : lanes_) {
      try {
        const std::int64_t before = place.lane.received_bytes();
        moved = place.lane.read(options_.peer, sink, stream_frames_per_poll) || moved;
        traffic_.received_bytes += place.lane.received_bytes() - before;
        moved = place.lane.write() || moved;
      } catch (const Error& error) {
        give_up(error.what());
      }
      if (place.lane.ended() && cause_.empty()) repair(stream, place, now_s);
    }
    if (far_) meter(now_s);
    if (crowded_ && far_) consider_streams(now_s);
    if (!cause_.empty()) sink.on_lost(options_.peer, cause_);
    return moved;
  }

  bool looks_ready() const override {
    return std::ranges::any_of(lanes_, [](const auto& entry) { return entry.second.lane.looks_ready(); });
  }
  bool flushed() const override {
    return !cause_.empty() || std::ranges::all_of(lanes_, [](const auto& entry) {
      return entry.second.gone || entry.second.lane.flushed();
    });
  }
  std::vector<FileDescriptor> release() override {
    std::vector<FileDescriptor> sockets;
    for (auto& [stream, place] : lanes_)
      if (place.lane.up()) sockets.push_back(place.lane.release());
    return sockets;
  }
  void on_event(std::uint32_t part, std::uint32_t events) override {
    const auto found = lanes_.find(static_cast<std::uint16_t>(part));
    if (found != lanes_.end()) found->second.lane.on_event(events);
  }

 private:
  struct Connection {
    explicit Connection(std::size_t window_bytes) : lane(window_bytes) {}
    StreamLane lane;
    bool asked = false;  // for another connection, or whether the peer lives
    double broken_s = 0;
    bool gone = false;  // no other connection will come
    std::string refusal;
  };

  // The fastest that the way has been so far.
  void meter(double now_s) {
    if (now_s - metered_at_s_ < meter_s) return;
    const std::int64_t bytes = acknowledged();
    if (metered_at_s_ > 0)
      most_bytes_per_s_ =
          std::max(most_bytes_per_s_, static_cast<double>(bytes - metered_bytes_) / (now_s - metered_at_s_));
    metered_at_s_ = now_s;
    metered_bytes_ = bytes;
  }

  // A stream that has got room by a larger window; null where none may have one, or none would have room by it.
  StreamLane* widened() {
    for (auto& [stream, place] : lanes_)
      if (static_cast<double>(traffic_.buffer_bytes) < windows_per_way * most_bytes_per_s_ * way_s_ &&
          place.lane.widen(most_far_window_bytes)) {
        count_buffers();
        return &place.lane;
      }
    return nullptr;
  }

  void count_buffers() {
    traffic_.buffer_bytes = 0;
    for (const auto& [stream, place] : lanes_)
      traffic_.buffer_bytes += static_cast<std::int64_t>(place.lane.memory_bytes());
  }

  void give_up(const std::string& cause) {
    if (cause_.empty()) cause_ = cause;
  }

  bool ours(std::uint16_t stream) const { return (stream % 2 == 0) == options_.dials; }

  // A broken stream comes back within the patience, or the peer is lost: once all is taken that came before the break.
  // Its side dials again; the other asks meanwhile whether anybody is there at all.
  void repair(std::uint16_t stream, Connection& place, double now_s) {
    if (!place.asked) {
      place.asked = true;
      place.broken_s = now_s;
      options_.dial(ours(stream) ? LinkPurpose::stream : LinkPurpose::probe, stream);
    }
    place.gone = place.gone || now_s - place.broken_s > options_.patience_s;
    if (!place.gone || place.lane.up()) return;
    give_up(!place.refusal.empty() ? place.refusal
                                   : fmt::format("its connection broke ({}) and did not come back within {} s",
                                                 place.lane.cause(), options_.patience_s));
  }

  void open_streams(int wanted) {
    wanted = std::min(wanted, options_.most_streams);
    for (; streams_asked_ < wanted; ++streams_asked_) {
      const int stream = 2 * streams_asked_ + (options_.dials ? 0 : 1);
      if (stream < options_.most_streams && !lanes_.contains(static_cast<std::uint16_t>(stream)))
        options_.dial(LinkPurpose::stream, static_cast<std::uint16_t>(stream));
    }
  }

  // Twice as many streams, as long as that pays: the rate with those there are is held against the rate before.
  void consider_streams(double now_s) {
    if (trial_began_s_ == 0 || settled_) {
      trial_began_s_ = now_s;
      trial_bytes_ = acknowledged();
      return;
    }
    if (now_s - trial_began_s_ < trial_s) return;
    const double rate = static_cast<double>(acknowledged() - trial_bytes_) / (now_s - trial_began_s_);
    crowded_ = false;
    trial_began_s_ = 0;
    if (rate < worthwhile * best_rate_) {
      settled_ = true;
      return;
    }
    best_rate_ = rate;
    streams_asked_ = std::max(streams_asked_, 1);
    open_streams(2 * streams_asked_);
  }

  std::int64_t acknowledged() const {
    std::int64_t bytes = 0;
    for (const auto& [stream, place] : lanes_) bytes += place.lane.acknowledged_bytes();
    return bytes;
  }

  StreamEdgeOptions options_;
  std::map<std::uint16_t, Connection> lanes_;
  bool far_ = false;
  double way_s_ = 0;  // there and back, when nothing else was under way
  double most_bytes_per_s_ = 0, metered_at_s_ = 0;
  std::int64_t metered_bytes_ = 0;
  std::string cause_;  // of the loss

  bool crowded_ = false;  // no stream had room for a frame
  bool settled_ = false;
  int streams_asked_ = 0;
  double trial_began_s_ = 0, best_rate_ = 0;
  std::int64_t trial_bytes_ = 0;
};

}  // namespace

std::unique_ptr<StreamEdge> open_stream_edge(StreamEdgeOptions options) {
  return std::make_unique<SocketsEdge>(std::move(options));
}

}  // namespace motley
