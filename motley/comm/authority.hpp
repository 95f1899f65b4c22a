// The group's own certificate authority: whoever shows the join token gets a short-lived certificate that names it.
#pragma once

#include <string>
#include <string_view>

#include "motley/comm/byte_stream.hpp"

namespace motley {

class Authority {
 public:
  // A new key pair (P-256) and a certificate signed by itself, valid for ten years. Throws environment errors.
  static Authority create(const std::string& group);
  // From what save() gave. Throws an input error.
  static Authority load(const std::string& pem);
  std::string save() const;  // certificate and private key

  const std::string& certificate() const { return certificate_; }

  // A key pair and a certificate for one member, for client and server alike, valid from an hour ago (clocks differ).
  TlsIdentity issue(const std::string& member, int valid_days = 30) const;

 private:
  Authority(std::string certificate, std::string key) : certificate_(std::move(certificate)), key_(std::move(key)) {}
  std::string certificate_, key_;  // PEM
};

// 32 random bytes in hexadecimal.
std::string make_join_token();
// In constant time for texts of one length.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace motley
