// A version of a group's membership. Every frame and every operation belongs to exactly one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>

#include "motley/base/bounded.hpp"

namespace motley {

constexpr std::size_t max_name_bytes = 256;
constexpr std::size_t max_group_members = 4096;

struct Member {
  BoundedText<max_name_bytes> id;       // of the place in the group; survives the process
  std::uint64_t incarnation = 0;        // rises with every process that takes the place: a zombie's is lower
  BoundedText<max_name_bytes> host;     // members of one host share memory (own_host(), sockets.hpp)
  BoundedText<max_name_bytes> address;  // "10.0.0.7:4711": where it takes connections of other members
  bool operator==(const Member&) const = default;
};

struct Epoch {
  BoundedText<max_name_bytes> group;
  std::uint64_t number = 0;
  BoundedList<Member, max_group_members> members;  // rank = place in this list; the coordinator's choice
  std::uint64_t topology_version = 0;
  BoundedText<max_name_bytes> plan_digest;  // of the collective plans in force; empty: the library's own
  std::string_view contradiction() const {
    std::set<std::string_view> ids;
    for (const Member& member : members)
      if (!ids.insert(member.id).second) return "an epoch that lists a member twice";
    return {};
  }
  bool operator==(const Epoch&) const = default;
};

inline bool one_host(const Epoch& epoch) {
  return std::ranges::all_of(epoch.members, [&](const Member& member) {
    return !member.host.empty() && member.host == epoch.members.front().host;
  });
}

}  // namespace motley
