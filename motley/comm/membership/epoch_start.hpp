// Where an epoch began, which its members and the coordinator's log know alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "motley/comm/net/epoch.hpp"

namespace motley {

constexpr std::size_t max_group_members = 4096;

// An epoch in force: the list, and where it began.
struct EpochStart {
  Epoch epoch;
  std::uint64_t boundary = 0;          // the last step that was committed before it
  std::vector<std::uint32_t> holders;  // ranks that hold the state of that step; all where `boundary` is 0
  bool operator==(const EpochStart&) const = default;
};

}  // namespace motley
