// Messages over a connection, plain or under TLS. On the wire each is its length (32 bits, little-endian) and as many
// bytes; what the bytes mean is the protocol's affair, as is the longest message that it allows.
//
// FrameReader and FrameWriter are the framing alone, without I/O. MessageStream puts them on a connection for an event
// loop and never waits. BlockingMessageStream waits, and may be used by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/comm/net/byte_stream.hpp"

namespace motley {

// Bytes as they arrive, in; whole messages, out.
class FrameReader {
 public:
  explicit FrameReader(std::size_t largest_bytes) : largest_bytes_(largest_bytes) {}
  // For a protocol that allows longer messages once the other side has proved who it is.
  void set_largest(std::size_t bytes) { largest_bytes_ = bytes; }

  // Room for `bytes` more bytes. The buffer grows by what is asked for here, never by a length that was announced.
  // Invalidates what next() returned.
  std::span<std::byte> space(std::size_t bytes);
  // This many of them have arrived.
  void arrived(std::size_t bytes) { end_ += bytes; }

  // The next whole message, valid until space(). Throws a peer error where one is announced that is too long.
  std::optional<std::string_view> next();
  // How many more bytes next() needs at least. Throws as next() does.
  std::size_t missing() const;
  // next() would return a message, or throw.
  bool ready() const;
  // Part of a message is here.
  bool inside_message() const { return start_ < end_ && !ready(); }

 private:
  std::optional<std::size_t> announced() const;  // the length, where all of it has arrived

  std::vector<std::byte> buffer_;
  std::size_t start_ = 0, end_ = 0;  // of what is still to be given out
  std::size_t largest_bytes_;
};

// Messages in; bytes to be sent, out.
class FrameWriter {
 public:
  explicit FrameWriter(std::size_t largest_bytes) : largest_bytes_(largest_bytes) {}

  // One message: `head`, which is copied, then `body`, which is sent from where it lies and stays there while `owner`
  // is held. Throws a limit error where both together are too long.
  void push(std::string_view head, std::span<const std::byte> body = {}, std::shared_ptr<const void> owner = {});
  bool empty() const { return messages_.empty(); }
  std::size_t messages() const { return messages_.size(); }
  // Of messages that are not sent, or not wholly.
  std::size_t queued_bytes() const { return queued_bytes_; }
  // What is to be sent next; empty where nothing is left.
  std::span<const std::byte> next() const;
  void sent(std::size_t bytes);
  void clear() {
    messages_.clear();
    queued_bytes_ = 0;
  }

 private:
  struct Outgoing {
    std::string head;  // with the length in front
    std::span<const std::byte> body;
    std::shared_ptr<const void> owner;
    std::size_t sent = 0;
  };
  std::deque<Outgoing> messages_;
  std::size_t queued_bytes_ = 0;
  std::size_t largest_bytes_;
};

// For an event loop: poll descriptor() for events(), then call flush() and receive().
//
// A connection that breaks is reported in one place, by ended(), after everything that had arrived was received: a peer
// may say why it left before it did. What is sent to such a connection is dropped.
class MessageStream {
 public:
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  MessageStream(ByteStream stream, std::size_t largest_bytes)
      : stream_(std::move(stream)), reader_(largest_bytes), writer_(largest_bytes) {}

  // Queues a message; send() also gives the network what it takes now. Both throw a limit error for a message that is
  // longer than the maximum.
  void queue(std::string_view head, std::span<const std::byte> body = {}, std::shared_ptr<const void> owner = {});
  void send(std::string_view message);
  // Gives the network what it takes now, `most_bytes` at most. Returns how many bytes it took.
  std::size_t flush(std::size_t most_bytes = unlimited);
  // Everything that was queued has been given to the network.
  bool flushed() const { return writer_.empty(); }
  std::size_t queued_bytes() const { return writer_.queued_bytes(); }
  std::size_t queued_messages() const { return writer_.messages(); }

  // The next message, valid until the next call; empty where none has arrived completely. Reads `most_bytes` at most,
  // and only where no message is left from an earlier read, so that a caller that stops asking slows the sender down.
  // Throws a peer error where a message is longer than the maximum, or the connection ended inside one.
  std::optional<std::string_view> receive(std::size_t most_bytes = unlimited);
  // For messages that arrive from now on. Sending keeps the maximum that the stream was made with.
  void accept_up_to(std::size_t largest_bytes) { reader_.set_largest(largest_bytes); }
  // No message will come any more; cause() says why.
  bool ended() const { return ended_; }
  // What is sent now would be dropped.
  bool lost() const { return broken_ || ended_; }
  const std::string& cause() const { return cause_; }
  // Bytes that receive() has read from the network so far, with those of incomplete messages.
  std::uint64_t received_bytes() const { return received_bytes_; }

  int descriptor() const { return stream_.descriptor(); }
  short events() const;  // for poll()
  // receive() may have a message that poll() will not announce.
  bool pending() const { return reader_.ready() || stream_.pending(); }
  const ByteStream& bytes() const { return stream_; }
  void close();

 private:
  ByteStream stream_;
  FrameReader reader_;
  FrameWriter writer_;
  std::size_t refused_bytes_ = 0;  // that the network did not take when they were last offered
  std::uint64_t received_bytes_ = 0;
  std::string cause_;    // the first one: TLS says only once what was wrong
  bool broken_ = false;  // found when writing
  bool ended_ = false;   // found when reading
};

// One connection's turn in an event loop: the messages that came with this many bytes, so that one which never pauses
// holds up no other. Of the rest poll() announces what has not been read from the socket: a loop does not wait where a
// stream is pending().
class ReadingTurn {
 public:
  static constexpr std::size_t most_bytes = std::size_t{64} << 10;

  explicit ReadingTurn(MessageStream& stream) : stream_(stream) {}
  // As MessageStream::receive().
  std::optional<std::string_view> next();

 private:
  MessageStream& stream_;
  std::size_t left_bytes_ = most_bytes;
};

// Any number of threads may send while one receives.
class BlockingMessageStream {
 public:
  explicit BlockingMessageStream(MessageStream stream) : stream_(std::move(stream)) {}
  BlockingMessageStream(ByteStream stream, std::size_t largest_bytes)
      : BlockingMessageStream(MessageStream(std::move(stream), largest_bytes)) {}

  // Returns when the network has the whole message. Throws a peer error where the connection breaks or the deadline
  // passes.
  void send(std::string_view message, Instant until = no_deadline);
  // The next message, valid until the next call; empty where the connection has ended between two messages. Throws a
  // peer error where it ends inside one, where a message is longer than the maximum, or where the deadline passes.
  std::optional<std::string_view> receive(Instant until = no_deadline);

  int descriptor() const { return stream_.descriptor(); }
  // Why the connection has ended.
  std::string cause() const {
    const std::lock_guard lock(mutex_);
    return stream_.cause();
  }

 private:
  mutable std::mutex mutex_;  // guards the stream, and is not held while waiting
  MessageStream stream_;
};

}  // namespace motley
