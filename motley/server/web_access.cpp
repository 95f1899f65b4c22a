#include "motley/server/web_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/string.hpp>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::size_t most_quoted_bytes = 100;

bool equal_names(std::string_view a, std::string_view b) {
  return boost::beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

// Of "NAME", "NAME:PORT", "[::1]" or "[::1]:PORT".
std::string_view without_port(std::string_view host) {
  const auto colon = host.rfind(':');
  const bool has_port = colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos &&
                        host.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return has_port ? host.substr(0, colon) : host;
}

std::string_view without_scheme(std::string_view origin) {
  const auto scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

bool names_loopback(std::string_view name) {
  if (equal_names(name, "localhost")) return true;
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  boost::system::error_code failed;
  const auto address = boost::asio::ip::make_address(std::string(name), failed);
  return !failed && address.is_loopback();
}

bool allows(const WebAccess& access, std::string_view origin) {
  return std::ranges::any_of(access.origins,
                             [&](const std::string& each) { return each == "*" || equal_names(each, origin); });
}

// A page that may use the API may also call the server by the name of the page: what a proxy that passes names on
// needs.
bool is_own_host(const WebAccess& access, std::string_view host) {
  const std::string_view name = without_port(host);
  return names_loopback(name) || equal_names(name, access.host) ||
         std::ranges::any_of(access.origins, [&](const std::string& origin) {
           return origin == "*" || equal_names(without_port(without_scheme(origin)), name);
         });
}

std::string quoted(std::string_view text) {
  std::string shown(text.substr(0, most_quoted_bytes));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return fmt::format("`{}{}`", shown, text.size() > most_quoted_bytes ? "..." : "");
}

}  // namespace

void check_origin(const std::string& origin) {
  const std::string_view rest = without_scheme(origin);
  const bool odd = std::ranges::any_of(origin, [](char c) { return c <= ' ' || c > '~'; });
  if (origin == "*" || (!rest.empty() && !odd && rest.find_first_of("/?#*") == std::string_view::npos)) return;
  throw input_error(fmt::format("\"{}\" is not the origin of a page", origin),
                    "give scheme, host and port as in https://chat.example.com or http://localhost:3000, or * for all");
}

std::string web_refusal(const WebAccess& access, std::string_view host, std::string_view origin) {
  // A page whose own name leads here would otherwise count as one of this server's.
  if (access.loopback && !host.empty() && !is_own_host(access, host))
    return fmt::format(
        "the Host {} is not this server's; call it by 127.0.0.1 or localhost, or start it with `--cors "
        "https://NAME` for a name that a proxy passes on",
        quoted(host));
  if (origin.empty() || allows(access, origin) || (!host.empty() && equal_names(without_scheme(origin), host)))
    return {};
  return fmt::format("pages of {} may not use this server; start it with `--cors ORIGIN` to allow them",
                     quoted(origin));
}

std::string web_headers(const WebAccess& access, std::string_view origin) {
  if (access.origins.empty()) return {};
  std::string lines = "Vary: Origin\r\n";
  if (!origin.empty() && allows(access, origin))
    lines += fmt::format("Access-Control-Allow-Origin: {}\r\nAccess-Control-Expose-Headers: Retry-After\r\n", origin);
  return lines;
}

// OpenAI's client for browsers adds headers of its own, so any that is asked for is allowed.
std::vector<std::pair<std::string, std::string>> preflight_headers(std::string_view asked) {
  return {{"Access-Control-Allow-Methods", "GET, POST"},
          {"Access-Control-Allow-Headers", std::string(asked)},
          {"Access-Control-Max-Age", "600"}};
}

}  // namespace motley
