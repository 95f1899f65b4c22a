// Bytes from a stranger, through everything that reads them before or after the handshake: frame headers, the stream's
// reader, one rank's execution, handshakes, messages between coordinator and members. Nothing may crash, hang or touch
// memory that is not its own; a lie ends in a peer error.
//
// As a libFuzzer target: ./dev fuzz comm. By itself: comm_fuzz [inputs] [seed] mutates valid traffic.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/random.hpp"
#include "motley/comm/collective/execution.hpp"
#include "motley/comm/membership/group_ledger.hpp"
#include "motley/comm/membership/membership_messages.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/hear_test.hpp"
#include "motley/comm/transport/collective_frame.hpp"
#include "motley/comm/transport/stream_lane.hpp"

namespace {

using namespace motley;

// Two ranks that exchange halves.
const CollectiveProgram& program() {
  static const CollectiveProgram exchange = [] {
    using enum CollectiveStepKind;
    CollectiveProgram both;
    both.ranks = 2;
    both.bytes = 128;
    both.steps = {
        {{send, 1, 0, 64, 128, {}}, {reduce, 1, 0, 0, 64, {}}, {send, 1, 0, 0, 64, {}}, {recv, 1, 0, 64, 128, {}}},
        {{send, 0, 0, 0, 64, {}}, {reduce, 0, 0, 64, 128, {}}, {send, 0, 0, 64, 128, {}}, {recv, 0, 0, 0, 64, {}}}};
    return both;
  }();
  return exchange;
}

constexpr std::size_t vector_bytes = 4000;

CollectiveFrame expected_frame() {
  static const CollectiveSchedule schedule = compile_schedule(program(), 0, 1024, 1, 64);
  CollectiveFrame frame;
  frame.shape.call = CollectiveCall::all_reduce;
  frame.shape.element = CollectiveElement::fp32;
  frame.shape.bytes = vector_bytes;
  frame.shape.plan = schedule.hash;
  return frame;
}

// Feeds an execution, as a communicator does.
class Rank : public FrameSink {
 public:
  Rank() : schedule_(compile_schedule(program(), 0, 1024, 1, 64)), data_(vector_bytes) {
    execution_.start(schedule_, expected_frame(), {data_}, 2);
  }
  std::span<std::byte> place(int peer, const CollectiveFrame& frame) noexcept override {
    return execution_.place(peer, frame);
  }
  Verdict on_frame(int peer, const CollectiveFrame& frame, std::span<const std::byte> payload) noexcept override {
    if (frame.kind != FrameKind::data) return Verdict::taken;
    while (execution_.next(peer) != nullptr) execution_.sent(peer);
    return execution_.on_frame(peer, frame, payload, Execution::Holding::yes) == Execution::Answer::later
               ? Verdict::later
               : Verdict::taken;
  }
  void on_lost(int, const std::string&) noexcept override {}

 private:
  CollectiveSchedule schedule_;
  std::vector<std::byte> data_;
  Execution execution_;
};

// The other end of a socket that says `bytes` and closes.
ByteStream speaker(std::span<const std::byte> bytes) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  [[maybe_unused]] const ssize_t sent = ::send(ends[0], bytes.data(), bytes.size(), MSG_NOSIGNAL);
  ::shutdown(ends[0], SHUT_WR);
  ::close(ends[0]);
  return ByteStream(FileDescriptor(ends[1]));
}

void read_frames(std::span<const std::byte> bytes) {
  // A checksum would keep the fuzzer outside: headers at multiples of eight bytes are given the right one.
  std::vector<std::byte> fixed(bytes.begin(), bytes.end());
  for (std::size_t at = 8; at + collective_header_bytes <= fixed.size(); at += 8) {
    std::uint32_t magic = 0;
    std::memcpy(&magic, fixed.data() + at, sizeof magic);
    if (magic != 0x434c544d) continue;
    const std::uint32_t checksum = crc32c(std::span(fixed).subspan(at, collective_header_bytes - 4));
    std::memcpy(fixed.data() + at + collective_header_bytes - 4, &checksum, sizeof checksum);
  }
  StreamLane lane(1 << 20);
  lane.adopt(speaker(fixed));
  Rank rank;
  try {
    for (int round = 0; round < 1000 && lane.read(1, rank, 4); ++round) lane.write();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer) throw;
  }
}

void read_handshake(std::span<const std::byte> bytes) {
  ByteStream stream = speaker(bytes);
  try {
    hear(stream, "key", std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer) throw;
  }
  ByteStream again = speaker(bytes);
  LinkHello hello;
  hello.group = "test";
  try {
    client_handshake(again, hello, "key", std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer) throw;
  }
}

// What is understood at all means these bytes and no others.
void read_control(std::span<const std::byte> bytes) {
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  try {
    if (encode_control(decode_control(text)) != text) std::abort();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer) throw;
  }
  try {
    GroupLedger ledger;
    apply_record(ledger, decode_record(text));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  if ((data[0] & 2) != 0)
    read_control(bytes);
  else if ((data[0] & 1) == 0)
    read_frames(bytes);
  else
    read_handshake(bytes);
  return 0;
}

#ifndef MOTLEY_LIBFUZZER
namespace {

// A stream's beginning and some frames, most of them as they should be.
std::vector<std::uint8_t> traffic(RandomStream& random) {
  std::vector<std::uint8_t> bytes(9, 0);
  for (int i = random.below(12); i > 0; --i) {
    CollectiveFrame frame = expected_frame();
    frame.chunk = random.below(4U);
    frame.step = random.below(2U);
    frame.length = frame.chunk == 3 ? 416 : 512;
    CollectiveHeader header;
    encode_header(frame, header);
    const auto* text = reinterpret_cast<const std::uint8_t*>(header.data());
    bytes.insert(bytes.end(), text, text + header.size());
    bytes.resize(bytes.size() + frame.length, static_cast<std::uint8_t>(random.below(256)));
  }
  return bytes;
}

std::vector<std::uint8_t> handshake(RandomStream& random) {
  std::vector<std::uint8_t> bytes{1, 0x4d, 0x54, 0x4c, 0x4c, 1, 0};
  const auto length = static_cast<std::uint16_t>(random.below(200));
  bytes.push_back(static_cast<std::uint8_t>(length));
  bytes.push_back(static_cast<std::uint8_t>(length >> 8));
  for (int i = 0; i < length; ++i) bytes.push_back(static_cast<std::uint8_t>(random.below(4)));
  return bytes;
}

std::vector<std::uint8_t> statement(RandomStream& random) {
  Epoch epoch;
  epoch.number = random.below(9U);
  for (std::uint64_t i = random.below(4U); i > 0; --i)
    epoch.members.push_back({"member" + std::to_string(i), i, "h", ""});
  std::string text;
  if (random.chance(0.3)) {
    MemberReport report;
    report.suspects = {"a", "b"};
    report.vote.kind = static_cast<StepVoteKind>(random.below(4U));
    text = encode_control(report);
  } else if (random.chance(0.3)) {
    text = encode_control(CertificateRequest{"g", "token", "member", std::string(random.below(512U), 'r')});
  } else if (random.chance(0.5)) {
    CoordinatorDirective directive;
    directive.start = {{epoch, 3, {}}};
    directive.proposal = {epoch};
    text = encode_control(directive);
  } else {
    text = encode_record(EpochProposed{epoch});
  }
  std::vector<std::uint8_t> bytes(1 + text.size(), 2);
  std::copy(text.begin(), text.end(), bytes.begin() + 1);
  return bytes;
}

}  // namespace

int main(int count, char** arguments) {
  const long inputs = count > 1 ? std::atol(arguments[1]) : 10'000;
  motley::RandomStream random(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1, 0);
  for (long i = 0; i < inputs; ++i) {
    std::vector<std::uint8_t> bytes = random.chance(0.6)   ? traffic(random)
                                      : random.chance(0.5) ? handshake(random)
                                                           : statement(random);
    for (int change = random.below(6); change > 0; --change) {
      const std::size_t at = random.below(bytes.size());
      switch (random.below(4)) {
        case 0: bytes[at] = static_cast<std::uint8_t>(random.below(256)); break;
        case 1: bytes[at] ^= static_cast<std::uint8_t>(1U << random.below(8U)); break;
        case 2: bytes.resize(at + 1); break;
        default: bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), 8, 0xff); break;
      }
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  return 0;
}
#endif
