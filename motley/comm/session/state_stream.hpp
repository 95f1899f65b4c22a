// How state travels: streams of bytes, which sessions and tests supply (plain TCP here; TLS through the same seam), and
// on them frames with a kind and a bounded length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/comm/net/byte_stream.hpp"

namespace motley {

// A connection to one peer. Nothing here blocks; the end or break of the connection is thrown as a peer error.
class StateStream {
 public:
  virtual ~StateStream() = default;
  virtual int descriptor() const = 0;             // for poll()
  virtual bool pending() const { return false; }  // read() has something that poll() will not announce
  // The number of bytes that were moved; 0: none now.
  virtual std::size_t read(std::span<std::byte> into) = 0;
  virtual std::size_t write(std::span<const std::byte> from) = 0;
};

// Where streams come from.
class StateListener {
 public:
  virtual ~StateListener() = default;
  virtual int descriptor() const = 0;
  virtual bool pending() const { return false; }      // somebody may come whom poll() will not announce
  virtual std::string address() const = 0;            // "127.0.0.1:4711"
  virtual std::unique_ptr<StateStream> accept() = 0;  // empty: nobody is there
};

// At "10.0.0.7:4711", port 0: any free one; under TLS 1.3 with mutual authentication where a context is given.
// Connecting waits some seconds at most; it throws a peer error.
// `key` is the group's secret, which a relay (listener.hpp) is shown.
std::unique_ptr<StateListener> listen_for_state(const std::string& address, std::optional<TlsContext> tls = {},
                                                const std::string& key = {});
std::unique_ptr<StateStream> connect_for_state(const std::string& address, const std::optional<TlsContext>& tls = {},
                                               const std::string& key = {});

// Lets so many bytes pass per second, and little more at once; 0: any number.
class StatePace {
 public:
  explicit StatePace(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  std::size_t allowed(double now_s);
  void spend(std::size_t bytes);
  // From now until a worthwhile number of bytes may pass.
  double wait_s(double now_s);

 private:
  double bytes_per_s_;
  double allowance_ = 0;
  double refilled_s_ = 0;
};

enum class StateFrameKind : std::uint8_t {
  hello = 1,     // to a source: the group, and the digest of the manifest that is wanted
  manifest = 2,  // from it: the manifest
  request = 3,   // to it: the digest of a chunk
  chunk = 4,     // from it: the digest, then the bytes
  refusal = 5    // from it: why not, in words
};

struct StateFrame {
  StateFrameKind kind = StateFrameKind::refusal;
  std::vector<std::byte> payload;
};

// Frames on a stream. Reading and writing throw peer errors: the connection broke, or what came is no frame of ours or
// longer than `largest_bytes`.
class StateConnection {
 public:
  StateConnection(std::unique_ptr<StateStream> stream, std::size_t largest_bytes)
      : stream_(std::move(stream)), largest_bytes_(largest_bytes) {}

  int descriptor() const { return stream_->descriptor(); }
  bool pending() const { return stream_->pending(); }
  // `head` is copied; `body` is sent from where it lies, which `owner` keeps.
  void queue(StateFrameKind kind, std::string head, std::span<const std::byte> body = {},
             std::shared_ptr<const void> owner = {});
  bool writing() const { return !outgoing_.empty(); }
  std::size_t queued_frames() const { return outgoing_.size(); }
  // Bytes that were moved.
  std::size_t write_some(StatePace& pace, double now_s);
  std::size_t read_some(StatePace& pace, double now_s);
  // A frame that is complete.
  std::optional<StateFrame> take();

 private:
  struct Outgoing {
    std::string head;
    std::span<const std::byte> body;
    std::shared_ptr<const void> owner;  // of the body, with the snapshot that it belongs to
    std::size_t written = 0;
  };
  void check_header() const;

  std::unique_ptr<StateStream> stream_;
  std::size_t largest_bytes_;
  std::deque<Outgoing> outgoing_;
  std::vector<std::byte> incoming_;  // of one frame, with its header
  std::size_t received_ = 0;
};

}  // namespace motley
