#include "motley/workers/remote_workers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/workers/control_connection.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley {
namespace {

constexpr double look_every_s = 0.1;  // whether something has broken meanwhile

}  // namespace

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
                heard_.notify();
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
  std::string wrong;
  if (!vouches_for(certified, hello.from_id))
    wrong = fmt::format("the certificate names \"{}\", not \"{}\"", certified, hello.from_id);
  else if (awaited == awaited_.end())
    wrong = fmt::format("the driver expects no worker for \"{}\"", hello.from_id);
  else if (hello.epoch != awaited->second)
    wrong = fmt::format("start {} is not {}", hello.epoch, awaited->second);
  else if (!admitted_.insert(hello.from_id).second)
    wrong = "a worker for this device is already connected";
  if (!wrong.empty()) last_refusal_ = fmt::format("\"{}\": {}", hello.from_id, wrong);
  return wrong;
}

void WorkerCalls::expect(const std::vector<std::string>& devices, std::uint64_t start) {
  const std::lock_guard lock(mutex_);
  for (const std::string& device : devices) {
    awaited_[device] = start;
    admitted_.erase(device);
    called_.erase(device);
  }
  last_refusal_.clear();
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

std::map<std::string, CalledWorker> WorkerCalls::wait(const std::vector<std::string>& devices, Instant until,
                                                      const std::function<void()>& broken) {
  for (;;) {
    heard_.clear();
    const std::vector<std::string> silent = missing(devices);
    if (silent.empty()) break;
    if (seconds_until(until) <= 0) {
      const std::lock_guard lock(mutex_);
      throw Error(ErrorCode::peer,
                  fmt::format("no worker has connected for {}{}", fmt::join(silent, ", "),
                              last_refusal_.empty() ? "" : "; the last connection was refused: " + last_refusal_),
                  "see what the workers' own machines say of them");
    }
    if (broken) broken();
    pollfd waiting{heard_.descriptor(), POLLIN, 0};
    ::poll(&waiting, 1, poll_timeout_ms(std::min(until, deadline_in(look_every_s))));
  }
  std::map<std::string, CalledWorker> called;
  for (const std::string& device : devices) called.emplace(device, *take(device));
  return called;
}

Workers launch_remote_workers(
    const ServePlan& plan, std::uint64_t epoch, std::map<std::string, CalledWorker> called,
    const LaunchOptions& options, const CacheHandover& handover,
    const std::function<std::unique_ptr<WorkerLink>(const std::string& device, ByteStream control)>& link,
    Workers& earlier) {
  FabricAddresses addresses;
  Workers workers;
  for (const Stage& stage : plan.stages)
    for (std::size_t rank = 0; rank < stage.devices.size(); ++rank) {
      const std::string& device = stage.devices[rank];
      Worker& worker = workers.emplace_back(Worker{device, stage.id, static_cast<int>(rank), nullptr});
      if (const auto stays = std::ranges::find(earlier, device, &Worker::device); stays != earlier.end()) {
        worker.link = std::move(stays->link);
        worker.fabric_address = stays->fabric_address;
        earlier.erase(stays);
      } else {
        CalledWorker& caller = called.at(device);
        worker.link = link(device, std::move(caller.control));
        worker.fabric_address = std::move(caller.fabric_address);
      }
      addresses.of_workers.push_back({.address = worker.fabric_address, .host = machine_of(device)});
    }
  send_launches(
      workers, plan, epoch, options, [&](const std::string&) { return addresses; }, handover);
  return workers;
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
