#include "motley/comm/authority.hpp"

#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <array>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/openssl_objects.hpp"

namespace motley {
namespace {

constexpr long hour_s = 3600, day_s = 24 * hour_s;

void check(bool worked, const char* doing) {
  if (!worked) throw Error(ErrorCode::environment, openssl_errors(doing));
}

template <class Write>
std::string to_pem(Write write) {
  const OpensslBio sink(BIO_new(BIO_s_mem()));
  check(sink && write(sink.get()) == 1, "cannot write PEM");
  char* text = nullptr;
  const long size = BIO_get_mem_data(sink.get(), &text);
  return {text, static_cast<std::size_t>(size)};
}

std::string to_pem(X509* certificate) {
  return to_pem([&](BIO* sink) { return PEM_write_bio_X509(sink, certificate); });
}
std::string to_pem(EVP_PKEY* key) {
  return to_pem([&](BIO* sink) { return PEM_write_bio_PrivateKey(sink, key, nullptr, nullptr, 0, nullptr, nullptr); });
}

OpensslKey new_key() {
  OpensslKey key(EVP_EC_gen("P-256"));
  check(key != nullptr, "cannot make a key");
  return key;
}

void extend(X509* certificate, X509* issuer, int what, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, what, value);
  check(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, "cannot extend a certificate");
  X509_EXTENSION_free(extension);
}

// Everything but issuer and signature.
OpensslCertificate new_certificate(const std::string& name, EVP_PKEY* key, long valid_s) {
  OpensslCertificate certificate(X509_new());
  check(certificate != nullptr, "cannot make a certificate");
  X509* x509 = certificate.get();
  std::uint64_t serial = 0;
  check(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1, "no random numbers");
  check(X509_set_version(x509, 2) == 1 && ASN1_INTEGER_set_uint64(X509_get_serialNumber(x509), serial >> 1) == 1 &&
            X509_gmtime_adj(X509_getm_notBefore(x509), -hour_s) != nullptr &&
            X509_gmtime_adj(X509_getm_notAfter(x509), valid_s) != nullptr && X509_set_pubkey(x509, key) == 1 &&
            X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_UTF8,
                                       reinterpret_cast<const unsigned char*>(name.data()),
                                       static_cast<int>(name.size()), -1, 0) == 1,
        "cannot fill a certificate");
  return certificate;
}

}  // namespace

Authority Authority::create(const std::string& group) {
  const OpensslKey key = new_key();
  const OpensslCertificate certificate = new_certificate(group.substr(0, 64), key.get(), 3650 * day_s);
  X509* x509 = certificate.get();
  check(X509_set_issuer_name(x509, X509_get_subject_name(x509)) == 1, "cannot name an issuer");
  extend(x509, x509, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  extend(x509, x509, NID_key_usage, "critical,keyCertSign,cRLSign");
  extend(x509, x509, NID_subject_key_identifier, "hash");
  check(X509_sign(x509, key.get(), EVP_sha256()) != 0, "cannot sign a certificate");
  return {to_pem(x509), to_pem(key.get())};
}

Authority Authority::load(const std::string& pem) {
  const OpensslCertificate certificate(PEM_read_bio_X509(openssl_source(pem).get(), nullptr, nullptr, nullptr));
  const OpensslKey key(PEM_read_bio_PrivateKey(openssl_source(pem).get(), nullptr, nullptr, nullptr));
  if (!certificate || !key || X509_check_private_key(certificate.get(), key.get()) != 1)
    throw input_error(openssl_errors("no authority's certificate and key in PEM"));
  return {to_pem(certificate.get()), to_pem(key.get())};
}

std::string Authority::save() const { return certificate_ + key_; }

TlsIdentity Authority::issue(const std::string& member, int valid_days) const {
  if (member.empty() || member.size() > 64)
    throw input_error(fmt::format("a certificate cannot name \"{}\": 1 to 64 bytes", member));
  const OpensslCertificate issuer(PEM_read_bio_X509(openssl_source(certificate_).get(), nullptr, nullptr, nullptr));
  const OpensslKey issuer_key(PEM_read_bio_PrivateKey(openssl_source(key_).get(), nullptr, nullptr, nullptr));
  const OpensslKey key = new_key();
  const OpensslCertificate certificate = new_certificate(member, key.get(), valid_days * day_s);
  X509* x509 = certificate.get();
  check(X509_set_issuer_name(x509, X509_get_subject_name(issuer.get())) == 1, "cannot name an issuer");
  extend(x509, issuer.get(), NID_basic_constraints, "critical,CA:FALSE");
  extend(x509, issuer.get(), NID_key_usage, "critical,digitalSignature");
  extend(x509, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  check(X509_sign(x509, issuer_key.get(), EVP_sha256()) != 0, "cannot sign a certificate");
  return {.certificate = to_pem(x509), .key = to_pem(key.get()), .authority = certificate_};
}

std::string make_join_token() {
  std::array<unsigned char, 32> bytes{};
  check(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "no random numbers");
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace motley
