#include "motley/agent/join_link.hpp"

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

std::string to_text(const JoinLink& link) {
  return fmt::format("{}{}/{}?driver={}{}&authority={}&token={}", scheme, link.coordinator, link.group, link.driver,
                     link.relay.empty() ? "" : "&relay=" + link.relay, link.authority, link.token);
}

JoinLink parse_join_link(const std::string& text) {
  if (text.size() > longest || !text.starts_with(scheme)) refuse("must begin with motley://");
  const std::size_t slash = text.find('/', scheme.size()), question = text.find('?');
  if (slash == std::string::npos || question == std::string::npos || slash > question)
    refuse("must have the form motley://HOST:PORT/GROUP?driver=...");
  JoinLink link;
  link.coordinator = text.substr(scheme.size(), slash - scheme.size());
  link.group = text.substr(slash + 1, question - slash - 1);
  std::map<std::string, std::string> given;
  for (std::size_t at = question + 1; at <= text.size();) {
    const std::size_t end = std::min(text.find('&', at), text.size());
    const std::string part = text.substr(at, end - at);
    const std::size_t equals = part.find('=');
    if (equals != std::string::npos) given[part.substr(0, equals)] = part.substr(equals + 1);
    at = end + 1;
  }
  for (const auto& [name, place] :
       {std::pair("driver", &link.driver), std::pair("authority", &link.authority), std::pair("token", &link.token)}) {
    *place = given[name];
    if (place->empty()) refuse(fmt::format("lacks `{}`: it is cut off", name));
  }
  link.relay = given["relay"];
  try {
    parse_host_port(link.coordinator);
    parse_host_port(link.driver);
    if (!link.relay.empty()) parse_host_port(link.relay);
    check_certificate_name(link.group);
    link.authority = authority_fingerprint(link.authority);
  } catch (const Error& error) {
    refuse(fmt::format("is damaged: {}", error.what()));
  }
  return link;
}

}  // namespace motley
