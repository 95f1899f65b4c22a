#include "motley/trainer/layout/train_messages.hpp"

#include "motley/comm/net/wire.hpp"

namespace motley {
namespace {

constexpr WireProtocol train_protocol{.max_bytes = max_message_bytes};

}  // namespace

JobMessage encode_train(const TrainMessage& message) { return {encode_message(train_protocol, message)}; }

TrainMessage decode_train(const Message& message) {
  if (const auto* job = std::get_if<JobMessage>(&message))
    return decode_message<TrainMessage>(train_protocol, job->bytes);
  throw Error(ErrorCode::peer, "an unexpected message");
}

}  // namespace motley
