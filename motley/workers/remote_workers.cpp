#include "motley/workers/remote_workers.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/workers/control_connection.hpp"

namespace motley {
std::vector<Message> RemoteWorker::receive() { return receive_messages(control_); }

std::optional<WorkerExit> RemoteWorker::exit() {
  if (!control_.ended()) return std::nullopt;
  return WorkerExit{};
}

// ---- the driver's side ----

ControlService WorkerCalls::service() {
  return {.admit = [this](const LinkHello& hello, const std::string& certified) { return admit(hello, certified); },
          .take =
              [this](const LinkHello& hello, ByteStream stream) {
                const std::lock_guard lock(mutex_);
                const auto awaited = awaited_.find(hello.from_id);
                if (awaited == awaited_.end() || awaited->second != hello.epoch) return;
                called_[hello.from_id] = {.control = std::move(stream), .fabric_address = hello.word};
              },
          .forget =
              [this](const LinkHello& hello) {
                const std::lock_guard lock(mutex_);
                admitted_.erase(hello.from_id);
              }};
}

// Why not; else the device is taken.
std::string WorkerCalls::admit(const LinkHello& hello, const std::string& certified) {
  const std::lock_guard lock(mutex_);
  const auto awaited = awaited_.find(hello.from_id);
  if (!vouches_for(certified, hello.from_id))
    return fmt::format("the certificate names \"{}\", not \"{}\"", certified, hello.from_id);
  if (awaited == awaited_.end()) return fmt::format("the driver expects no worker for \"{}\"", hello.from_id);
  if (hello.epoch != awaited->second) return fmt::format("start {} is not {}", hello.epoch, awaited->second);
  if (!admitted_.insert(hello.from_id).second) return "a worker for this device is already connected";
  return {};
}

void WorkerCalls::expect(const std::vector<std::string>& devices, std::uint64_t start) {
  const std::lock_guard lock(mutex_);
  for (const std::string& device : devices) {
    awaited_[device] = start;
    admitted_.erase(device);
    called_.erase(device);
  }
}

std::vector<std::string> WorkerCalls::missing(const std::vector<std::string>& devices) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const std::string& device : devices)
    if (!called_.contains(device)) all.push_back(device);
  return all;
}

std::optional<CalledWorker> WorkerCalls::take(const std::string& device) {
  const std::lock_guard lock(mutex_);
  auto called = called_.extract(device);
  if (called.empty()) return std::nullopt;
  awaited_.erase(device);
  return std::move(called.mapped());
}

// ---- the worker's side ----

ByteStream call_driver(const std::string& address, const WorkerCall& call, const RelayAccess& access, Instant until) {
  LinkHello hello;
  hello.group = workers_service;
  hello.epoch = call.start;
  hello.from_id = call.device;
  hello.word = call.fabric_address;
  return call_service(address, hello, access, until);
}

}  // namespace motley
