// The group's own certificate authority: a process that shows the join token gets a short-lived certificate that names
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "motley/comm/net/byte_stream.hpp"

namespace motley {

class Authority {
 public:
  // A new key pair (P-256) and a certificate signed by itself, which names the group, valid for ten years. Throws
  // environment errors, and an input error for a name of more than 64 bytes.
  static Authority create(const std::string& group);
  // From what save() gave, or the two in one text in any order. Throws an input error.
  static Authority load(const std::string& pem);
  std::string save() const { return certificate_ + key_; }

  const std::string& certificate() const { return certificate_; }  // PEM
  const std::string& key() const { return key_; }                  // PEM

  // A key pair and a certificate for one member, for client and server alike, valid from an hour ago (clocks differ).
  // Throws an input error where the name cannot stand in a certificate.
  TlsIdentity issue(const std::string& member, int valid_days = 30) const;
  // A certificate (PEM) for who has made the request (PKCS #10 in DER, at most max_request_bytes), under this name,
  // whatever the request says. Throws a peer error where it is malformed, is not signed with its own key, or that is of
  // another kind than P-256.
  std::string certify(std::string_view request, const std::string& member, double valid_s) const;

 private:
  Authority(std::string certificate, std::string key) : certificate_(std::move(certificate)), key_(std::move(key)) {}
  std::string certificate_, key_;
};

constexpr std::size_t max_request_bytes = 512;

// A key pair that stays where it was made, and the request for a certificate of it.
struct CertificateApplication {
  std::string key;      // PEM
  std::string request;  // PKCS #10 in DER
};
// Of a new key pair, or with this key (PEM). Throws an input error where that is not of the kind P-256.
CertificateApplication apply_for_certificate(const std::string& member, const std::string& key = {});

// Throws an input error unless the name can stand in a certificate: 1 to 64 bytes of UTF-8, none of them control
// characters.
void check_certificate_name(const std::string& name);

struct CertificateFacts {
  std::string name;         // the common name
  std::string fingerprint;  // "sha256:" and 64 hexadecimal digits
  std::string key;          // 32 hexadecimal digits that tell its public key from others
  std::int64_t expires_s;   // since 1970
};
// Of the first certificate in a PEM text. Throws an input error where there is none.
CertificateFacts certificate_facts(const std::string& pem);
// Whether the authority (PEM) has signed the certificate (PEM).
bool is_issued_by(const std::string& certificate, const std::string& authority);
// Of the authority that is given as its certificate in PEM, or as its fingerprint. Throws an input error.
std::string authority_fingerprint(const std::string& certificate_or_fingerprint);

// 32 random bytes in hexadecimal.
std::string make_join_token();
// In constant time for texts of one length.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace motley
