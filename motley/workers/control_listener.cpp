#include "motley/workers/control_listener.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/survive.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {
namespace {

constexpr double answer_s = 5;            // until a caller has taken the answer
constexpr std::size_t most_callers = 64;  // that have shown the key and are not answered yet
constexpr int deadline_check_ms = 500;

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

// A caller that has shown the key has a thread, so that one service delays no other.
struct ControlListener::State {
  struct Caller {
    int socket = -1;  // until it was answered: then the connection belongs to the service
    bool in_handshake = true;
    bool done = false;
    std::jthread thread = {};
  };

  State(RelayAccess given_access, std::map<std::string, ControlService> given_services, StrangerLimits limits)
      : access(std::move(given_access)),
        services(std::move(given_services)),
        strangers(limits, [this](const std::string&, const std::string& cause) { note_refusal(cause); }) {}

  const RelayAccess access;
  const std::map<std::string, ControlService> services;
  std::unique_ptr<Listener> listener;
  Wakeup wake;
  Strangers<LinkStranger> strangers;  // of the listener's thread alone
  mutable std::mutex mutex;
  std::string last_refusal;
  std::list<Caller> callers;
  std::jthread thread;

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested())
      survive([this] { listen(); }, [this](const std::exception& error) { note_refusal(error.what()); });
  }

  void listen() {
    std::vector<pollfd> waiting{{listener->descriptor(), POLLIN, 0}, {wake.descriptor(), POLLIN, 0}};
    strangers.watch(waiting);
    ::poll(waiting.data(), waiting.size(), strangers.empty() ? -1 : deadline_check_ms);
    strangers.take_in([this] { return listener->accept(); },
                      [this](FileDescriptor socket) {
                        const bool secured = must_be_secured(access, listener->address(), socket.get());
                        return LinkStranger(std::move(socket), secured ? &identity_of(access) : nullptr, access.key);
                      });
    for (LinkStranger& stranger : strangers.advance()) receive(std::move(stranger));
  }

  void receive(LinkStranger stranger) {
    std::list<Caller> ended;  // joined without the lock
    const auto held = std::make_shared<LinkStranger>(std::move(stranger));
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
    caller.socket = held->descriptor();
    try {
      caller.thread = std::jthread([this, &caller, held] { serve(caller, std::move(*held)); });
    } catch (const std::system_error& error) {
      callers.pop_back();
      last_refusal = fmt::format("cannot start a thread: {}", error.what());
    }
  }

  void serve(Caller& caller, LinkStranger stranger) {
    const auto note = [this](const std::exception& error) { note_refusal(error.what()); };
    bool welcome = false;
    survive([&] { welcome = greet(stranger); }, note);
    {
      const std::lock_guard lock(mutex);
      caller.in_handshake = false;
    }
    const LinkHello& hello = stranger.heard().hello;
    if (welcome) survive([&] { services.at(hello.group).take(hello, std::move(stranger.stream())); }, note);
    stranger.stream().close();
    const std::lock_guard lock(mutex);
    caller.done = true;
  }

  void note_refusal(std::string why) {
    const std::lock_guard lock(mutex);
    last_refusal = std::move(why);
  }

  // False where the caller is refused. Throws a peer error where it goes meanwhile.
  bool greet(LinkStranger& stranger) {
    const LinkHello& hello = stranger.heard().hello;
    ByteStream& stream = stranger.stream();
    const auto service = services.find(hello.group);
    const bool known = hello.purpose == LinkPurpose::control && service != services.end();
    const std::string wrong =
        known ? service->second.admit(hello, stream.encrypted() ? stream.peer_name() : std::string(hello.from_id))
              : "nothing but control connections is taken here";
    if (!wrong.empty()) note_refusal(fmt::format("\"{}\": {}", hello.from_id, wrong));
    try {
      answer(stream, stranger.heard(), {wrong.empty() ? LinkAnswer::welcome : LinkAnswer::refused, wrong}, access.key,
             deadline_in(answer_s));
    } catch (const std::exception&) {
      if (wrong.empty()) service->second.forget(hello);
      throw;
    }
    return wrong.empty();
  }
};

ControlListener::ControlListener(const std::string& address, RelayAccess access,
                                 std::map<std::string, ControlService> services, StrangerLimits strangers)
    : state_(std::make_unique<State>(std::move(access), std::move(services), strangers)) {
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
