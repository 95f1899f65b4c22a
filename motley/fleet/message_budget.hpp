// How much a member may say: several times what an agent has to say at the busiest, and little enough that the driver
// hears all others with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "motley/base/clock.hpp"

namespace motley {

class MessageBudget {
 public:
  static constexpr double messages_per_s = 500, most_messages = 2000;                              // at once
  static constexpr double bytes_per_s = std::size_t{4} << 20, most_bytes = std::size_t{64} << 20;  // at once

  // One more message, of this many bytes. False: it is too much.
  bool take(std::size_t bytes, Instant now = Clock::now()) {
    const double passed_s = std::chrono::duration<double>(now - std::exchange(at_, now)).count();
    messages_ = std::min(most_messages, messages_ + passed_s * messages_per_s) - 1;
    bytes_ = std::min(most_bytes, bytes_ + passed_s * bytes_per_s) - static_cast<double>(bytes);
    return messages_ >= 0 && bytes_ >= 0;
  }

 private:
  double messages_ = most_messages, bytes_ = most_bytes;  // that are left
  Instant at_ = Clock::now();
};

}  // namespace motley
