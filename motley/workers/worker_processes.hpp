// The worker processes of a plan: starting them with their connections, talking to them without ever waiting, and
// ending them so that none is left behind.
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
#include "motley/workers/messages.hpp"

namespace motley {

// Owns an open descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();
  int get() const { return number_; }

 private:
  int number_;
};

// Length prefix and encoded message, as ControlConnection reads them.
std::string control_frame(const Message& message);

class WorkerProcess {
 public:
  // Runs `program --control-fd N` in a process group of its own, so that a Ctrl-C meant for the driver does not reach
  // it. `inherited` are the descriptors that it may keep. The kernel ends it when the calling thread ends. Throws an
  // environment error where the process cannot be made.
  WorkerProcess(std::string device, std::string stage, int rank, const std::filesystem::path& program,
                std::span<const int> inherited);
  ~WorkerProcess();  // ends it at once if it still runs
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  const std::string& device() const { return device_; }
  const std::string& stage() const { return stage_; }
  int rank() const { return rank_; }
  int process() const { return process_; }
  std::string name() const;  // "box/1 (rank 1 of stage r0/s0)"

  // Queues a frame and sends what the connection takes now; write_some() goes on when it is writable.
  void send(std::string_view frame);
  void write_some();
  bool has_unsent() const { return !unsent_.empty(); }

  // The messages that have come completely. Throws a peer error on a malformed one.
  std::vector<Message> read_messages();
  // No more messages will come.
  bool connection_ended() const { return connection_ended_; }
  void end_connection();

  struct Exit {
    bool by_signal = false;
    int number = 0;            // of the signal, or the exit code
    std::string text() const;  // "was killed by signal 9"
  };
  // Looks whether the process has ended, and remembers how.
  const std::optional<Exit>& look_for_exit();
  void kill();

  int control_descriptor() const { return control_.get(); }
  int exit_descriptor() const { return exit_.get(); }  // readable when the process has ended

 private:
  std::string device_, stage_;
  int rank_;
  Descriptor control_, exit_;
  int process_ = -1;
  std::string unsent_, received_;
  bool connection_ended_ = false;
  std::optional<Exit> exit_state_;
};

using WorkerProcesses = std::vector<std::unique_ptr<WorkerProcess>>;

struct LaunchOptions {
  std::filesystem::path model_folder;
  std::filesystem::path program;
  std::string transport;
  std::string backend;
  int threads = 1;
};

// One process per device of each stage, in the order of the stages and ranks, connected and told what to load.
WorkerProcesses start_workers(const ServePlan& plan, const LaunchOptions& options);

// Ends the connections, gives the workers `grace_s` to leave, and kills those that stay.
void end_workers(WorkerProcesses& workers, double grace_s);

}  // namespace motley
