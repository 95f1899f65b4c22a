// Sends chunks of weights to callers of the service `weights`: the driver's side of it, and an agent's.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <set>
#include <vector>

#include "motley/checkpoint/manifest.hpp"
#include "motley/comm/net/byte_stream.hpp"

namespace motley {

class ChunkService {
 public:
  // The bytes of a chunk; empty: it is not here. From several threads. What it throws ends the connection.
  using Read = std::function<std::vector<std::byte>(const ChunkId&)>;

  ChunkService(Read read, std::size_t most_callers) : read_(std::move(read)), most_callers_(most_callers) {}

  // There are `most_callers` already: serve() would hang up.
  bool full() const;
  // Answers this caller until it hangs up, breaks the protocol, is not `welcome` any more, or close(). Does not throw.
  void serve(ByteStream stream, const std::function<bool()>& welcome);
  // Hangs up on all callers, and on those to come.
  void close();

 private:
  bool begin(int socket);
  void end(int socket);

  const Read read_;
  const std::size_t most_callers_;
  mutable std::mutex mutex_;
  std::set<int> sockets_;
  bool closed_ = false;
};

}  // namespace motley
