// How members and epochs cross process borders, in messages and in the coordinator's log alike (wire.hpp).
#pragma once

#include <set>

#include "motley/comm/membership/epoch_start.hpp"
#include "motley/comm/net/wire.hpp"

namespace motley {

constexpr std::size_t max_name_bytes = 256;

template <class Wire>
void texts(Wire& wire, typename Wire::template Ref<std::vector<std::string>> list);
template <>
inline void texts(WireWriter& wire, const std::vector<std::string>& list) {
  wire(static_cast<std::uint32_t>(list.size()));
  for (const std::string& text : list) wire(text, max_name_bytes);
}
template <>
inline void texts(WireReader& wire, std::vector<std::string>& list) {
  std::uint32_t count = 0;
  wire(count);
  if (count > max_group_members) wire.malformed("more names than a group has members");
  list.clear();
  for (std::uint32_t i = 0; i < count; ++i) wire(list.emplace_back(), max_name_bytes);
}

template <class Wire>
void fields(Wire& wire, typename Wire::template Ref<Member> m) {
  wire(m.id, max_name_bytes);
  wire(m.incarnation);
  wire(m.host, max_name_bytes);
  wire(m.address, max_name_bytes);
}

inline void check_epoch(const WireWriter&, const Epoch&) {}
inline void check_epoch(const WireReader& wire, const Epoch& epoch) {
  std::set<std::string> ids;
  for (const Member& member : epoch.members)
    if (!ids.insert(member.id).second) wire.malformed("an epoch that lists a member twice");
}

template <class Wire>
void fields(Wire& wire, typename Wire::template Ref<Epoch> m) {
  wire(m.group, max_name_bytes);
  wire(m.number);
  wire(m.members, max_group_members);
  wire(m.topology_version);
  wire(m.plan_digest, max_name_bytes);
  check_epoch(wire, m);
}

inline void check_holders(const WireWriter&, const EpochStart&) {}
inline void check_holders(const WireReader& wire, const EpochStart& start) {
  for (const std::uint32_t rank : start.holders)
    if (rank >= start.epoch.members.size()) wire.malformed("a holder that is not a rank");
}

template <class Wire>
void fields(Wire& wire, typename Wire::template Ref<EpochStart> m) {
  wire(m.epoch);
  wire(m.boundary);
  wire(m.holders, max_group_members);
  check_holders(wire, m);
}

}  // namespace motley
