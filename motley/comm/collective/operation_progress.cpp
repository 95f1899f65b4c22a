#include "motley/comm/collective/operation_progress.hpp"

#include <fmt/format.h>

namespace motley {

OperationProgress::Answer OperationProgress::refuse(int peer, std::string cause) {
  if (!refusal_) refusal_ = Refusal{peer, fmt::format("rank {} {}", peer, cause)};
  return Answer::refused;
}

OperationProgress::Answer OperationProgress::refuse_shape(int peer, const CollectiveFrame& frame,
                                                          const OperationShape& own) {
  std::string detail = fmt::format("runs {} where this rank runs {}", describe(frame.shape), describe(own));
  if (describe(frame.shape) == describe(own)) detail += ", by another plan";
  return refuse(peer, fmt::format("as operation {} {}", frame.operation, detail));
}

OperationProgress::Answer OperationProgress::refuse_stranger(int peer, const CollectiveFrame& frame) {
  return refuse(peer, fmt::format("sent unexpected data: chunk {} step {}, {} bytes at {}", frame.chunk, frame.step,
                                  frame.length, frame.offset));
}

}  // namespace motley
