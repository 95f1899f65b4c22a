#include "motley/comm/net/byte_stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/net/openssl_objects.hpp"

namespace motley {
namespace {

std::string tls_error() { return openssl_errors("TLS"); }

OpensslCertificate read_certificate(const std::string& pem, const char* what) {
  OpensslCertificate certificate(PEM_read_bio_X509(openssl_source(pem).get(), nullptr, nullptr, nullptr));
  if (!certificate)
    throw input_error(fmt::format("the {} is not a certificate in PEM: {}", what, tls_error()),
                      "give a text that starts with -----BEGIN CERTIFICATE-----");
  return certificate;
}

// OpenSSL's own sockets, but for the signal that ends the process when the other side has gone.
int quiet_write(BIO* bio, const char* bytes, int size) {
  int socket = -1;
  BIO_get_fd(bio, &socket);
  BIO_clear_retry_flags(bio);
  errno = 0;
  const auto put = static_cast<int>(::send(socket, bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL));
  if (put <= 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return put;
}

const BIO_METHOD* quiet_socket() {
  static const std::unique_ptr<BIO_METHOD, OpensslFree<BIO_METHOD, BIO_meth_free>> method = [] {
    const BIO_METHOD* plain = BIO_s_socket();
    std::unique_ptr<BIO_METHOD, OpensslFree<BIO_METHOD, BIO_meth_free>> quiet(
        BIO_meth_new(BIO_TYPE_SOCKET, "motley socket"));
    if (!quiet) throw Error(ErrorCode::environment, tls_error());
    BIO_meth_set_write(quiet.get(), quiet_write);
    BIO_meth_set_read(quiet.get(), BIO_meth_get_read(plain));
    BIO_meth_set_ctrl(quiet.get(), BIO_meth_get_ctrl(plain));
    BIO_meth_set_create(quiet.get(), BIO_meth_get_create(plain));
    BIO_meth_set_destroy(quiet.get(), BIO_meth_get_destroy(plain));
    return quiet;
  }();
  return method.get();
}

using OpensslContext = std::unique_ptr<SSL_CTX, OpensslFree<SSL_CTX, SSL_CTX_free>>;

OpensslContext new_context() {
  OpensslContext owned(SSL_CTX_new(TLS_method()));
  SSL_CTX* context = owned.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1)
    throw Error(ErrorCode::environment, tls_error());
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Connections live long: nothing would resume a session.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  // As many bytes as there are per system call, not one record's.
  SSL_CTX_set_read_ahead(context, 1);
  return owned;
}

OpensslContext context_of(const TlsIdentity& identity) {
  OpensslContext owned = new_context();
  SSL_CTX* context = owned.get();
  const OpensslCertificate certificate = read_certificate(identity.certificate, "member's certificate");
  const OpensslCertificate authority = read_certificate(identity.authority, "authority's certificate");
  const OpensslKey key(PEM_read_bio_PrivateKey(openssl_source(identity.key).get(), nullptr, nullptr, nullptr));
  if (!key)
    throw input_error("the member's key is not a private key in PEM: " + tls_error(),
                      "give a text that starts with -----BEGIN PRIVATE KEY-----, without a password");
  if (SSL_CTX_use_certificate(context, certificate.get()) != 1 || SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1 ||
      // For those who know the authority by its fingerprint alone.
      SSL_CTX_add1_chain_cert(context, authority.get()) != 1)
    throw input_error("certificate, key and authority do not fit together: " + tls_error(),
                      "take all three from one folder of `motley group create` or `motley group issue`");
  return owned;
}

// Among the certificates that the other side has sent, the one with the fingerprint is the authority.
int verify_pinned(X509_STORE_CTX* verification, void* pin) {
  STACK_OF(X509)* sent = X509_STORE_CTX_get0_untrusted(verification);
  for (int i = 0; i < sk_X509_num(sent); ++i) {
    X509* authority = sk_X509_value(sent, i);
    if (certificate_fingerprint(*authority) != *static_cast<const std::string*>(pin)) continue;
    const std::unique_ptr<STACK_OF(X509), void (*)(STACK_OF(X509)*)> trusted(
        sk_X509_new_null(), [](STACK_OF(X509) * stack) { sk_X509_free(stack); });
    if (!trusted || sk_X509_push(trusted.get(), authority) <= 0) return 0;
    X509_STORE_CTX_set0_trusted_stack(verification, trusted.get());
    return X509_verify_cert(verification);
  }
  X509_STORE_CTX_set_error(verification, X509_V_ERR_CERT_UNTRUSTED);
  return 0;
}

// What is wrong with the other side's certificate; empty where that was not the trouble.
std::string certificate_objection(const SSL* tls) {
  const long result = SSL_get_verify_result(tls);
  switch (result) {
    case X509_V_OK: return {};
    case X509_V_ERR_CERT_HAS_EXPIRED: return ": it has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID: return ": it is not valid yet, by the clock of this machine";
    case X509_V_ERR_CERT_UNTRUSTED:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY: return ": it is not from this group's authority";
    default: return std::string(": ") + X509_verify_cert_error_string(result);
  }
}

}  // namespace

struct TlsContext::Shared {
  std::mutex mutex;  // guards the pointer; connections hold the context that they were made from
  OpensslContext context;
  std::string pin = {};
};

TlsContext::TlsContext() : shared_(std::make_shared<Shared>()) {}
TlsContext::TlsContext(const TlsIdentity& identity) : TlsContext() { replace(identity); }

TlsContext TlsContext::for_strangers_too(const TlsIdentity& identity) {
  TlsContext made(identity);
  SSL_CTX_set_verify(made.shared_->context.get(), SSL_VERIFY_PEER, nullptr);
  return made;
}

TlsContext TlsContext::pinned_to(std::string fingerprint) {
  TlsContext made;
  made.shared_->pin = std::move(fingerprint);
  made.shared_->context = new_context();
  SSL_CTX_set_cert_verify_callback(made.shared_->context.get(), verify_pinned, &made.shared_->pin);
  return made;
}

void TlsContext::replace(const TlsIdentity& identity) {
  OpensslContext context = context_of(identity);
  const std::lock_guard lock(shared_->mutex);
  shared_->context = std::move(context);
}

std::unique_ptr<ssl_st, FreeTls> TlsContext::new_connection() const {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->context) throw Error(ErrorCode::peer, "this member has no certificate yet");
  std::unique_ptr<ssl_st, FreeTls> connection(SSL_new(shared_->context.get()));
  if (!connection) throw Error(ErrorCode::environment, tls_error());
  return connection;
}

void FreeTls::operator()(ssl_st* tls) const { SSL_free(tls); }

void ByteStream::close() {
  tls_.reset();
  socket_ = FileDescriptor();
}

ByteStream::Moved ByteStream::tls_result(int result) {
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ: wanted_ = POLLIN; return {0, State::blocked};
    case SSL_ERROR_WANT_WRITE: wanted_ = POLLOUT; return {0, State::blocked};
    case SSL_ERROR_ZERO_RETURN: cause_ = "closed by the other side"; break;
    case SSL_ERROR_SYSCALL:
      cause_ = errno != 0 ? std::strerror(errno) : "closed by the other side";
      ERR_clear_error();
      break;
    default: cause_ = tls_error();
  }
  return {0, State::closed};
}

ByteStream::Moved ByteStream::read(std::span<std::byte> into) { return read(into, {}); }

ByteStream::Moved ByteStream::read(std::span<std::byte> head, std::span<std::byte> tail) {
  if (tls_) {
    ERR_clear_error();  // what others left behind would be taken for this connection's
    errno = 0;
    const auto into = head.empty() ? tail : head;
    const int got = SSL_read(tls_.get(), into.data(), static_cast<int>(std::min<std::size_t>(into.size(), 1 << 30)));
    found_nothing_ = got <= 0;
    return got > 0 ? Moved{static_cast<std::size_t>(got), State::open} : tls_result(got);
  }
  std::array<iovec, 2> parts{iovec{head.data(), head.size()}, iovec{tail.data(), tail.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = tail.empty() ? 1 : 2;
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (got > 0) return {static_cast<std::size_t>(got), State::open};
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {0, State::blocked};
  cause_ = got == 0 ? "closed by the other side" : std::strerror(errno);
  return {0, State::closed};
}

ByteStream::Moved ByteStream::write(std::span<const std::byte> bytes) {
  if (tls_) {
    ERR_clear_error();
    errno = 0;
    const int put = SSL_write(tls_.get(), bytes.data(), static_cast<int>(std::min<std::size_t>(bytes.size(), 1 << 30)));
    if (put > 0) return {static_cast<std::size_t>(put), State::open};
    const Moved result = tls_result(put);
    if (result.state == State::closed) hear_alert();
    return result;
  }
  const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put >= 0) return {static_cast<std::size_t>(put), State::open};
  if (errno == EAGAIN || errno == EINTR) return {0, State::blocked};
  cause_ = std::strerror(errno);
  return {0, State::closed};
}

// The other side may have said why before it closed: a refused certificate is known only so.
void ByteStream::hear_alert() {
  std::byte next;
  ERR_clear_error();
  if (const int got = SSL_peek(tls_.get(), &next, 1); got <= 0 && SSL_get_error(tls_.get(), got) == SSL_ERROR_SSL)
    cause_ = tls_error();
  ERR_clear_error();
}

bool ByteStream::pending() const { return tls_ && !found_nothing_ && SSL_has_pending(tls_.get()) == 1; }

void ByteStream::wait(short events, Instant until) const {
  if (!wait_for(socket_.get(), events, until)) throw Error(ErrorCode::peer, "no answer in time");
}

void ByteStream::start_tls(const TlsContext& context, TlsSide side) {
  tls_ = context.new_connection();
  BIO* bio = BIO_new(quiet_socket());
  if (bio == nullptr) throw Error(ErrorCode::environment, tls_error());
  BIO_set_fd(bio, socket_.get(), BIO_NOCLOSE);
  SSL_set_bio(tls_.get(), bio, bio);
  side == TlsSide::server ? SSL_set_accept_state(tls_.get()) : SSL_set_connect_state(tls_.get());
}

bool ByteStream::advance_tls() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(tls_.get());
  if (result == 1) return true;
  if (tls_result(result).state == State::closed)
    throw Error(ErrorCode::peer, cause_ + certificate_objection(tls_.get()));
  return false;
}

void ByteStream::secure(const TlsContext& context, TlsSide side, Instant until) {
  start_tls(context, side);
  while (!advance_tls()) wait(wanted_, until);
}

void ByteStream::secure_as_client(const TlsContext& context, Instant until) { secure(context, TlsSide::client, until); }
void ByteStream::secure_as_server(const TlsContext& context, Instant until) { secure(context, TlsSide::server, until); }

void ByteStream::read_all(std::span<std::byte> into, Instant until) {
  while (!into.empty()) {
    const Moved moved = read(into);
    if (moved.state == State::closed) throw Error(ErrorCode::peer, cause_);
    if (moved.state == State::blocked) wait(tls_ ? wanted_ : POLLIN, until);
    into = into.subspan(moved.bytes);
  }
}

void ByteStream::write_all(std::span<const std::byte> bytes, Instant until) {
  while (!bytes.empty()) {
    const Moved moved = write(bytes);
    if (moved.state == State::closed) throw Error(ErrorCode::peer, cause_);
    if (moved.state == State::blocked) wait(tls_ ? wanted_ : POLLOUT, until);
    bytes = bytes.subspan(moved.bytes);
  }
}

std::string ByteStream::peer_name() const {
  if (!tls_) return {};
  const OpensslCertificate certificate(SSL_get1_peer_certificate(tls_.get()));
  if (!certificate) return {};
  std::array<char, 256> name{};
  const int length = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name.data(),
                                               static_cast<int>(name.size()));
  return length > 0 ? std::string(name.data(), static_cast<std::size_t>(length)) : std::string();
}

}  // namespace motley
