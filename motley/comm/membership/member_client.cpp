#include "motley/comm/membership/member_client.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/membership/enrolment.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/comm/net/random_bytes.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {

std::uint64_t draw_process_number() {
  std::uint64_t number = 0;
  fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

struct MemberClient::State {
  MemberClientOptions options;
  ActionHandler handler;
  Wakeup wakeup;

  mutable std::mutex mutex;  // guards the membership and the words of trouble
  Membership membership;
  std::string trouble;

  // Of a member that asks for its certificates, on the client's thread.
  std::optional<EnrolmentRequest> renewal;
  Instant renew_at = Instant::max(), expires_at = Instant::min();

  std::jthread thread;

  State(MemberClientOptions given, ActionHandler handle)
      : options(std::move(given)),
        handler(std::move(handle)),
        membership(options.group, options.member, draw_process_number(), options.stage, options.state_step) {
    if (options.authority.empty()) return;
    authority_fingerprint(options.authority);  // throws at once where it is none
    check_certificate_name(options.member.id);
    if (!options.identity) options.identity.emplace();
  }

  void handle(const MembershipActions& actions) {
    for (const MembershipAction& action : actions) handler(action);
  }

  void note(const std::string& what) {
    const std::lock_guard lock(mutex);
    trouble = what;
  }

  // Sleeps, or less where there is something to do.
  void pause(double seconds) const {
    wait_for(wakeup.descriptor(), POLLIN, deadline_in(seconds));
    wakeup.clear();
  }

  void run(const std::stop_token& stop) {
    std::size_t attempt = 0;
    while (!stop.stop_requested()) {
      try {
        const std::string& address = options.coordinators[attempt % options.coordinators.size()];
        if (!options.authority.empty() && Clock::now() >= expires_at)
          take(enrol(address, enrolment_options(), options.patience_s));
        converse(address, stop);
      } catch (const Error& error) {
        note(with_hint(error));
      } catch (const std::exception& error) {  // this machine is short of something, which may pass
        note(error.what());
      }
      ++attempt;
      // The first coordinator may only have been restarted: soon again, and ever less often while none answers.
      if (!stop.stop_requested()) pause(std::min(0.5, 0.01 * static_cast<double>(attempt)));
    }
  }

  EnrolmentOptions enrolment_options() const {
    return {options.group, options.token, options.authority, options.member.id};
  }

  void take(const Enrolment& enrolment) {
    options.identity->replace(enrolment.identity);
    renewal.reset();
    expires_at = deadline_in(enrolment.valid_s);
    renew_at = deadline_in(enrolment.valid_s / 2);
  }

  // Asks again where there is no answer.
  void renew(MessageStream& stream) {
    if (Clock::now() < renew_at) return;
    if (!renewal) renewal.emplace(enrolment_options());
    stream.send(encode_control(renewal->message()));
    renew_at = Clock::now() + std::max(duration_of(1), (expires_at - Clock::now()) / 8);
  }

  MessageStream dial(const std::string& address) const {
    const auto until = deadline_in(options.patience_s);
    ConnectFailure failure;
    FileDescriptor socket = connect_tcp(address, until, failure);
    if (!socket)
      throw Error(ErrorCode::peer, fmt::format("no coordinator answers at {}: {}", address, failure.cause),
                  "check that `motley group serve` runs there, and that no firewall blocks the port");
    const bool is_local = peer_is_local(socket.get());
    ByteStream stream(std::move(socket));
    if (options.identity) {
      stream.secure_as_client(*options.identity, until);
      expect_coordinator(stream, address);
    } else if (!is_local)
      throw input_error(
          fmt::format("the coordinator at {} is on another machine, but this member has no certificate", address),
          "give it the files that `motley group issue` makes, or the group's token and authority to ask for one");
    return MessageStream(std::move(stream), max_control_bytes);
  }

  // Until the connection ends or the coordinator falls silent.
  void converse(const std::string& address, const std::stop_token& stop) {
    MessageStream stream = dial(address);
    stream.send(encode_control(ControlHello{options.group, options.token}));
    MemberReport sent;
    bool anything_sent = false;
    auto send_at = Clock::now(), heard_at = Clock::now();
    while (!stop.stop_requested()) {
      const MemberReport report = current_report();
      if (stream.flushed() && (!anything_sent || Clock::now() >= send_at || report != sent)) {
        stream.send(encode_control(report));
        sent = report;
        anything_sent = true;
        send_at = deadline_in(options.heartbeat_s);
        renew(stream);
      }
      const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(send_at - Clock::now()).count() + 1;
      std::array<pollfd, 2> waiting{pollfd{stream.descriptor(), stream.events(), 0},
                                    pollfd{wakeup.descriptor(), POLLIN, 0}};
      ::poll(waiting.data(), waiting.size(), stream.pending() ? 0 : static_cast<int>(std::max<long>(wait, 0)));
      if (waiting[1].revents != 0) wakeup.clear();
      stream.flush();
      for (ReadingTurn turn(stream); const auto message = turn.next();) {
        heard_at = Clock::now();
        hear(decode_control(*message), address);
      }
      if (stream.ended())
        throw Error(ErrorCode::peer, fmt::format("the control connection is lost: {}", stream.cause()));
      if (Clock::now() - heard_at > duration_of(options.patience_s))
        throw Error(ErrorCode::peer, fmt::format("the coordinator at {} is silent", address),
                    "check that its machine is reachable; this member retries");
    }
    // The last report may say that this process leaves.
    stream.send(encode_control(current_report()));
  }

  MemberReport current_report() const {
    const std::lock_guard lock(mutex);
    return membership.report();
  }

  void hear(const ControlMessage& message, const std::string& address) {
    if (const auto* refusal = std::get_if<ControlRefusal>(&message))
      throw Error(ErrorCode::peer, fmt::format("the coordinator at {} refuses: {}", address, refusal->reason),
                  refusal->hint);
    if (const auto* grant = std::get_if<CertificateGrant>(&message); grant != nullptr && renewal)
      return take(renewal->accept(*grant));
    const auto* directive = std::get_if<CoordinatorDirective>(&message);
    if (directive == nullptr)
      throw Error(ErrorCode::peer, fmt::format("the process at {} is not a coordinator", address),
                  "give the address that `motley group serve` prints, and run the same motley on both sides");
    const std::lock_guard lock(mutex);
    trouble.clear();
    handle(membership.directive(*directive));
  }
};

MemberClient::MemberClient(MemberClientOptions options, ActionHandler handler) {
  if (options.coordinators.empty())
    throw input_error("the address of a coordinator is missing",
                      "give at least one HOST:PORT, as `motley group serve` prints it");
  state_ = std::make_unique<State>(std::move(options), std::move(handler));
  state_->thread = std::jthread([state = state_.get()](const std::stop_token& stop) { state->run(stop); });
}

MemberClient::~MemberClient() {
  state_->thread.request_stop();
  state_->wakeup.notify();
}

void MemberClient::access(const std::function<MembershipActions(Membership&)>& change) {
  const std::lock_guard lock(state_->mutex);
  state_->handle(change(state_->membership));
  state_->wakeup.notify();
}

std::string MemberClient::trouble() const {
  const std::lock_guard lock(state_->mutex);
  return state_->trouble;
}

}  // namespace motley
