// A version of a group's membership. Every frame and every operation belongs to exactly one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace motley {

struct Member {
  std::string id;                 // of the place in the group; survives the process
  std::uint64_t incarnation = 0;  // rises with every process that takes the place: a zombie's is lower
  std::string host;               // members of one host share memory (own_host(), sockets.hpp)
  std::string address;            // "10.0.0.7:4711": where it takes connections of other members
  bool operator==(const Member&) const = default;
};

struct Epoch {
  std::string group;
  std::uint64_t number = 0;
  std::vector<Member> members;  // rank = place in this list; the coordinator's choice
  std::uint64_t topology_version = 0;
  std::string plan_digest;  // of the collective plans in force; empty: the library's own
  bool operator==(const Epoch&) const = default;
};

inline bool one_host(const Epoch& epoch) {
  return std::ranges::all_of(epoch.members, [&](const Member& member) {
    return !member.host.empty() && member.host == epoch.members.front().host;
  });
}

}  // namespace motley
