// What a machine needs to join a deployment, in one line:
//
//   motley://10.0.0.5:4700/lab?driver=10.0.0.5:4701&authority=sha256:9f…&token=51c…
//
// and `relay=10.0.0.5:4702` where the driver has one for machines that others cannot connect to.
#pragma once

#include <string>

namespace motley {

struct Invitation {
  std::string coordinator;  // certifies members: "10.0.0.5:4700"
  std::string driver;       // takes control connections
  std::string group;
  std::string authority;  // the fingerprint of the only one to be believed
  std::string token;
  std::string relay = {};  // empty: there is none
  bool operator==(const Invitation&) const = default;
};

std::string to_text(const Invitation& invitation);
// Throws an input error that says what is missing or wrong, and never shows the token.
Invitation parse_invitation(const std::string& text);

}  // namespace motley
