#include "motley/comm/authority/authority.hpp"

#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <span>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/net/openssl_objects.hpp"
#include "motley/comm/net/random_bytes.hpp"

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

OpensslCertificate read_certificate(const std::string& pem) {
  return OpensslCertificate(PEM_read_bio_X509(openssl_source(pem).get(), nullptr, nullptr, nullptr));
}
OpensslKey read_key(const std::string& pem) {
  return OpensslKey(PEM_read_bio_PrivateKey(openssl_source(pem).get(), nullptr, nullptr, nullptr));
}

std::string key_fingerprint(X509* certificate) {
  std::array<unsigned char, 32> digest{};
  check(X509_pubkey_digest(certificate, EVP_sha256(), digest.data(), nullptr) == 1, "cannot digest a key");
  return fmt::format("{:02x}", fmt::join(std::span(digest).first<16>(), ""));
}

void set_name(X509_NAME* subject, const std::string& name) {
  check(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(name.data()),
                                   static_cast<int>(name.size()), -1, 0) == 1,
        "cannot write a name into a certificate");
}

// Everything but issuer and signature.
OpensslCertificate new_certificate(const std::string& name, EVP_PKEY* key, long valid_s) {
  check_certificate_name(name);
  OpensslCertificate certificate(X509_new());
  check(certificate != nullptr, "cannot make a certificate");
  X509* x509 = certificate.get();
  std::uint64_t serial = 0;
  fill_random(std::as_writable_bytes(std::span(&serial, 1)));
  check(X509_set_version(x509, 2) == 1 && ASN1_INTEGER_set_uint64(X509_get_serialNumber(x509), serial >> 1) == 1 &&
            X509_gmtime_adj(X509_getm_notBefore(x509), -hour_s) != nullptr &&
            X509_gmtime_adj(X509_getm_notAfter(x509), valid_s) != nullptr && X509_set_pubkey(x509, key) == 1,
        "cannot fill a certificate");
  set_name(X509_get_subject_name(x509), name);
  return certificate;
}

// A member's certificate in PEM.
std::string sign(const Authority& authority, const std::string& member, EVP_PKEY* key, long valid_s) {
  const OpensslCertificate issuer = read_certificate(authority.certificate());
  const OpensslKey issuer_key = read_key(authority.key());
  const OpensslCertificate certificate = new_certificate(member, key, valid_s);
  X509* x509 = certificate.get();
  check(X509_set_issuer_name(x509, X509_get_subject_name(issuer.get())) == 1, "cannot name an issuer");
  extend(x509, issuer.get(), NID_basic_constraints, "critical,CA:FALSE");
  extend(x509, issuer.get(), NID_key_usage, "critical,digitalSignature");
  extend(x509, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  check(X509_sign(x509, issuer_key.get(), EVP_sha256()) != 0, "cannot sign a certificate");
  return to_pem(x509);
}

bool is_p256(const EVP_PKEY* key) {
  std::array<char, 64> curve{};
  return EVP_PKEY_get_base_id(key) == EVP_PKEY_EC &&
         EVP_PKEY_get_group_name(key, curve.data(), curve.size(), nullptr) == 1 &&
         std::string_view(curve.data()) == "prime256v1";
}

Error bad_request(const std::string& what) {
  ERR_clear_error();
  return {ErrorCode::peer, fmt::format("malformed request for a certificate: {}", what)};
}

}  // namespace

Authority Authority::create(const std::string& group) {
  const OpensslKey key = new_key();
  const OpensslCertificate certificate = new_certificate(group, key.get(), 3650 * day_s);
  X509* x509 = certificate.get();
  check(X509_set_issuer_name(x509, X509_get_subject_name(x509)) == 1, "cannot name an issuer");
  extend(x509, x509, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  extend(x509, x509, NID_key_usage, "critical,keyCertSign,cRLSign");
  extend(x509, x509, NID_subject_key_identifier, "hash");
  check(X509_sign(x509, key.get(), EVP_sha256()) != 0, "cannot sign a certificate");
  return {to_pem(x509), to_pem(key.get())};
}

Authority Authority::load(const std::string& pem) {
  const OpensslCertificate certificate = read_certificate(pem);
  const OpensslKey key = read_key(pem);
  if (!certificate || !key || X509_check_private_key(certificate.get(), key.get()) != 1)
    throw input_error(openssl_errors("the authority's certificate or key is missing (PEM)"),
                      "take both from one folder of `motley group create`");
  return {to_pem(certificate.get()), to_pem(key.get())};
}

TlsIdentity Authority::issue(const std::string& member, int valid_days) const {
  const OpensslKey key = new_key();
  return {.certificate = sign(*this, member, key.get(), valid_days * day_s),
          .key = to_pem(key.get()),
          .authority = certificate_};
}

std::string Authority::certify(std::string_view request, const std::string& member, double valid_s) const {
  if (request.size() > max_request_bytes)
    throw bad_request(fmt::format("{} bytes, more than {}", request.size(), max_request_bytes));
  const auto* place = reinterpret_cast<const unsigned char*>(request.data());
  const unsigned char* end = place + request.size();
  const OpensslRequest parsed(d2i_X509_REQ(nullptr, &place, static_cast<long>(request.size())));
  if (!parsed || place != end) throw bad_request("it is not PKCS #10");
  EVP_PKEY* key = X509_REQ_get0_pubkey(parsed.get());
  if (key == nullptr || !is_p256(key)) throw bad_request("its key is not of the kind P-256");
  if (X509_REQ_verify(parsed.get(), key) != 1) throw bad_request("it is not signed with its own key");
  return sign(*this, member, key, std::lround(valid_s));
}

CertificateApplication apply_for_certificate(const std::string& member, const std::string& known_key) {
  check_certificate_name(member);
  const OpensslKey key = known_key.empty() ? new_key() : read_key(known_key);
  if (!key || !is_p256(key.get()))
    throw input_error(openssl_errors("the text is not a key of the kind P-256"), "leave it out for a new key");
  const OpensslRequest request(X509_REQ_new());
  check(request && X509_REQ_set_version(request.get(), 0) == 1 && X509_REQ_set_pubkey(request.get(), key.get()) == 1,
        "cannot make a request");
  set_name(X509_REQ_get_subject_name(request.get()), member);
  check(X509_REQ_sign(request.get(), key.get(), EVP_sha256()) != 0, "cannot sign a request");
  const int size = i2d_X509_REQ(request.get(), nullptr);
  check(size > 0, "cannot write a request");
  std::string bytes(static_cast<std::size_t>(size), '\0');
  auto* place = reinterpret_cast<unsigned char*>(bytes.data());
  i2d_X509_REQ(request.get(), &place);
  return {to_pem(key.get()), std::move(bytes)};
}

void check_certificate_name(const std::string& name) {
  const bool printable = std::none_of(name.begin(), name.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
  // The number of characters, or -1 where it is not UTF-8.
  const int characters = ASN1_mbstring_ncopy(nullptr, reinterpret_cast<const unsigned char*>(name.data()),
                                             static_cast<int>(name.size()), MBSTRING_UTF8, B_ASN1_UTF8STRING, 0, 0);
  ERR_clear_error();
  if (!printable || characters < 0 || name.empty() || name.size() > 64)
    throw input_error(fmt::format("a certificate cannot name {:?}", name.substr(0, 80)),
                      "use a name of 1 to 64 bytes of UTF-8, without control characters");
}

CertificateFacts certificate_facts(const std::string& pem) {
  const OpensslCertificate certificate = read_certificate(pem);
  if (!certificate)
    throw input_error(openssl_errors("the text is not a certificate in PEM"),
                      "give a text that starts with -----BEGIN CERTIFICATE-----");
  std::array<char, 256> name{};
  const int length = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name.data(),
                                               static_cast<int>(name.size()));
  std::tm expires{};
  if (length < 0 || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &expires) != 1)
    throw input_error(openssl_errors("the certificate has no name or no last day"),
                      "use one of `motley group`: it has the member's id as its common name, and a last day");
  return {.name = std::string(name.data(), static_cast<std::size_t>(length)),
          .fingerprint = certificate_fingerprint(*certificate),
          .key = key_fingerprint(certificate.get()),
          .expires_s = static_cast<std::int64_t>(timegm(&expires))};
}

bool is_issued_by(const std::string& certificate, const std::string& authority) {
  const OpensslCertificate issued = read_certificate(certificate), issuer = read_certificate(authority);
  const bool signed_by = issued && issuer && X509_verify(issued.get(), X509_get0_pubkey(issuer.get())) == 1;
  ERR_clear_error();
  return signed_by;
}

std::string authority_fingerprint(const std::string& certificate_or_fingerprint) {
  constexpr std::string_view prefix = "sha256:";
  if (!certificate_or_fingerprint.starts_with(prefix)) return certificate_facts(certificate_or_fingerprint).fingerprint;
  const std::string digits = certificate_or_fingerprint.substr(prefix.size());
  if (digits.size() != 64 || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw input_error(fmt::format("\"{}\" is not a fingerprint", certificate_or_fingerprint.substr(0, 80)),
                      "give sha256: and 64 lower-case digits, as `motley group show DIR` prints them");
  return certificate_or_fingerprint;
}

std::string make_join_token() {
  std::array<unsigned char, 32> bytes{};
  fill_random(std::as_writable_bytes(std::span(bytes)));
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace motley
