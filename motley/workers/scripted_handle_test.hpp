// For the tests of this module and those above it: a worker's link whose other end is a script.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/workers/worker_handle.hpp"

namespace motley {

// The worker's end of it.
struct Script {
  std::vector<Message> to_driver = {};
  std::vector<Step> steps = {};                                // that were sent to the worker
  std::function<std::optional<Message>(Message)> answer = {};  // to all else that was
  bool malformed = false, ended = false, closed = false, stays = false;
  std::optional<WorkerExit> exit = {};
  Instant known = {};  // how it ended, which before is only known to have ended where `ended` says so
};

class ScriptedHandle final : public WorkerHandle {
 public:
  explicit ScriptedHandle(Script& script) : script_(script) { always_.notify(); }

  void send(std::string_view message) override {
    Message decoded = decode(message);
    if (auto* step = std::get_if<Step>(&decoded))
      script_.steps.push_back(std::move(*step));
    else if (auto answer = script_.answer ? script_.answer(std::move(decoded)) : std::nullopt)
      script_.to_driver.push_back(*std::move(answer));
  }
  void flush() override {}
  std::vector<Message> receive() override {
    if (script_.malformed) throw Error(ErrorCode::peer, "malformed message");
    return std::exchange(script_.to_driver, {});
  }
  bool ended() const override { return script_.ended; }
  std::optional<WorkerExit> exit() override {
    if (Clock::now() >= script_.known) return script_.exit;
    return script_.ended ? std::optional(WorkerExit{}) : std::nullopt;
  }
  std::vector<pollfd> events() const override { return {{always_.descriptor(), POLLIN, 0}}; }
  bool pending() const override { return false; }
  void close() override {
    script_.closed = true;
    if (!script_.stays && !script_.exit) script_.exit = WorkerExit{WorkerExit::How::code, 0};
  }
  void kill() override { script_.exit = WorkerExit{WorkerExit::How::signal, 9}; }
  int process() const override { return 0; }

 private:
  Script& script_;
  Wakeup always_;
};

constexpr auto exited = [](int code) { return WorkerExit{WorkerExit::How::code, code}; };
constexpr auto killed = WorkerExit{WorkerExit::How::signal, 9};

}  // namespace motley
