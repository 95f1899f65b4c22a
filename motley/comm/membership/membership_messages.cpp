#include "motley/comm/membership/membership_messages.hpp"

#include <array>

#include "motley/comm/net/wire.hpp"

namespace motley {
namespace {

constexpr WireProtocol protocol{
    .max_bytes = max_control_bytes,
    .what = "control message",
    .version = std::uint8_t{4},
    .versions_hint = "all members of a group and its coordinator must come from builds of one protocol version"};

}  // namespace

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
