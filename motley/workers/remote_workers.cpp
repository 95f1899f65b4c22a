#include "motley/workers/remote_workers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>

#include <array>
#include <list>
#include <mutex>
#include <set>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/workers/control_connection.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley {
namespace {

constexpr double handshake_s = 5;         // what a caller that says nothing is granted
constexpr std::size_t most_callers = 64;  // that are in their handshake at once

constexpr std::string_view workers_group = "workers";

bool must_be_secured(const RelayAccess& access, const std::string& address, int socket) {
  return access.encryption == Encryption::always || is_relayed(address) || !peer_is_local(socket);
}

const TlsContext& identity_of(const RelayAccess& access) {
  if (!access.identity)
    throw Error(ErrorCode::peer,
                "a control connection that leaves the machine needs TLS, but this process has no certificate",
                "give both sides a certificate of the group's authority");
  return *access.identity;
}

}  // namespace

std::vector<Message> RemoteWorker::receive() { return receive_messages(control_); }

std::optional<WorkerExit> RemoteWorker::exit() {
  if (!control_.ended()) return std::nullopt;
  return WorkerExit{};
}

// ---- the driver's side ----

// The callers while wait_for() waits. Each has a thread for its handshake, so that a silent one delays no other.
class WorkerListener::Reception {
 public:
  Reception(const RelayAccess& access, const std::string& address, const std::vector<std::string>& devices,
            std::uint64_t epoch)
      : access_(access), address_(address), awaited_(devices.begin(), devices.end()), epoch_(epoch) {}
  ~Reception() {
    const std::lock_guard lock(mutex_);
    for (const Caller& caller : callers_)
      if (!caller.heard) ::shutdown(caller.socket, SHUT_RDWR);
  }  // and the threads end
  Reception(const Reception&) = delete;
  Reception& operator=(const Reception&) = delete;

  int descriptor() const { return heard_.descriptor(); }  // readable when a caller was heard

  void receive(FileDescriptor socket, Instant until) {
    const std::lock_guard lock(mutex_);
    std::erase_if(callers_, [](const Caller& caller) { return caller.heard; });
    if (callers_.size() >= most_callers) return;  // an honest one calls again
    Caller& caller = callers_.emplace_back();
    caller.socket = socket.get();
    caller.thread = std::jthread([this, &caller, until, held = std::make_shared<FileDescriptor>(std::move(socket))] {
      std::string device, refused;
      CalledWorker worker{.control = ByteStream(std::move(*held)), .fabric_address = {}};
      try {
        device = hear_caller(worker, until);
      } catch (const Error& error) {
        refused = error.what();
      }
      const std::lock_guard done(mutex_);
      caller.heard = true;  // from now on the connection belongs to the worker
      if (refused.empty())
        called_[device] = std::move(worker);
      else
        last_refusal_ = refused;
      heard_.notify();
    });
  }

  // True: all have called.
  bool complete() {
    heard_.clear();
    const std::lock_guard lock(mutex_);
    return called_.size() == awaited_.size();
  }
  std::map<std::string, CalledWorker> take() {
    const std::lock_guard lock(mutex_);
    return std::move(called_);
  }
  Error missing() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> silent;
    for (const std::string& device : awaited_)
      if (!called_.contains(device)) silent.push_back(device);
    return Error(ErrorCode::peer,
                 fmt::format("no worker has connected for {}{}", fmt::join(silent, ", "),
                             last_refusal_.empty() ? "" : "; the last connection was refused: " + last_refusal_),
                 fmt::format("start the workers of epoch {} with the driver's address, {}", epoch_, address_));
  }

 private:
  struct Caller {
    int socket = -1;
    bool heard = false;
    std::jthread thread;
  };

  // The device whose worker calls. Throws a peer error where it is refused.
  std::string hear_caller(CalledWorker& worker, Instant until) {
    ByteStream& stream = worker.control;
    const bool secured = must_be_secured(access_, address_, stream.descriptor());
    if (secured) stream.secure_as_server(identity_of(access_), until);
    const HeardHello heard = hear(stream, access_.key, until);
    const std::string& device = heard.hello.from_id;
    const std::string wrong = admit(heard.hello, secured ? stream.peer_name() : device);
    try {
      answer(stream, heard, {wrong.empty() ? LinkAnswer::welcome : LinkAnswer::refused, wrong}, access_.key, until);
    } catch (const Error&) {
      if (wrong.empty()) forget(device);
      throw;
    }
    if (!wrong.empty()) throw Error(ErrorCode::peer, fmt::format("\"{}\": {}", device, wrong));
    worker.fabric_address = heard.hello.word;
    return device;
  }

  // Why not; else the device is taken.
  std::string admit(const LinkHello& hello, const std::string& certified) {
    if (hello.purpose != LinkPurpose::control || hello.group != workers_group) return "this is a driver of workers";
    if (hello.epoch != epoch_) return fmt::format("epoch {} is not {}", hello.epoch, epoch_);
    if (certified != hello.from_id)
      return fmt::format("the certificate names \"{}\", not \"{}\"", certified, hello.from_id);
    const std::lock_guard lock(mutex_);
    if (!awaited_.contains(hello.from_id)) return fmt::format("the driver expects no worker for \"{}\"", hello.from_id);
    return admitted_.insert(hello.from_id).second ? "" : "a worker for this device is already connected";
  }
  void forget(const std::string& device) {
    const std::lock_guard lock(mutex_);
    admitted_.erase(device);
  }

  const RelayAccess& access_;
  const std::string address_;
  const std::set<std::string> awaited_;
  const std::uint64_t epoch_;
  Wakeup heard_;
  std::mutex mutex_;
  std::set<std::string> admitted_;
  std::map<std::string, CalledWorker> called_;
  std::string last_refusal_;
  std::list<Caller> callers_;  // last: its threads use the rest
};

WorkerListener::WorkerListener(const std::string& address, RelayAccess access) : access_(std::move(access)) {
  if (access_.key.empty())
    throw input_error("the driver has no key: any process could connect as a worker",
                      "give driver and workers the deployment's key");
  listener_ = listen_at(address, access_);
}

std::map<std::string, CalledWorker> WorkerListener::wait_for(const std::vector<std::string>& devices,
                                                             std::uint64_t epoch, Instant until) {
  Reception reception(access_, address(), devices, epoch);
  while (!reception.complete()) {
    std::array<pollfd, 2> waiting{pollfd{listener_->descriptor(), POLLIN, 0},
                                  pollfd{reception.descriptor(), POLLIN, 0}};
    ::poll(waiting.data(), waiting.size(), poll_timeout_ms(until));
    if (seconds_until(until) <= 0) throw reception.missing();
    if (FileDescriptor socket = listener_->accept())
      reception.receive(std::move(socket), std::min(until, deadline_in(handshake_s)));
  }
  return reception.take();
}

Workers launch_remote_workers(const ServePlan& plan, std::uint64_t epoch, WorkerListener& listener,
                              const LaunchOptions& options, Instant until) {
  const std::vector<std::string> devices = worker_devices(plan);
  auto called = listener.wait_for(devices, epoch, until);
  FabricAddresses addresses;
  for (const std::string& device : devices) addresses.of_workers.push_back({called.at(device).fabric_address});
  Workers workers;
  for (const Stage& stage : plan.stages)
    for (std::size_t rank = 0; rank < stage.devices.size(); ++rank)
      workers.push_back({.device = stage.devices[rank],
                         .stage = stage.id,
                         .rank = static_cast<int>(rank),
                         .link = std::make_unique<RemoteWorker>(std::move(called.at(stage.devices[rank]).control))});
  send_launches(workers, plan, epoch, options, [&](const std::string&) { return addresses; });
  return workers;
}

// ---- the worker's side ----

ByteStream call_driver(const std::string& address, const WorkerCall& call, const RelayAccess& access, Instant until) {
  ConnectFailure failure;
  FileDescriptor socket = connect_to(address, access, until, failure);
  if (!socket)
    throw Error(ErrorCode::peer, fmt::format("the driver at {} does not answer: {}", address, failure.cause));
  const bool secured = must_be_secured(access, address, socket.get());
  ByteStream stream(std::move(socket));
  if (secured) {
    stream.secure_as_client(identity_of(access), until);
    expect_coordinator(stream, address);
  }
  LinkHello hello;
  hello.purpose = LinkPurpose::control;
  hello.group = workers_group;
  hello.epoch = call.epoch;
  hello.from_id = call.device;
  hello.word = call.fabric_address;
  const LinkWelcome welcome = client_handshake(stream, hello, access.key, until);
  if (welcome.answer != LinkAnswer::welcome)
    throw Error(ErrorCode::peer, fmt::format("the driver at {} refuses: {}", address, welcome.cause));
  return stream;
}

}  // namespace motley
