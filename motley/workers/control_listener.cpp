#include "motley/workers/control_listener.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {
namespace {

constexpr double handshake_s = 5;         // what a caller that says nothing is granted
constexpr std::size_t most_callers = 64;  // that are in their handshake at once

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

// Each caller has a thread, so that a silent one delays no other.
struct ControlListener::State {
  struct Caller {
    int socket = -1;  // until it was heard: then the connection belongs to the service
    bool in_handshake = true;
    bool done = false;
    std::jthread thread = {};
  };

  State(RelayAccess given_access, std::map<std::string, ControlService> given_services)
      : access(std::move(given_access)), services(std::move(given_services)) {}

  const RelayAccess access;
  const std::map<std::string, ControlService> services;
  std::unique_ptr<Listener> listener;
  Wakeup wake;
  mutable std::mutex mutex;
  std::string last_refusal;
  std::list<Caller> callers;
  std::jthread thread;

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::array<pollfd, 2> waiting{pollfd{listener->descriptor(), POLLIN, 0}, pollfd{wake.descriptor(), POLLIN, 0}};
      ::poll(waiting.data(), waiting.size(), -1);
      if (FileDescriptor socket = listener->accept()) receive(std::move(socket));
    }
  }

  void receive(FileDescriptor socket) {
    std::list<Caller> ended;  // joined without the lock
    const std::lock_guard lock(mutex);
    std::size_t in_handshake = 0;
    for (auto caller = callers.begin(); caller != callers.end();) {
      const auto next = std::next(caller);
      if (caller->done)
        ended.splice(ended.end(), callers, caller);
      else if (caller->in_handshake)
        ++in_handshake;
      caller = next;
    }
    if (in_handshake >= most_callers) return;  // an honest one calls again
    Caller& caller = callers.emplace_back();
    caller.socket = socket.get();
    caller.thread = std::jthread([this, &caller, held = std::make_shared<FileDescriptor>(std::move(socket))] {
      serve(caller, ByteStream(std::move(*held)));
    });
  }

  void serve(Caller& caller, ByteStream stream) {
    std::optional<LinkHello> hello;
    try {
      hello = hear_caller(stream, deadline_in(handshake_s));
    } catch (const Error& error) {
      note_refusal(error.what());
    }
    {
      const std::lock_guard lock(mutex);
      caller.in_handshake = false;
    }
    if (hello) services.at(hello->group).take(*hello, std::move(stream));
    const std::lock_guard lock(mutex);
    caller.done = true;
  }

  void note_refusal(std::string why) {
    const std::lock_guard lock(mutex);
    last_refusal = std::move(why);
  }

  // None where the caller is refused. Throws a peer error where it does not show who it is.
  std::optional<LinkHello> hear_caller(ByteStream& stream, Instant until) {
    const bool secured = must_be_secured(access, listener->address(), stream.descriptor());
    if (secured) stream.secure_as_server(identity_of(access), until);
    const HeardHello heard = hear(stream, access.key, until);
    const LinkHello& hello = heard.hello;
    const auto service = services.find(hello.group);
    const bool known = hello.purpose == LinkPurpose::control && service != services.end();
    const std::string wrong = known ? service->second.admit(hello, secured ? stream.peer_name() : hello.from_id)
                                    : "nothing but control connections is taken here";
    if (!wrong.empty()) note_refusal(fmt::format("\"{}\": {}", hello.from_id, wrong));
    try {
      answer(stream, heard, {wrong.empty() ? LinkAnswer::welcome : LinkAnswer::refused, wrong}, access.key, until);
    } catch (const Error&) {
      if (wrong.empty()) service->second.forget(hello);
      throw;
    }
    return wrong.empty() ? std::optional(hello) : std::nullopt;
  }
};

ControlListener::ControlListener(const std::string& address, RelayAccess access,
                                 std::map<std::string, ControlService> services)
    : state_(std::make_unique<State>(std::move(access), std::move(services))) {
  if (state_->access.key.empty())
    throw input_error("the driver has no key: any process could connect to it",
                      "give driver, agents and workers the deployment's key");
  state_->listener = listen_at(address, state_->access);
  state_->thread = std::jthread([state = state_.get()](const std::stop_token& stop) { state->run(stop); });
}

ControlListener::~ControlListener() {
  state_->thread.request_stop();
  state_->wake.notify();
  state_->thread.join();
  {
    const std::lock_guard lock(state_->mutex);
    for (const State::Caller& caller : state_->callers)
      if (caller.in_handshake) ::shutdown(caller.socket, SHUT_RDWR);
  }
  state_->callers.clear();  // joins
}

const std::string& ControlListener::address() const { return state_->listener->address(); }

std::string ControlListener::last_refusal() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last_refusal;
}

ByteStream call_service(const std::string& address, LinkHello hello, const RelayAccess& access, Instant until,
                        const std::string& member) {
  const std::string callee = member.empty() ? "the driver" : member;
  ConnectFailure failure;
  FileDescriptor socket = connect_to(address, access, until, failure);
  if (!socket) throw ServiceUnreachable(fmt::format("{} at {} does not answer: {}", callee, address, failure.cause));
  const bool secured = must_be_secured(access, address, socket.get());
  ByteStream stream(std::move(socket));
  if (secured) {
    stream.secure_as_client(identity_of(access), until);
    if (member.empty())
      expect_coordinator(stream, address);
    else if (const std::string name = stream.peer_name(); name != member)
      throw Error(ErrorCode::peer,
                  fmt::format("the certificate at {} names \"{}\", not \"{}\"", address, name, member));
  }
  hello.purpose = LinkPurpose::control;
  const LinkWelcome welcome = client_handshake(stream, hello, access.key, until);
  if (welcome.answer != LinkAnswer::welcome)
    throw input_error(fmt::format("{} at {} refuses: {}", callee, address, welcome.cause),
                      "see what the driver's own machine says, and run the same version of motley on both");
  return stream;
}

}  // namespace motley
