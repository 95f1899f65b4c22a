// A coordinator that tests talk to over real connections.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/membership/coordinator_server.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/comm/session/session.hpp"

namespace motley {

// The other end of a control connection.
class ControlCaller {
 public:
  explicit ControlCaller(ByteStream stream) : stream_(std::move(stream), max_control_bytes) {}
  void send(const ControlMessage& message) { stream_.send(encode_control(message)); }
  // The coordinator's next message. Throws what the connection broke of.
  ControlMessage answer(Instant until = soon()) {
    for (;;) {
      stream_.flush();
      if (const auto message = stream_.receive()) return decode_control(*message);
      if (stream_.ended()) throw Error(ErrorCode::peer, "the connection is lost: " + stream_.cause());
      if (!wait_for(stream_.descriptor(), stream_.events(), until)) throw Error(ErrorCode::peer, "nothing");
    }
  }

 private:
  MessageStream stream_;
};

// A coordinator on a thread of the test, with a log of its own.
class CoordinatorThread {
 public:
  explicit CoordinatorThread(GroupPolicy policy = {}, CoordinatorServerOptions options = {}, std::string file = {})
      : file_(file.empty() ? temporary_file() : std::move(file)) {
    options.group = "test";
    options.token = "token";
    options.policy = policy;
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_ += line + "\n";
    };
    server_ = std::make_unique<CoordinatorServer>(std::move(options), open_sqlite_store(file_));
    thread_ = std::jthread([this](const std::stop_token& stop) { server_->run(stop); });
  }
  ~CoordinatorThread() {
    thread_.request_stop();
    thread_.join();
    if (::testing::Test::HasFailure()) fmt::print("{}", lines_);
  }
  const std::string& address() const { return server_->address(); }
  const std::string& file() const { return file_; }
  std::string log() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

  static std::string temporary_file() {
    static std::atomic<int> count{0};
    const auto file = std::filesystem::temp_directory_path() /
                      fmt::format("motley-session-test-{}-{}.log", ::getpid(), count.fetch_add(1));
    std::filesystem::remove(file);
    return file.string();
  }

 private:
  std::string file_;
  mutable std::mutex mutex_;
  std::string lines_;
  std::unique_ptr<CoordinatorServer> server_;
  std::jthread thread_;
};

// Of a member of the group of a CoordinatorThread at this address.
inline SessionOptions options_of(const std::string& coordinator, const std::string& id) {
  SessionOptions options;
  options.member.coordinators = {coordinator};
  options.member.group = "test";
  options.member.token = "token";
  options.member.member.id = id;
  return options;
}

}  // namespace motley
