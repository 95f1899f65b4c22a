#include "motley/agent/invitation.hpp"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "motley/base/error.hpp"
#include "motley/comm/authority/authority.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

constexpr std::string_view scheme = "motley://";
constexpr std::size_t longest = 4096;
constexpr const char* copy_it = "copy the line that `motley up` prints, with its quotes";

[[noreturn]] void refuse(const std::string& what) { throw input_error("the link to join by " + what, copy_it); }

}  // namespace

std::string to_text(const Invitation& invitation) {
  return fmt::format("{}{}/{}?driver={}{}&authority={}&token={}", scheme, invitation.coordinator, invitation.group,
                     invitation.driver, invitation.relay.empty() ? "" : "&relay=" + invitation.relay,
                     invitation.authority, invitation.token);
}

Invitation parse_invitation(const std::string& text) {
  if (text.size() > longest || !text.starts_with(scheme)) refuse("must begin with motley://");
  const std::size_t slash = text.find('/', scheme.size()), question = text.find('?');
  if (slash == std::string::npos || question == std::string::npos || slash > question)
    refuse("must have the form motley://HOST:PORT/GROUP?driver=...");
  Invitation invitation;
  invitation.coordinator = text.substr(scheme.size(), slash - scheme.size());
  invitation.group = text.substr(slash + 1, question - slash - 1);
  std::map<std::string, std::string> given;
  for (std::size_t at = question + 1; at <= text.size();) {
    const std::size_t end = std::min(text.find('&', at), text.size());
    const std::string part = text.substr(at, end - at);
    const std::size_t equals = part.find('=');
    if (equals != std::string::npos) given[part.substr(0, equals)] = part.substr(equals + 1);
    at = end + 1;
  }
  for (const auto& [name, place] :
       {std::pair("driver", &invitation.driver), std::pair("authority", &invitation.authority),
        std::pair("token", &invitation.token)}) {
    *place = given[name];
    if (place->empty()) refuse(fmt::format("lacks `{}`: it is cut off", name));
  }
  invitation.relay = given["relay"];
  try {
    parse_host_port(invitation.coordinator);
    parse_host_port(invitation.driver);
    if (!invitation.relay.empty()) parse_host_port(invitation.relay);
    check_certificate_name(invitation.group);
    invitation.authority = authority_fingerprint(invitation.authority);
  } catch (const Error& error) {
    refuse(fmt::format("is damaged: {}", error.what()));
  }
  return invitation;
}

}  // namespace motley
