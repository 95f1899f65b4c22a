#include "motley/fleet/deployment_group.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include <array>

#include "motley/base/error.hpp"
#include "motley/comm/net/file_descriptor.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

constexpr int certificate_days = 365;

std::string text_of(const in_addr& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &address, text.data(), text.size());
  return text.data();
}

// The address that a packet to a far one would carry; nothing is sent. Empty where there is no way there.
std::string address_of_default_route() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in far{};
  far.sin_family = AF_INET;
  far.sin_port = htons(9);
  ::inet_pton(AF_INET, "192.0.2.1", &far.sin_addr);  // of a network that is only for examples
  sockaddr_in own{};
  socklen_t size = sizeof own;
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&far), sizeof far) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return {};
  return text_of(own.sin_addr);
}

std::string address_of_first_interface() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  std::string found;
  for (const ifaddrs* one = all; one != nullptr && found.empty(); one = one->ifa_next)
    if (one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET && (one->ifa_flags & IFF_UP) != 0 &&
        (one->ifa_flags & IFF_LOOPBACK) == 0)
      found = text_of(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr);
  ::freeifaddrs(all);
  return found;
}

CoordinatorServerOptions server_options(const std::string& group, const std::string& listen, const std::string& key,
                                        const std::shared_ptr<GroupAdmission>& admission, const Authority& authority,
                                        const TlsIdentity& identity, const DeploymentGroup::Report& report,
                                        StrangerLimits strangers) {
  CoordinatorServerOptions options;
  options.group = group;
  options.listen = listen;
  options.key = key;
  options.admission = admission;
  options.identity = identity;
  options.authority = authority;
  options.strangers = strangers;
  if (report)
    options.on_certified = [report](const std::string& member, const std::string& host) {
      report("certified", fmt::format("{} at {}", member, host));
    };
  return options;
}

}  // namespace

std::string own_address() {
  for (const auto& find : {address_of_default_route, address_of_first_interface})
    if (const std::string found = find(); !found.empty()) return found;
  return "127.0.0.1";
}

std::string listen_address(const std::string& address) {
  const HostPort place = parse_host_port(address);
  in_addr four{};
  in6_addr six{};
  const bool number = ::inet_pton(AF_INET, place.host.c_str(), &four) == 1 ||
                      ::inet_pton(AF_INET6, place.host.c_str(), &six) == 1 || is_loopback(address);
  return number ? address : "0.0.0.0:" + place.port;
}

std::string found_at(const std::string& address, const std::string& listening) {
  if (listen_address(address) == address) return listening;
  return fmt::format("{}:{}", parse_host_port(address).host, parse_host_port(listening).port);
}

DeploymentGroup::DeploymentGroup(const std::string& name, const std::string& address, const Report& report,
                                 StrangerLimits strangers)
    : DeploymentGroup(name, address, make_join_token(), std::make_shared<GroupAdmission>(), Authority::create(name),
                      report, strangers) {}

DeploymentGroup::DeploymentGroup(const std::string& name, const SavedDeployment& kept, const Report& report,
                                 StrangerLimits strangers)
    : DeploymentGroup(name, kept.coordinator, kept.key, std::make_shared<GroupAdmission>(kept.admission),
                      Authority::load(kept.authority), report, strangers) {}

DeploymentGroup::DeploymentGroup(const std::string& name, const std::string& address, const std::string& key,
                                 std::shared_ptr<GroupAdmission> admission, Authority authority, const Report& report,
                                 StrangerLimits strangers)
    : name_(name),
      key_(key),
      admission_(std::move(admission)),
      authority_(std::move(authority)),
      identity_(authority_.issue(std::string(coordinator_name), certificate_days)),
      server_(server_options(name, listen_address(address), key_, admission_, authority_, identity_, report, strangers),
              open_sqlite_store(":memory:")),
      address_(found_at(address, server_.address())),
      thread_([this](const std::stop_token& stop) { server_.run(stop); }) {}

DeploymentGroup::~DeploymentGroup() = default;

RelayAccess DeploymentGroup::access() const { return {.key = key_, .identity = TlsContext(identity_)}; }

SavedDeployment DeploymentGroup::record(const std::string& driver, AdmissionRecord admission) const {
  return {.authority = authority_.save(),
          .key = key_,
          .coordinator = address_,
          .driver = driver,
          .admission = std::move(admission)};
}

Invitation DeploymentGroup::invitation(const std::string& driver, double token_lifetime_s) const {
  return {.coordinator = address_,
          .driver = driver,
          .group = name_,
          .authority = certificate_facts(authority_.certificate()).fingerprint,
          .token = admission_->new_token(token_lifetime_s)};
}

}  // namespace motley
