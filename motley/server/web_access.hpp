// What a page in a browser may ask of the server. A browser sends such requests for any page, so that an address on
// loopback keeps none out; the page's origin and the name that it was loaded by are what tells them apart.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace motley {

struct WebAccess {
  std::string host;                       // that the server listens on
  bool loopback = true;                   // it is reachable from this machine alone
  std::vector<std::string> origins = {};  // whose pages may use the API, at whatever name; "*": all
};

// Throws an input error where it is neither "*" nor what a browser sends as a page's origin.
void check_origin(const std::string& origin);

// Why a request with these headers is refused; empty: it is not. Those that are empty were not sent: no browser leaves
// out the host, and none the origin of a page that changes something.
std::string web_refusal(const WebAccess& access, std::string_view host, std::string_view origin);

// What lets the page read an answer, as header lines; empty where there is nothing to say.
std::string web_headers(const WebAccess& access, std::string_view origin);

// What the answer to the question that a browser asks first has besides: a page may send the headers that it names.
std::vector<std::pair<std::string, std::string>> preflight_headers(std::string_view asked);

}  // namespace motley
