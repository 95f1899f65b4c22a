#include "motley/comm/membership/membership_messages.hpp"

#include <array>

#include "motley/comm/authority/authority.hpp"
#include "motley/comm/membership/epoch_wire.hpp"

namespace motley {
namespace {

constexpr WireProtocol protocol{
    .max_bytes = max_control_bytes,
    .what = "control message",
    .version = std::uint8_t{4},
    .versions_hint = "all members of a group and its coordinator must come from builds of one protocol version"};
constexpr std::size_t max_reason_bytes = 4096;
constexpr std::size_t max_certificate_bytes = 8192;

}  // namespace

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<StepVote> m) {
  wire(m.epoch);
  wire(m.step);
  enumerator(wire, m.kind, StepVoteKind::learn);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<MemberReport> m) {
  wire(m.group, max_name_bytes);
  wire(m.member);
  wire(m.process);
  wire(m.stage);
  enumerator(wire, m.presence, MemberPresence::leaving);
  wire(m.state_step);
  wire(m.epoch);
  wire(m.prepared);
  wire(m.refused);
  texts<Wire>(wire, m.unreachable);
  wire(m.revoked);
  texts<Wire>(wire, m.suspects);
  wire(m.active_step);
  wire(m.vote);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<CoordinatorDirective> m) {
  wire(m.group, max_name_bytes);
  wire(m.process);
  wire(m.incarnation);
  enumerator(wire, m.admission, SeatAdmission::fenced);
  wire(m.reason, max_reason_bytes);
  wire(m.epoch);
  wire(m.start, 1);
  wire(m.committed_step);
  wire(m.committed_epoch);
  wire(m.revoked);
  wire(m.proposal, 1);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ControlHello> m) {
  wire(m.group, max_name_bytes);
  wire(m.token, max_name_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ControlRefusal> m) {
  wire(m.reason, max_reason_bytes);
  wire(m.hint, max_reason_bytes);
  enumerator(wire, m.kind, RefusalKind::for_now);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<CertificateRequest> m) {
  wire(m.group, max_name_bytes);
  wire(m.token, max_name_bytes);
  wire(m.member, max_name_bytes);
  wire(m.request, max_request_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<CertificateGrant> m) {
  wire(m.certificate, max_certificate_bytes);
  wire(m.authority, max_certificate_bytes);
  wire(m.valid_s);
  wire(m.key, max_name_bytes);
}

std::string encode_control(const ControlMessage& message) { return encode_message(protocol, message); }
ControlMessage decode_control(std::string_view bytes) { return decode_message<ControlMessage>(protocol, bytes); }

std::string describe(const StepVote& vote) {
  constexpr std::array kinds{"no vote on", "commit of", "abort of", "commit, without the state, of"};
  return fmt::format("{} step {} in epoch {}", kinds[static_cast<std::size_t>(vote.kind)], vote.step, vote.epoch);
}

std::string describe(MemberState state) {
  constexpr std::array texts{"joining", "synced", "standby", "active", "suspect", "gone"};
  return texts[static_cast<std::size_t>(state)];
}

}  // namespace motley
