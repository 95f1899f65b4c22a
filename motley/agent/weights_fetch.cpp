#include "motley/agent/weights_fetch.hpp"

#include <sys/socket.h>

#include "motley/agent/messages.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/workers/control_listener.hpp"

namespace motley {
namespace {

constexpr double answer_s = 30;  // for the next chunk
constexpr int most_attempts = 5;
constexpr std::chrono::milliseconds pause(500);  // between attempts

}  // namespace

WeightsFetch::WeightsFetch(std::shared_ptr<ChunkCache> cache, std::vector<ChunkId> chunks, std::string address,
                           std::string name, RelayAccess access, const Wakeup& wake)
    : cache_(std::move(cache)), wake_(wake) {
  chunks = cache_->missing(chunks);
  for (const ChunkId& id : chunks) progress_.of_bytes += chunk_size(cache_->manifest().files[id.file], id.chunk);
  thread_ = std::jthread(
      [this, chunks = std::move(chunks), address = std::move(address), name = std::move(name),
       access = std::move(access)](const std::stop_token& stop) { run(stop, chunks, address, name, access); });
}

WeightsFetch::~WeightsFetch() {
  thread_.request_stop();
  const std::lock_guard lock(mutex_);
  if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
}  // and the thread ends, after the lock

FetchProgress WeightsFetch::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

void WeightsFetch::change(const std::function<void(FetchProgress&)>& change) {
  const std::lock_guard lock(mutex_);
  change(progress_);
  wake_.notify();
}

// What has come is kept: another attempt goes on from there.
void WeightsFetch::run(const std::stop_token& stop, const std::vector<ChunkId>& chunks, const std::string& address,
                       const std::string& name, const RelayAccess& access) {
  for (int attempt = 1; !stop.stop_requested(); ++attempt) try {
      const std::vector<ChunkId> missing = cache_->missing(chunks);
      if (missing.empty()) return change([](FetchProgress& progress) { progress.done = true; });
      LinkHello hello;
      hello.group = weights_service;
      hello.from_id = name;
      BlockingMessageStream stream(call_service(address, hello, access, deadline_in(answer_s)),
                                   max_agent_message_bytes);
      {
        const std::lock_guard lock(mutex_);
        socket_ = stream.descriptor();
      }
      try {
        for (const ChunkId& id : missing) {
          if (stop.stop_requested()) break;
          stream.send(encode_request({id}), deadline_in(answer_s));
          const auto bytes = stream.receive(deadline_in(answer_s));
          if (!bytes) throw Error(ErrorCode::peer, "the driver has closed the connection");
          cache_->put(id, std::as_bytes(std::span(*bytes)));
          change([&](FetchProgress& progress) { progress.bytes += bytes->size(); });
          attempt = 1;
        }
      } catch (...) {
        const std::lock_guard lock(mutex_);
        socket_ = -1;
        throw;
      }
      const std::lock_guard lock(mutex_);
      socket_ = -1;
    } catch (const Error& error) {
      if (attempt == most_attempts || error.code() == ErrorCode::environment || error.code() == ErrorCode::input)
        return change([&](FetchProgress& progress) { progress.failure = error.what(); });
      std::this_thread::sleep_for(pause);
    }
}

}  // namespace motley
