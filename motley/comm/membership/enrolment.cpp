#include "motley/comm/membership/enrolment.hpp"

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <ctime>
#include <mutex>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/membership/membership_messages.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
EnrolmentRequest::EnrolmentRequest(const EnrolmentOptions& options)
    : options_(options),
      pin_(authority_fingerprint(options.authority)),
      application_(apply_for_certificate(options.member, options.key)) {}

namespace {

// Certificates are valid from an hour before they are made: by a clock that is further off, others' seem expired or
// not valid yet.
void check_clock(const CertificateGrant& grant) {
  constexpr double most_s = 3600;
  const double made_s = static_cast<double>(certificate_facts(grant.certificate).expires_s) - grant.valid_s;
  const double ahead_s = static_cast<double>(std::time(nullptr)) - made_s;
  if (std::abs(ahead_s) > most_s)
    throw Error(ErrorCode::peer,
                fmt::format("the clock of this machine is {:.1f} h {} the coordinator's", std::abs(ahead_s) / 3600,
                            ahead_s > 0 ? "ahead of" : "behind"),
                "set the clocks of both machines, for example by NTP");
}

}  // namespace

CertificateRequest EnrolmentRequest::message() const {
  return {options_.group, options_.token, options_.member, application_.request};
}

Enrolment EnrolmentRequest::accept(const CertificateGrant& grant) const {
  try {
    if (certificate_facts(grant.authority).fingerprint != pin_)
      throw Error(ErrorCode::peer, "it comes from another authority than the one given here",
                  "take the authority's fingerprint from `motley group show` of the coordinator's folder");
    if (const std::string name = certificate_facts(grant.certificate).name; name != options_.member)
      throw Error(ErrorCode::peer, fmt::format("it names \"{}\", not \"{}\"", name, options_.member));
    if (grant.valid_s == 0) throw Error(ErrorCode::peer, "its lifetime is zero");
    check_clock(grant);
    Enrolment enrolment{{grant.certificate, application_.key, grant.authority},
                        static_cast<double>(grant.valid_s),
                        grant.key.empty() ? options_.token : grant.key};
    TlsContext{enrolment.identity};  // throws where certificate and key are not a pair
    return enrolment;
  } catch (const Error& error) {
    throw Error(ErrorCode::peer, fmt::format("the coordinator's certificate for this member: {}", error.what()),
                error.hint());
  }
}

Enrolment enrol(const std::string& address, const EnrolmentOptions& options, double patience_s,
                const std::optional<TlsIdentity>& shown) {
  const EnrolmentRequest request(options);
  const auto until = deadline_in(patience_s);
  ConnectFailure failure;
  FileDescriptor socket = connect_tcp(address, until, failure);
  if (!socket)
    throw Error(ErrorCode::peer, fmt::format("no coordinator answers at {}: {}", address, failure.cause),
                "check that `motley group serve` runs there, and that no firewall blocks the port");
  ControlMessage answer;
  try {
    ByteStream stream(std::move(socket));
    stream.secure_as_client(shown ? TlsContext(*shown) : TlsContext::pinned_to(request.pin()), until);
    expect_coordinator(stream, address);
    BlockingMessageStream control(std::move(stream), max_control_bytes);
    control.send(encode_control(request.message()), until);
    const auto message = control.receive(until);
    if (!message) throw Error(ErrorCode::peer, fmt::format("the connection is lost: {}", control.cause()));
    answer = decode_control(*message);
  } catch (const Error& error) {
    throw Error(ErrorCode::peer, fmt::format("no certificate from the coordinator at {}: {}", address, error.what()),
                "start it with this group's authority: motley group serve --folder DIR");
  }
  if (const auto* refusal = std::get_if<ControlRefusal>(&answer))
    throw Error(refusal->kind == RefusalKind::for_now ? ErrorCode::peer : ErrorCode::input,
                fmt::format("the coordinator at {} refuses: {}", address, refusal->reason), refusal->hint);
  const auto* grant = std::get_if<CertificateGrant>(&answer);
  if (grant == nullptr)
    throw Error(ErrorCode::peer, fmt::format("the process at {} is not a coordinator", address),
                "give the address that `motley group serve` prints, and run the same motley on both sides");
  return request.accept(*grant);
}

EnrolledIdentity::EnrolledIdentity(std::vector<std::string> coordinators, EnrolmentOptions options, double patience_s,
                                   const std::optional<Enrolment>& earlier,
                                   std::function<void(const Enrolment&)> on_given)
    : coordinators_(std::move(coordinators)),
      options_(std::move(options)),
      patience_s_(patience_s),
      on_given_(std::move(on_given)) {
  if (earlier && earlier->valid_s > 0) {
    identity_ = earlier->identity;
    key_ = earlier->key;
  }
  thread_ = std::jthread([this, valid_s = renew()](const std::stop_token& stop) { keep(stop, valid_s); });
}

TlsIdentity EnrolledIdentity::identity() const {
  const std::lock_guard lock(mutex_);
  return identity_;
}

double EnrolledIdentity::renew() {
  Error last = input_error("the address of a coordinator is missing",
                           "give at least one HOST:PORT, as `motley group serve` prints it");
  const bool known = !key_.empty();
  std::optional<TlsIdentity> shown;
  if (known && certificate_facts(identity().certificate).expires_s > std::time(nullptr)) shown = identity();
  for (const std::string& address : coordinators_) {
    try {
      const Enrolment enrolment = enrol(address, options_, patience_s_, shown);
      context_.replace(enrolment.identity);
      if (!known) key_ = enrolment.key;
      if (on_given_) on_given_(enrolment);
      const std::lock_guard lock(mutex_);
      identity_ = enrolment.identity;
      return enrolment.valid_s;
    } catch (const Error& error) {
      last = error;
    }
  }
  throw Error(last);
}

void EnrolledIdentity::keep(const std::stop_token& stop, double valid_s) {
  std::mutex mutex;
  std::condition_variable_any bell;
  std::unique_lock lock(mutex);
  double pause_s = valid_s / 2;
  while (!bell.wait_for(lock, stop, std::chrono::duration<double>(pause_s), [&] { return stop.stop_requested(); })) {
    try {
      valid_s = renew();
      pause_s = valid_s / 2;
    } catch (const std::exception&) {
      pause_s = valid_s / 16;  // until it has expired there is time
    }
  }
}

}  // namespace motley
