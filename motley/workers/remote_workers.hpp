// Workers that a driver reaches by address. Such a worker calls its driver; both prove that they hold the deployment's
// key, and off this machine, or with Encryption::always, each shows a certificate of the group's authority: the
// worker's names its device, the driver's the coordinator. A connection that proves nothing is never handed out. The
// control messages then travel on it, and the workers connect their fabrics with each other.
//
// This is for workers that something else starts, on this machine or another: nothing here starts or kills a process,
// and how a worker ended is not known, only that its connection did.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "motley/comm/net/listener.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/plan/serve.hpp"
#include "motley/workers/worker_link.hpp"

namespace motley {

class RemoteWorker final : public WorkerLink {
 public:
  explicit RemoteWorker(ByteStream control) : control_(std::move(control), max_message_bytes) {}

  void send(std::string_view message) override { control_.send(message); }
  void flush() override { control_.flush(); }
  std::vector<Message> receive() override;
  bool ended() const override { return control_.ended(); }
  std::optional<WorkerExit> exit() override;
  std::vector<pollfd> events() const override { return {{control_.descriptor(), control_.events(), 0}}; }
  void close() override { control_.close(); }
  void kill() override { control_.close(); }
  int process() const override { return 0; }

 private:
  MessageStream control_;
};

// ---- the driver's side ----

struct CalledWorker {
  ByteStream control;
  std::string fabric_address;
};

class WorkerListener {
 public:
  // "10.0.0.7:0", or a relay (listener.hpp). Throws an input error for an empty key, an environment error where the
  // address cannot be listened on.
  WorkerListener(const std::string& address, RelayAccess access);
  const std::string& address() const { return listener_->address(); }

  // Waits until the worker of each device has called for this epoch; other callers are refused. Throws a peer error
  // that names those that have not when the deadline passes.
  std::map<std::string, CalledWorker> wait_for(const std::vector<std::string>& devices, std::uint64_t epoch,
                                               Instant until);

 private:
  class Reception;

  RelayAccess access_;
  std::unique_ptr<Listener> listener_;
};

// The workers of a plan, each of which calls `listener` until the deadline, launched.
Workers launch_remote_workers(const ServePlan& plan, std::uint64_t epoch, WorkerListener& listener,
                              const LaunchOptions& options, Instant until);

// ---- the worker's side ----

struct WorkerCall {
  std::string device;
  std::uint64_t epoch = 0;
  std::string fabric_address;  // where it takes connections of the other workers
};
// The control connection. Throws a peer error where the driver does not answer, is not the one expected, or refuses.
ByteStream call_driver(const std::string& address, const WorkerCall& call, const RelayAccess& access, Instant until);

}  // namespace motley
