#include "motley/comm/net/strangers.hpp"

#include <algorithm>
#include <map>

namespace motley {

StrangerLimits strangers_with(std::size_t most_of_address) {
  return {.most = std::max(StrangerLimits{}.most, 2 * most_of_address), .most_of_address = most_of_address};
}

std::optional<std::size_t> stranger_to_evict(const std::vector<std::string>& addresses, const std::string& newcomer,
                                             const StrangerLimits& limits) {
  std::map<std::string, std::size_t> counts;
  for (const std::string& address : addresses) ++counts[address];
  std::string of = newcomer;
  if (counts[newcomer] < limits.most_of_address) {
    if (addresses.size() < limits.most) return std::nullopt;
    of = std::ranges::max_element(counts, {}, [](const auto& each) { return each.second; })->first;
  }
  return static_cast<std::size_t>(std::ranges::find(addresses, of) - addresses.begin());
}

LinkStranger::LinkStranger(FileDescriptor socket, const TlsContext* tls, const std::string& key)
    : stream_(std::move(socket)), key_(&key), securing_(tls != nullptr) {
  if (securing_)
    stream_.start_tls(*tls, TlsSide::server);
  else
    hearing_.begin(stream_);
}

bool LinkStranger::advance() {
  if (securing_) {
    if (!stream_.advance_tls()) return false;
    securing_ = false;
    hearing_.begin(stream_);
  }
  heard_ = hearing_.advance(stream_, *key_);
  return heard_.has_value();
}

}  // namespace motley
