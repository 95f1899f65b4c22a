#include "motley/agent/agent_messages.hpp"

#include <fmt/format.h>

#include "motley/comm/net/wire.hpp"

namespace motley {
namespace {

// A version byte is not needed: the hello tells which program the agent runs.
constexpr WireProtocol protocol{.max_bytes = max_agent_message_bytes};

}  // namespace

std::string device_name(const std::string& machine, const OfferedDevice& device) {
  return fmt::format("{}/{}", machine, device.slot);
}

std::string encode_agent(const AgentMessage& message) { return encode_message(protocol, message); }
AgentMessage decode_agent(std::string_view bytes) { return decode_message<AgentMessage>(protocol, bytes); }
std::string encode_request(const ChunkRequest& request) { return encode_message(protocol, request); }
ChunkRequest decode_request(std::string_view bytes) { return decode_message<ChunkRequest>(protocol, bytes); }

}  // namespace motley
