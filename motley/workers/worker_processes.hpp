// Workers in processes that this one starts.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/plan/serve.hpp"
#include "motley/workers/control_connection.hpp"
#include "motley/workers/worker_link.hpp"

namespace motley {

// A worker in a child process, on a socket pair.
class WorkerProcess final : public WorkerLink {
 public:
  // Runs `program --control-fd N` in a process group of its own, so that a Ctrl-C meant for the driver does not reach
  // it. `inherited` are the descriptors that it may keep. The kernel ends it when the calling thread ends. Throws an
  // environment error where the process cannot be made.
  WorkerProcess(const std::filesystem::path& program, std::span<const int> inherited);
  ~WorkerProcess() override;  // ends it, and waits for that some seconds at most
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  void send(std::string_view message) override { control_.send(message); }
  void flush() override { control_.flush(); }
  std::vector<Message> receive() override { return receive_messages(control_); }
  bool ended() const override { return control_.ended(); }
  std::optional<WorkerExit> exit() override;
  std::vector<pollfd> events() const override;
  bool pending() const override { return control_.pending(); }
  void close() override { control_.close(); }
  void kill() override;
  int process() const override { return process_; }

 private:
  MessageStream control_;
  FileDescriptor exit_;  // readable when the process has ended
  int process_ = -1;
  std::optional<WorkerExit> exit_state_;
};

// One process per device of each stage, in the order of the stages and ranks, connected and told what to load.
Workers start_workers(const ServePlan& plan, std::uint64_t epoch, const LaunchOptions& options);

}  // namespace motley
