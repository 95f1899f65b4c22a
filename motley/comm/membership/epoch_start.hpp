// Where an epoch began, which its members and the coordinator's log know alike.
#pragma once

#include <cstdint>
#include <string_view>

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

}  // namespace motley
