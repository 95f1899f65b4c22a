// Workers that a driver reaches by address. Such a worker calls its driver (control_listener.hpp): its certificate
// names its device or the machine of that, the driver's the coordinator. The control messages then travel on the
// connection, and the workers connect their fabrics with each other.
//
// This is for workers that something else starts, on this machine or another: nothing here starts or kills a process,
// and how a worker ended is not known, only that its connection did.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/comm/net/message_stream.hpp"
#include "motley/workers/control_listener.hpp"
#include "motley/workers/worker_handle.hpp"

namespace motley {

class RemoteWorker : public WorkerHandle {
 public:
  explicit RemoteWorker(ByteStream control) : control_(std::move(control), max_message_bytes) {}

  void send(std::string_view message) override { control_.send(message); }
  void flush() override { control_.flush(); }
  std::vector<Message> receive() override;
  bool ended() const override { return control_.ended(); }
  std::optional<WorkerExit> exit() override;
  std::vector<pollfd> events() const override { return {{control_.descriptor(), control_.events(), 0}}; }
  bool pending() const override { return control_.pending(); }
  void close() override { control_.close(); }
  void kill() override { control_.close(); }
  int process() const override { return 0; }

 private:
  MessageStream control_;
};

// ---- the driver's side ----

constexpr const char* workers_service = "workers";

struct CalledWorker {
  ByteStream control;
  std::string fabric_address;
};

// The service of a ControlListener that workers call. Each start has a number, which the caller tells.
class WorkerCalls {
 public:
  ControlService service();

  // From now on workers of these devices are awaited, of this start; those that have called for another are dropped.
  void expect(const std::vector<std::string>& devices, std::uint64_t start);
  // Those of these devices whose workers have not called.
  std::vector<std::string> missing(const std::vector<std::string>& devices) const;
  // Takes a device's worker, where it has called.
  std::optional<CalledWorker> take(const std::string& device);

 private:
  std::string admit(const LinkHello& hello, const std::string& certified);

  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t> awaited_;  // starts by device
  std::set<std::string> admitted_;
  std::map<std::string, CalledWorker> called_;
};

// ---- the worker's side ----

struct WorkerCall {
  std::string device;
  std::uint64_t start = 0;
  std::string fabric_address;  // where it takes connections of the other workers
};
// The control connection. Throws as call_service() does.
ByteStream call_driver(const std::string& address, const WorkerCall& call, const RelayAccess& access, Instant until);

}  // namespace motley
