#include "motley/comm/net/relay.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/environment_error.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/random_bytes.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {
namespace {

constexpr std::array<char, 4> opening_magic{'M', 'T', 'L', 'R'};
constexpr std::uint8_t opening_version = 1;
constexpr std::size_t most_strangers = 128;  // connections that have not yet said what they want
constexpr std::size_t most_mailboxes = 4096, most_tickets = 4096;
constexpr std::size_t flow_bytes = 128 << 10;  // on their way, in each direction of a joined pair

RelayTicket new_ticket() {
  RelayTicket ticket{};
  fill_random(std::as_writable_bytes(std::span(ticket)));
  return ticket;
}

// What goes from one end to the other.
class Flow {
 public:
  bool wants_input() const { return !ended_ && filled_ < flow_bytes; }
  bool wants_output() const { return sent_ < filled_; }
  bool done() const { return closed_; }

  // False where one of the ends is broken.
  bool move(int from, int to) {
    if (buffer_.empty()) buffer_.resize(flow_bytes);
    for (;;) {
      ssize_t got = 0, gone = 0;
      if (wants_input()) {
        got = ::recv(from, buffer_.data() + filled_, flow_bytes - filled_, MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN && errno != EINTR) return false;
        ended_ = got == 0;
        filled_ += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
      }
      if (wants_output()) {
        gone = ::send(to, buffer_.data() + sent_, filled_ - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (gone < 0 && errno != EAGAIN && errno != EINTR) return false;
        sent_ += static_cast<std::size_t>(std::max<ssize_t>(gone, 0));
      }
      if (sent_ == filled_) sent_ = filled_ = 0;
      if (got <= 0 && gone <= 0) break;
      if (gone <= 0 || filled_ == flow_bytes) break;  // others have their turn
    }
    if (ended_ && sent_ == filled_ && !closed_) {
      closed_ = true;
      ::shutdown(to, SHUT_WR);
    }
    return true;
  }

 private:
  std::vector<std::byte> buffer_;
  std::size_t sent_ = 0, filled_ = 0;
  bool ended_ = false, closed_ = false;  // at the one end, and told the other
};

struct Joined {
  std::array<FileDescriptor, 2> ends;
  std::array<std::string, 2> owners;  // of the mailbox, and who called
  std::array<Flow, 2> flows;          // from the end of the same number
  bool broken = false;

  short events(std::size_t end) const {
    return static_cast<short>((flows[end].wants_input() ? POLLIN : 0) | (flows[1 - end].wants_output() ? POLLOUT : 0));
  }
  void move() {
    for (const std::size_t end : {0U, 1U}) broken = broken || !flows[end].move(ends[end].get(), ends[1 - end].get());
    broken = broken || (flows[0].done() && flows[1].done());
  }
};

// A connection that has not yet said what it wants.
struct Stranger {
  FileDescriptor socket;
  Instant until;
  std::array<std::byte, relay_opening_bytes> bytes{};
  std::size_t have = 0;
};

struct Mailbox {
  ByteStream control;
  std::string owner;  // the name in its certificate; empty without TLS
  bool lost = false;
};

struct Ticket {
  Instant until;
  std::array<std::string, 2> owners;  // see Joined
  FileDescriptor first;               // of the two who have it
};

}  // namespace

std::array<std::byte, relay_opening_bytes> encode_opening(const RelayOpening& opening) {
  std::array<std::byte, relay_opening_bytes> bytes{};
  std::memcpy(bytes.data(), opening_magic.data(), opening_magic.size());
  bytes[4] = static_cast<std::byte>(opening_version);
  bytes[5] = static_cast<std::byte>(opening.kind);
  std::memcpy(bytes.data() + 8, opening.ticket.data(), opening.ticket.size());
  return bytes;
}

std::optional<RelayOpening> decode_opening(std::span<const std::byte> bytes) {
  if (bytes.size() != relay_opening_bytes ||
      std::memcmp(bytes.data(), opening_magic.data(), opening_magic.size()) != 0 ||
      std::to_integer<std::uint8_t>(bytes[4]) != opening_version ||
      std::to_integer<std::uint8_t>(bytes[5]) > static_cast<std::uint8_t>(RelayOpening::Kind::data))
    return std::nullopt;
  RelayOpening opening{static_cast<RelayOpening::Kind>(bytes[5]), {}};
  std::memcpy(opening.ticket.data(), bytes.data() + 8, opening.ticket.size());
  return opening;
}

struct Relay::State {
  RelayOptions options;
  std::optional<TlsContext> tls;
  ListeningSocket listening;
  Wakeup wakeup;

  // Of the loop alone.
  std::list<Stranger> strangers;
  std::list<Joined> joined;
  Instant beaten_at = Clock::now();

  std::mutex mutex;  // guards what follows: handshakes have threads of their own
  std::map<std::string, Mailbox> mailboxes;
  std::map<RelayTicket, Ticket> tickets;
  std::size_t handshake_count = 0;
  std::list<std::jthread> handshakes;

  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  std::string objection_to(const std::string& member) const {
    return options.objection ? options.objection(member) : "";
  }

  // ---- control connections ----

  // Why this cannot be had; empty where it was done. `ticket` is set for a call.
  std::string listen_in(const std::string& mailbox, const std::string& owner) {
    const std::lock_guard lock(mutex);
    if (mailbox.empty() || mailbox.size() > longest_mailbox)
      return fmt::format("a mailbox needs a name of 1 to {} bytes, found {}", longest_mailbox, mailbox.size());
    const auto found = mailboxes.find(mailbox);
    if (found != mailboxes.end() && found->second.owner != owner)
      return fmt::format("\"{}\" listens in mailbox \"{}\"", found->second.owner, mailbox);
    if (found == mailboxes.end() && mailboxes.size() >= most_mailboxes) return "the relay has too many mailboxes";
    return {};
  }

  std::string call(const std::string& mailbox, const std::string& caller, RelayTicket& ticket) {
    const std::lock_guard lock(mutex);
    const auto found = mailboxes.find(mailbox);
    if (found == mailboxes.end() || found->second.lost)
      return fmt::format("no member listens in mailbox \"{}\"", mailbox);
    if (tickets.size() >= most_tickets) return "the relay has too many open calls";
    ticket = new_ticket();
    if (!tell(found->second, ticket)) {
      wakeup.notify();  // it goes
      return fmt::format("mailbox \"{}\" was lost", mailbox);
    }
    tickets[ticket] = {deadline_in(relay_ticket_s), {found->second.owner, caller}, {}};
    return {};
  }

  // A listener that does not take sixteen bytes at once is gone; half a ticket would garble the next.
  static bool tell(Mailbox& mailbox, const RelayTicket& ticket) {
    const auto bytes = std::as_bytes(std::span(ticket));
    if (mailbox.control.write(bytes).bytes != bytes.size()) mailbox.lost = true;
    return !mailbox.lost;
  }

  void handshake(ByteStream stream, bool secured) {
    const auto until = deadline_in(options.handshake_s);
    const std::string peer = peer_address(stream.descriptor());
    try {
      if (secured != tls.has_value())
        throw Error(ErrorCode::peer, tls ? "came without TLS" : "came with TLS, but the relay has no certificate");
      if (tls) stream.secure_as_server(*tls, until);
      const HeardHello heard = hear(stream, options.key, until);
      const std::string& mailbox = heard.hello.word;
      const std::string owner = stream.peer_name();
      RelayTicket ticket{};
      std::string objection = objection_to(owner);
      if (objection.empty())
        objection = heard.hello.purpose == LinkPurpose::relay_listen ? listen_in(mailbox, owner)
                    : heard.hello.purpose == LinkPurpose::relay_call ? call(mailbox, owner, ticket)
                                                                     : "this is a relay";
      answer(stream, heard, {objection.empty() ? LinkAnswer::welcome : LinkAnswer::refused, objection}, options.key,
             until);
      if (!objection.empty()) throw Error(ErrorCode::peer, objection);
      if (heard.hello.purpose == LinkPurpose::relay_call)
        return stream.write_all(std::as_bytes(std::span(ticket)), until);
      {
        const std::lock_guard lock(mutex);
        mailboxes.insert_or_assign(mailbox, Mailbox{std::move(stream), owner});
      }
      log(fmt::format("listens mailbox=\"{}\" member=\"{}\" peer=\"{}\"", mailbox, owner, peer));
    } catch (const Error& error) {
      log(fmt::format("refused peer=\"{}\" cause=\"{}\"", peer, error.what()));
    }
  }

  void start_handshake(FileDescriptor socket, bool secured) {
    const std::lock_guard lock(mutex);
    if (handshake_count == 0) handshakes.clear();
    ++handshake_count;
    handshakes.emplace_back([this, secured, held = std::make_shared<FileDescriptor>(std::move(socket))] {
      handshake(ByteStream(std::move(*held)), secured);
      const std::lock_guard done(mutex);
      --handshake_count;
      wakeup.notify();
    });
  }

  // Listeners say nothing more: what comes from one is its end.
  void look_after_mailboxes(bool beat) {
    if (beat) beaten_at = Clock::now();
    const std::lock_guard lock(mutex);
    std::array<std::byte, 256> ignored;
    for (auto& [name, mailbox] : mailboxes) {
      if (beat) tell(mailbox, RelayTicket{});
      if (beat && !objection_to(mailbox.owner).empty()) mailbox.lost = true;
      if (mailbox.control.read(ignored).state == ByteStream::State::closed) mailbox.lost = true;
      if (mailbox.lost) log(fmt::format("lost mailbox=\"{}\" member=\"{}\"", name, mailbox.owner));
    }
    std::erase_if(mailboxes, [](const auto& entry) { return entry.second.lost; });
    std::erase_if(tickets, [now = Clock::now()](const auto& entry) { return now > entry.second.until; });
  }

  // ---- data connections ----

  // Those of members that may not use the relay any more.
  void end_unwelcome() {
    joined.remove_if([this](const Joined& pair) {
      return std::ranges::any_of(pair.owners,
                                 [this](const std::string& owner) { return !objection_to(owner).empty(); });
    });
  }

  void take(FileDescriptor socket, const RelayTicket& ticket) {
    const std::lock_guard lock(mutex);
    const auto found = tickets.find(ticket);
    if (found == tickets.end() || Clock::now() > found->second.until)
      return log(fmt::format("refused peer=\"{}\" cause=\"no such ticket\"", peer_address(socket.get())));
    if (!found->second.first) {
      found->second.first = std::move(socket);
      return;
    }
    Joined& pair = joined.emplace_back();
    pair.ends = {std::move(found->second.first), std::move(socket)};
    pair.owners = std::move(found->second.owners);
    tickets.erase(found);
    log(fmt::format("joined a=\"{}\" b=\"{}\" pairs={}", peer_address(pair.ends[0].get()),
                    peer_address(pair.ends[1].get()), joined.size()));
  }

  // True once it is no stranger any more.
  bool hear_out(Stranger& stranger) {
    const ssize_t got = ::recv(stranger.socket.get(), stranger.bytes.data() + stranger.have,
                               stranger.bytes.size() - stranger.have, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
    stranger.have += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    if (stranger.have < stranger.bytes.size()) return Clock::now() > stranger.until;
    const auto opening = decode_opening(stranger.bytes);
    if (!opening) {
      log(fmt::format("refused peer=\"{}\" cause=\"speaks another protocol\"", peer_address(stranger.socket.get())));
    } else if (opening->kind == RelayOpening::Kind::data) {
      take(std::move(stranger.socket), opening->ticket);
    } else {
      start_handshake(std::move(stranger.socket), opening->kind == RelayOpening::Kind::secured_control);
    }
    return true;
  }

  void accept_one() {
    FileDescriptor socket = accept_connection(listening.socket.get());
    if (!socket) return;
    const std::lock_guard lock(mutex);
    // Closed where there are too many: whoever is honest comes again.
    if (strangers.size() + handshake_count >= most_strangers || joined.size() >= options.most_joined) return;
    strangers.push_back({std::move(socket), deadline_in(options.handshake_s)});
  }

  void step() {
    std::vector<pollfd> waiting{{listening.socket.get(), POLLIN, 0}, {wakeup.descriptor(), POLLIN, 0}};
    for (const Stranger& stranger : strangers) waiting.push_back({stranger.socket.get(), POLLIN, 0});
    for (const Joined& pair : joined)
      for (const std::size_t end : {0U, 1U}) {
        // What is finished at one end would be reported without end.
        const short events = pair.events(end);
        waiting.push_back({events != 0 ? pair.ends[end].get() : -1, events, 0});
      }
    {
      const std::lock_guard lock(mutex);
      for (const auto& [name, mailbox] : mailboxes) waiting.push_back({mailbox.control.descriptor(), POLLIN, 0});
    }
    ::poll(waiting.data(), waiting.size(), 500);
    std::size_t place = 2 + strangers.size();
    for (Joined& pair : joined) {
      if (waiting[place].revents != 0 || waiting[place + 1].revents != 0) pair.move();
      place += 2;
    }
    joined.remove_if([](const Joined& pair) { return pair.broken; });
    strangers.remove_if([&](Stranger& stranger) { return hear_out(stranger); });
    if (waiting[0].revents != 0) accept_one();
    if (waiting[1].revents != 0) wakeup.clear();
    // Bytes on their way between members give no reason to look at every mailbox.
    const bool beat = Clock::now() - beaten_at > duration_of(relay_beat_s);
    const bool heard = std::any_of(waiting.begin() + static_cast<std::ptrdiff_t>(place), waiting.end(),
                                   [](const pollfd& mailbox) { return mailbox.revents != 0; });
    if (beat) end_unwelcome();
    if (beat || heard || waiting[1].revents != 0) look_after_mailboxes(beat);
  }
};

Relay::Relay(RelayOptions options) : state_(std::make_unique<State>()) {
  if (!options.identity && !is_loopback(options.listen))
    throw input_error(
        fmt::format("{} can be reached by other machines, but this relay has no certificate", options.listen),
        "listen on 127.0.0.1, or give a certificate");
  if (options.identity) state_->tls.emplace(*options.identity);
  state_->listening = listen_tcp(options.listen);
  state_->options = std::move(options);
}

Relay::~Relay() = default;

const std::string& Relay::address() const { return state_->listening.address; }

void Relay::run(std::stop_token stop) {
  const std::stop_callback on_stop(stop, [&] { state_->wakeup.notify(); });
  while (!stop.stop_requested()) state_->step();
}

}  // namespace motley
