#include "motley/workers/worker_messages.hpp"

#include <algorithm>

#include "motley/comm/net/wire.hpp"

namespace motley {
namespace {

constexpr WireProtocol protocol{.max_bytes = max_message_bytes,
                                .version = std::uint8_t{13},
                                .versions_hint = "motley and motley-worker must come from the same build"};

}  // namespace

Error error_of(const Failure& failure) {
  for (const ErrorCode code : {ErrorCode::negative, ErrorCode::input, ErrorCode::environment, ErrorCode::limit,
                               ErrorCode::peer, ErrorCode::interrupted})
    if (static_cast<std::int32_t>(code) == failure.code) return {code, failure.message, failure.hint};
  return {ErrorCode::internal, failure.message, failure.hint};
}

bool passes(const StepSequence& part, std::size_t number) {
  return part.stages == 0 || (part.stages > 0 && static_cast<std::size_t>(part.stages) > number);
}

std::size_t stages_passed(const Step& step, std::size_t of_route) {
  std::size_t most = 0;
  for (const StepSequence& sequence : step.sequences)
    most = std::max(most, sequence.stages == 0 ? of_route : static_cast<std::size_t>(sequence.stages));
  return most;
}

std::string encode(const Message& message) { return encode_message(protocol, message); }
Message decode(std::string_view bytes) { return decode_message<Message>(protocol, bytes); }

}  // namespace motley
