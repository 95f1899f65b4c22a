// Owners of OpenSSL's objects.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <array>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "motley/base/error.hpp"

namespace motley {

template <class T, void (*release)(T*)>
struct OpensslFree {
  void operator()(T* object) const { release(object); }
};
using OpensslBio = std::unique_ptr<BIO, OpensslFree<BIO, BIO_free_all>>;
using OpensslCertificate = std::unique_ptr<X509, OpensslFree<X509, X509_free>>;
using OpensslRequest = std::unique_ptr<X509_REQ, OpensslFree<X509_REQ, X509_REQ_free>>;
using OpensslKey = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY, EVP_PKEY_free>>;

inline OpensslBio openssl_source(const std::string& text) {
  return OpensslBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// "sha256:" and 64 hexadecimal digits.
inline std::string certificate_fingerprint(const X509& certificate) {
  std::array<unsigned char, 32> digest{};
  if (X509_digest(&certificate, EVP_sha256(), digest.data(), nullptr) != 1)
    throw Error(ErrorCode::environment, "cannot digest a certificate");
  return fmt::format("sha256:{:02x}", fmt::join(digest, ""));
}

// What OpenSSL has noted since it was last asked: "TLS: certificate verify failed".
inline std::string openssl_errors(const char* doing) {
  std::string text = doing;
  for (unsigned long code = ERR_get_error(); code != 0; code = ERR_get_error()) {
    const char* reason = ERR_reason_error_string(code);
    text += std::string(": ") + (reason != nullptr ? reason : "error " + std::to_string(code));
  }
  return text;
}

}  // namespace motley
