// A worker on a member's machine: its control connection, and what its agent says of it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "motley/comm/net/wakeup.hpp"
#include "motley/workers/remote_workers.hpp"

namespace motley {

// What is learned of a worker other than by its control connection.
struct WorkerNews {
  std::mutex mutex;
  std::optional<WorkerExit> exit;
  bool gone = false;  // its machine
  int process = 0;
  Wakeup wake;

  void set(std::optional<WorkerExit> how) {
    const std::lock_guard lock(mutex);
    if (how)
      exit = how;
    else
      gone = true;
    wake.notify();
  }
};

class MachineWorker final : public RemoteWorker {
 public:
  MachineWorker(ByteStream control, std::shared_ptr<WorkerNews> news, std::function<void()> end)
      : RemoteWorker(std::move(control)), news_(std::move(news)), end_(std::move(end)) {}
  ~MachineWorker() override { MachineWorker::kill(); }

  bool ended() const override { return RemoteWorker::ended() || news().has_value(); }
  std::optional<WorkerExit> exit() override {
    const auto known = news();
    return known ? known : RemoteWorker::exit();
  }
  std::vector<pollfd> events() const override {
    std::vector<pollfd> all = RemoteWorker::events();
    all.push_back({news_->wake.descriptor(), POLLIN, 0});
    return all;
  }
  void close() override {
    RemoteWorker::close();
    if (end_) std::exchange(end_, nullptr)();
  }
  void kill() override { close(); }
  int process() const override {
    const std::lock_guard lock(news_->mutex);
    return news_->process;
  }

 private:
  std::optional<WorkerExit> news() const {
    const std::lock_guard lock(news_->mutex);
    if (news_->exit) return news_->exit;
    return news_->gone ? std::optional(WorkerExit{.how = WorkerExit::How::machine}) : std::nullopt;
  }

  const std::shared_ptr<WorkerNews> news_;
  std::function<void()> end_;
};

}  // namespace motley
