// What a group's coordinator and its members say to each other.
//
// Both sides say what holds, not what happened: a report is everything the coordinator needs to know of a member, a
// directive everything that a member needs to know of the group. Whatever is lost, doubled or late is healed by the
// next one; they are sent whenever they change, and as heartbeats in between. All that they tell only ever grows (epoch
// numbers, steps, incarnations), so that an old statement does no harm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "motley/comm/authority/authority.hpp"
#include "motley/comm/net/epoch.hpp"

namespace motley {

// An epoch in force: the list, and where it began.
struct EpochStart {
  Epoch epoch;
  std::uint64_t boundary = 0;  // the last step that was committed before it
  BoundedList<std::uint32_t, max_group_members>
      holders;  // ranks that hold the state of that step; all where `boundary` is 0
  std::string_view contradiction() const {
    for (const std::uint32_t rank : holders)
      if (rank >= epoch.members.size()) return "a holder that is not a rank";
    return {};
  }
  bool operator==(const EpochStart&) const = default;
};

constexpr std::size_t max_reason_bytes = 4096;
constexpr std::size_t max_certificate_bytes = 8192;

enum class StepVoteKind : std::uint8_t {
  none,
  commit,
  abort,
  learn,  // its part is done, and the step may be committed; but it does not hold the state, and will not by this step
  last = learn
};
inline bool commits(StepVoteKind kind) { return kind == StepVoteKind::commit || kind == StepVoteKind::learn; }

// How a member's part of a step went. A step is tried at most once in an epoch.
struct StepVote {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  StepVoteKind kind = StepVoteKind::none;
  bool operator==(const StepVote&) const = default;
};

enum class MemberPresence : std::uint8_t {
  joining,  // fetches what it needs before it can take part
  ready,    // may be put into an epoch
  leaving,  // wants to be left out of the next one
  last = leaving
};

// The way of a process through a group.
enum class MemberState {
  joining,  // fetches what it needs
  synced,   // could take part
  standby,  // prepared for a proposed epoch
  active,   // in the epoch in force
  suspect,  // so, but it has fallen silent, or others wait for it
  gone
};

struct MemberReport {
  BoundedText<max_name_bytes> group;
  Member member;              // incarnation 0: asks for one
  std::uint64_t process = 0;  // drawn by the process: the same question twice gets the same incarnation
  std::uint32_t stage = 0;    // of the pipeline: a policy may ask for one member of each
  MemberPresence presence = MemberPresence::joining;
  std::uint64_t state_step = 0;  // the last committed step whose state it holds
  std::uint64_t epoch = 0;       // the newest one in force that it has heard of
  std::uint64_t prepared = 0;    // the newest proposal whose connections stand
  std::uint64_t refused = 0;     // the newest proposal that could not be prepared,
  BoundedList<std::string, max_group_members, max_name_bytes> unreachable;  // and whose fault that is; empty: its own
  std::uint64_t revoked = 0;                                                // the newest epoch given up here,
  BoundedList<std::string, max_group_members, max_name_bytes> suspects;  // and the members it waited for without result
  std::uint64_t active_step = 0;                                         // begun in `epoch`
  StepVote vote;
  bool operator==(const MemberReport&) const = default;
};

enum class SeatAdmission : std::uint8_t {
  waiting,   // not a member yet: `reason` says why
  admitted,  // has an incarnation
  fenced,    // this incarnation is over; the process may come back as a new one
  last = fenced
};

struct CoordinatorDirective {
  BoundedText<max_name_bytes> group;
  std::uint64_t process = 0;  // whom it is for
  std::uint64_t incarnation = 0;
  SeatAdmission admission = SeatAdmission::waiting;
  BoundedText<max_reason_bytes> reason;  // for people: why nothing goes on, why it is fenced
  std::uint64_t epoch = 0;               // in force; 0: none yet
  BoundedList<EpochStart, 1> start;      // of that epoch, unless the member has said that it knows it
  std::uint64_t committed_step = 0;      // the last one,
  std::uint64_t committed_epoch = 0;     // and the epoch in which it was committed
  std::uint64_t revoked = 0;             // `epoch`, where it has been given up
  BoundedList<Epoch, 1> proposal;        // to be prepared, unless the member has answered
  bool operator==(const CoordinatorDirective&) const = default;
};

// The first thing that a member says on a connection.
struct ControlHello {
  BoundedText<max_name_bytes> group;
  BoundedText<max_name_bytes> token;
  bool operator==(const ControlHello&) const = default;
};

enum class RefusalKind : std::uint8_t { for_good, for_now, last = for_now };

// The last thing that a coordinator says on one.
struct ControlRefusal {
  BoundedText<max_reason_bytes> reason;
  BoundedText<max_reason_bytes> hint;
  RefusalKind kind = RefusalKind::for_good;
  bool operator==(const ControlRefusal&) const = default;
};

// Asks for a certificate: as the first message where the joiner has none yet, later in place of one that will expire.
struct CertificateRequest {
  BoundedText<max_name_bytes> group;
  BoundedText<max_name_bytes> token;
  BoundedText<max_name_bytes> member;      // the id that it is to name
  BoundedText<max_request_bytes> request;  // PKCS #10 in DER; the private key stays where it is
  bool operator==(const CertificateRequest&) const = default;
};

struct CertificateGrant {
  BoundedText<max_certificate_bytes> certificate;  // PEM
  BoundedText<max_certificate_bytes> authority;    // PEM
  std::uint32_t valid_s = 0;                       // from now on
  BoundedText<max_name_bytes> key = {};            // what members show each other; empty: the token
  bool operator==(const CertificateGrant&) const = default;
};

using ControlMessage = std::variant<ControlHello, MemberReport, CoordinatorDirective, ControlRefusal,
                                    CertificateRequest, CertificateGrant>;

constexpr std::size_t max_control_bytes = std::size_t{4} << 20;

// Little-endian binary (wire.hpp). Encoding throws a limit error where a message exceeds the maxima; decoding believes
// no length and no enumerator, and throws a peer error on anything malformed.
std::string encode_control(const ControlMessage& message);
ControlMessage decode_control(std::string_view bytes);

// "commit of step 7 in epoch 3": for messages.
std::string describe(const StepVote& vote);
std::string describe(MemberState state);

}  // namespace motley
