// Workers in processes that this one starts.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/workers/control_connection.hpp"
#include "motley/workers/gpu_list.hpp"
#include "motley/workers/worker_handle.hpp"

namespace motley {

// A worker in a child process, on a socket pair.
class WorkerProcess final : public WorkerHandle {
 public:
  // Runs `program --control-fd N` in a process group of its own, so that a Ctrl-C meant for the driver does not reach
  // it, with `variables` in place of what the environment has of them. The kernel ends it when the calling thread ends.
  // Throws an environment error where the process cannot be made.
  explicit WorkerProcess(const std::filesystem::path& program, const Variables& variables = {});
  ~WorkerProcess() override;  // ends it, and waits for that some seconds at most, from the first kill() on
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
  // From now on nothing waits for its end: a process in a call to a device that is lost cannot be killed.
  void leave_behind() { left_behind_ = true; }
  int process() const override { return process_; }

 private:
  MessageStream control_;
  FileDescriptor exit_;  // readable when the process has ended
  int process_ = -1;
  std::optional<WorkerExit> exit_state_;
  std::optional<Instant> killed_at_;
  bool left_behind_ = false;
};

}  // namespace motley
