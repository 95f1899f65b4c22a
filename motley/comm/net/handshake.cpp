#include "motley/comm/net/handshake.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <string_view>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/net/random_bytes.hpp"
#include "motley/comm/net/wire.hpp"

namespace motley {
namespace {

constexpr std::uint32_t link_magic = 0x4c4c544d;  // "MTLL"
constexpr std::uint16_t link_version = 1;
constexpr std::size_t nonce_bytes = 16, signature_bytes = 32;
constexpr std::size_t head_bytes = 8;  // magic, version, length
constexpr std::size_t max_message = 4096;

std::string random_nonce() {
  std::string nonce(nonce_bytes, '\0');
  fill_random(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

std::string sign(const std::string& key, std::string_view text) {
  std::string signature(signature_bytes, '\0');
  unsigned length = signature_bytes;
  // HMAC() takes no empty pointer for an empty key.
  HMAC(EVP_sha256(), key.c_str(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), reinterpret_cast<unsigned char*>(signature.data()), &length);
  return signature;
}

bool signed_with(const std::string& key, std::string_view text, std::string_view signature) {
  return signature.size() == signature_bytes &&
         CRYPTO_memcmp(sign(key, text).data(), signature.data(), signature_bytes) == 0;
}

// Magic, version, length, bytes.
void put(ByteStream& stream, const std::string& bytes, Instant until) {
  std::string message;
  WireWriter wire(message);
  wire(link_magic);
  wire(link_version);
  wire(static_cast<std::uint16_t>(bytes.size()));
  message += bytes;
  stream.write_all(std::as_bytes(std::span(message)), until);
}

// The length that a message's first bytes announce.
std::size_t announced_length(std::string_view head) {
  WireReader wire(head);
  std::uint32_t magic = 0;
  std::uint16_t version = 0, length = 0;
  wire(magic);
  wire(version);
  wire(length);
  if (magic != link_magic) throw Error(ErrorCode::peer, "the other side speaks another protocol");
  if (version != link_version)
    throw Error(ErrorCode::peer,
                fmt::format("the other side speaks version {}, this program version {}", version, link_version),
                "run the same version of motley on all members");
  if (length > max_message)
    throw Error(ErrorCode::peer, fmt::format("a handshake of {} bytes, more than {}", length, max_message));
  return length;
}

std::string get(ByteStream& stream, Instant until) {
  std::string head(head_bytes, '\0');
  stream.read_all(std::as_writable_bytes(std::span(head)), until);
  std::string bytes(announced_length(head), '\0');
  stream.read_all(std::as_writable_bytes(std::span(bytes)), until);
  return bytes;
}

// Appends what has arrived, up to `size`; false: the rest is still to come.
bool fill(ByteStream& stream, std::string& bytes, std::size_t size) {
  while (bytes.size() < size) {
    const std::size_t have = bytes.size();
    bytes.resize(size);
    const ByteStream::Moved moved = stream.read(std::as_writable_bytes(std::span(bytes)).subspan(have));
    bytes.resize(have + moved.bytes);
    if (moved.state == ByteStream::State::closed) throw Error(ErrorCode::peer, stream.cause());
    if (moved.state == ByteStream::State::blocked) return false;
  }
  return true;
}

std::string_view tail(std::string_view bytes, std::size_t count) {
  if (bytes.size() < count) throw Error(ErrorCode::peer, "a handshake that is too short");
  return bytes.substr(bytes.size() - count);
}

// Both signatures cover both nonces, so that neither can be replayed nor turned round.
std::string covered(char side, const std::string& challenge, std::string_view body) {
  return side + challenge + std::string(body);
}

}  // namespace

LinkWelcome client_handshake(ByteStream& stream, const LinkHello& hello, const std::string& key, Instant until) {
  const std::string challenge = get(stream, until);
  if (challenge.size() != nonce_bytes) throw Error(ErrorCode::peer, "a challenge of the wrong size");
  std::string body;
  WireWriter wire(body);
  wire(hello);
  const std::string nonce = random_nonce();
  body += nonce;
  put(stream, body + sign(key, covered('d', challenge, body)), until);

  const std::string reply = get(stream, until);
  const std::string_view signature = tail(reply, signature_bytes);
  const std::string_view said = std::string_view(reply).substr(0, reply.size() - signature_bytes);
  WireReader reader(said);
  LinkWelcome welcome;
  reader(welcome);
  reader.finish();
  // A refusal may come from one who has another key.
  if (welcome.answer != LinkAnswer::refused && !signed_with(key, covered('a', challenge + nonce, said), signature))
    throw Error(ErrorCode::peer, "the other side does not have this group's key",
                "give all members the same key, or token");
  return welcome;
}

void Hearing::begin(ByteStream& stream) {
  challenge_ = random_nonce();
  put(stream, challenge_, Clock::now());
}

std::optional<HeardHello> Hearing::advance(ByteStream& stream, const std::string& key) {
  if (!fill(stream, arrived_, head_bytes)) return std::nullopt;
  if (!fill(stream, arrived_, head_bytes + announced_length(std::string_view(arrived_).substr(0, head_bytes))))
    return std::nullopt;
  const std::string_view message = std::string_view(arrived_).substr(head_bytes);
  const std::string_view signature = tail(message, signature_bytes);
  const std::string_view body = message.substr(0, message.size() - signature_bytes);
  HeardHello heard{.hello = {}, .nonces = challenge_ + std::string(tail(body, nonce_bytes))};
  const auto turn_away = [&](const std::string& cause) {
    answer(stream, heard, {LinkAnswer::refused, cause}, key, Clock::now());
    throw Error(ErrorCode::peer, fmt::format("\"{}\" refused: {}", heard.hello.from_id, cause));
  };
  if (static_cast<std::uint8_t>(body.front()) > static_cast<std::uint8_t>(LinkPurpose::last))
    turn_away("unknown purpose");
  WireReader reader(body.substr(0, body.size() - nonce_bytes));
  reader(heard.hello);
  reader.finish();
  if (!signed_with(key, covered('d', challenge_, body), signature)) turn_away("not this group's key");
  return heard;
}

void answer(ByteStream& stream, const HeardHello& heard, const LinkWelcome& welcome, const std::string& key,
            Instant until) {
  std::string said;
  WireWriter wire(said);
  wire(welcome);
  put(stream, said + sign(key, covered('a', heard.nonces, said)), until);
}

void expect_coordinator(const ByteStream& stream, const std::string& address) {
  if (const std::string name = stream.peer_name(); name != coordinator_name)
    throw Error(ErrorCode::peer,
                fmt::format("the certificate at {} names \"{}\", not \"{}\"", address, name, coordinator_name),
                "is that the coordinator's address, and its folder the one that `motley group create` made?");
}

bool vouches_for(std::string_view certified, std::string_view id) {
  return !certified.empty() && id.starts_with(certified) &&
         (id.size() == certified.size() || id[certified.size()] == '/');
}

std::string objection(const LinkHello& hello, const Epoch& epoch, int rank, const std::string& certified) {
  if (hello.group != epoch.group) return fmt::format("group \"{}\" is not \"{}\"", hello.group, epoch.group);
  if (hello.epoch != epoch.number) return fmt::format("epoch {} is not {}", hello.epoch, epoch.number);
  if (hello.to != rank) return fmt::format("this is rank {}, not {}", rank, hello.to);
  if (hello.from >= epoch.members.size() || hello.from == rank) return fmt::format("no rank {} may call", hello.from);
  const Member& member = epoch.members[hello.from];
  if (hello.from_id != member.id)
    return fmt::format("rank {} of epoch {} is \"{}\", not \"{}\"", hello.from, epoch.number, member.id, hello.from_id);
  if (hello.incarnation != member.incarnation)
    return fmt::format("incarnation {} of \"{}\" is not {}, the one in epoch {}", hello.incarnation, member.id,
                       member.incarnation, epoch.number);
  if (!certified.empty() && !vouches_for(certified, member.id))
    return fmt::format("the certificate names \"{}\", not \"{}\"", certified, member.id);
  return {};
}

}  // namespace motley
