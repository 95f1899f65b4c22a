#include "motley/comm/net/relay.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/limited_log.hpp"
#include "motley/base/survive.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/random_bytes.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {
namespace {

constexpr std::array<char, 4> opening_magic{'M', 'T', 'L', 'R'};
constexpr std::uint8_t opening_version = 1;
constexpr std::size_t most_tickets = 4096;
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
  Instant used = Clock::now();

  short events(std::size_t end) const {
    return static_cast<short>((flows[end].wants_input() ? POLLIN : 0) | (flows[1 - end].wants_output() ? POLLOUT : 0));
  }
  void move() {
    used = Clock::now();
    for (const std::size_t end : {0U, 1U}) broken = broken || !flows[end].move(ends[end].get(), ends[1 - end].get());
    broken = broken || (flows[0].done() && flows[1].done());
  }
};

// A connection that has not yet said what it wants, and, to have a mailbox or call one, shown that it may.
class RelayStranger {
 public:
  RelayStranger(FileDescriptor socket, const std::optional<TlsContext>& tls, const std::string& key)
      : socket_(std::move(socket)), tls_(&tls), key_(&key) {}

  int descriptor() const { return link_ ? link_->descriptor() : socket_.get(); }
  short events() const { return link_ ? link_->events() : POLLIN; }

  bool advance() {
    if (link_) return link_->advance();
    const ssize_t got = ::recv(socket_.get(), bytes_.data() + have_, bytes_.size() - have_, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) throw Error(ErrorCode::peer, "closed by the other side");
    have_ += static_cast<std::size_t>(got);
    if (have_ < bytes_.size()) return false;
    const auto opening = decode_opening(bytes_);
    if (!opening) throw Error(ErrorCode::peer, "speaks another protocol");
    ticket_ = opening->ticket;
    if (opening->kind == RelayOpening::Kind::data) return true;
    if ((opening->kind == RelayOpening::Kind::secured_control) != tls_->has_value())
      throw Error(ErrorCode::peer, *tls_ ? "came without TLS" : "came with TLS, but the relay has no certificate");
    link_.emplace(std::move(socket_), *tls_ ? &**tls_ : nullptr, *key_);
    return link_->advance();
  }

  // Of what is through: a control connection, or else a data connection.
  std::optional<LinkStranger>& control() { return link_; }
  FileDescriptor take_socket() { return std::move(socket_); }
  const RelayTicket& ticket() const { return ticket_; }

 private:
  FileDescriptor socket_;
  const std::optional<TlsContext>* tls_;
  const std::string* key_;
  std::array<std::byte, relay_opening_bytes> bytes_{};
  std::size_t have_ = 0;
  RelayTicket ticket_{};
  std::optional<LinkStranger> link_;
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
  LimitedLog log;
  std::string trouble;  // as last reported
  Strangers<RelayStranger> strangers;
  std::list<Joined> joined;
  std::map<std::string, Mailbox> mailboxes;
  std::map<RelayTicket, Ticket> tickets;
  Instant beaten_at = Clock::now();

  explicit State(RelayOptions given)
      : options(std::move(given)),
        log(options.log),
        strangers(options.strangers,
                  [this](const std::string& peer, const std::string& cause) { refused(peer, cause); }) {
    if (options.identity) tls.emplace(*options.identity);
    listening = listen_tcp(options.listen);
  }

  void refused(const std::string& peer, const std::string& cause) {
    log(fmt::format("refused peer=\"{}\" cause=\"{}\"", peer, cause));
  }

  std::string objection_to(const std::string& member) const {
    return options.objection ? options.objection(member) : "";
  }

  // ---- control connections ----

  // Why this mailbox cannot be had; empty where it can.
  std::string mailbox_objection(const std::string& mailbox, const std::string& owner) const {
    if (mailbox.empty() || mailbox.size() > longest_mailbox)
      return fmt::format("a mailbox needs a name of 1 to {} bytes, found {}", longest_mailbox, mailbox.size());
    const auto found = mailboxes.find(mailbox);
    if (found != mailboxes.end() && found->second.owner != owner)
      return fmt::format("\"{}\" listens in mailbox \"{}\"", found->second.owner, mailbox);
    if (found == mailboxes.end() && mailboxes.size() >= options.most_mailboxes)
      return "the relay has too many mailboxes";
    return {};
  }

  std::string call(const std::string& mailbox, const std::string& caller, RelayTicket& ticket) {
    const auto found = mailboxes.find(mailbox);
    if (found == mailboxes.end() || found->second.lost)
      return fmt::format("no member listens in mailbox \"{}\"", mailbox);
    if (tickets.size() >= most_tickets) return "the relay has too many open calls";
    ticket = new_ticket();
    if (!tell(found->second, ticket)) return fmt::format("mailbox \"{}\" was lost", mailbox);
    tickets[ticket] = {deadline_in(relay_ticket_s), {found->second.owner, caller}, {}};
    return {};
  }

  // A listener that does not take sixteen bytes at once is gone; half a ticket would garble the next.
  static bool tell(Mailbox& mailbox, const RelayTicket& ticket) {
    const auto bytes = std::as_bytes(std::span(ticket));
    if (mailbox.control.write(bytes).bytes != bytes.size()) mailbox.lost = true;
    return !mailbox.lost;
  }

  // What is written here is short and the first on its connection: it never waits.
  void serve(LinkStranger caller) {
    ByteStream& stream = caller.stream();
    const HeardHello& heard = caller.heard();
    const std::string peer = peer_address(stream.descriptor()), &mailbox = heard.hello.word;
    const std::string owner = stream.peer_name();
    RelayTicket ticket{};
    std::string objection = objection_to(owner);
    if (objection.empty())
      objection = heard.hello.purpose == LinkPurpose::relay_listen ? mailbox_objection(mailbox, owner)
                  : heard.hello.purpose == LinkPurpose::relay_call ? call(mailbox, owner, ticket)
                                                                   : "this is a relay";
    answer(stream, heard, {objection.empty() ? LinkAnswer::welcome : LinkAnswer::refused, objection}, options.key,
           Clock::now());
    if (!objection.empty()) return refused(peer, objection);
    if (heard.hello.purpose == LinkPurpose::relay_call)
      return stream.write_all(std::as_bytes(std::span(ticket)), Clock::now());
    mailboxes.insert_or_assign(mailbox, Mailbox{std::move(stream), owner});
    log(fmt::format("listens mailbox=\"{}\" member=\"{}\" peer=\"{}\"", mailbox, owner, peer));
  }

  // Listeners say nothing more: what comes from one is its end.
  void look_after_mailboxes(bool beat) {
    if (beat) beaten_at = Clock::now();
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
    const auto found = tickets.find(ticket);
    if (found == tickets.end() || Clock::now() > found->second.until)
      return refused(peer_address(socket.get()), "no such ticket");
    if (!found->second.first) {
      found->second.first = std::move(socket);
      return;
    }
    if (joined.size() >= options.most_joined) end_idle(std::ranges::min_element(joined, {}, &Joined::used));
    Joined& pair = joined.emplace_back();
    pair.ends = {std::move(found->second.first), std::move(socket)};
    pair.owners = std::move(found->second.owners);
    tickets.erase(found);
    log(fmt::format("joined a=\"{}\" b=\"{}\" pairs={}", peer_address(pair.ends[0].get()),
                    peer_address(pair.ends[1].get()), joined.size()));
  }

  std::list<Joined>::iterator end_idle(std::list<Joined>::iterator pair) {
    log(fmt::format("idle a=\"{}\" b=\"{}\" seconds={:.0f}", peer_address(pair->ends[0].get()),
                    peer_address(pair->ends[1].get()), seconds_since(pair->used)));
    return joined.erase(pair);
  }

  // ---- the loop ----

  void hear_strangers() {
    strangers.take_in([this] { return accept_connection(listening.socket.get()); },
                      [this](FileDescriptor socket) { return RelayStranger(std::move(socket), tls, options.key); });
    for (RelayStranger& stranger : strangers.advance()) {
      if (!stranger.control()) {
        take(stranger.take_socket(), stranger.ticket());
        continue;
      }
      const std::string peer = peer_address(stranger.descriptor());
      try {
        serve(*std::move(stranger.control()));
      } catch (const Error& error) {
        refused(peer, error.what());
      }
    }
  }

  void step() {
    std::vector<pollfd> waiting{{listening.socket.get(), POLLIN, 0}, {wakeup.descriptor(), POLLIN, 0}};
    for (const Joined& pair : joined)
      for (const std::size_t end : {0U, 1U}) {
        // What is finished at one end would be reported without end.
        const short events = pair.events(end);
        waiting.push_back({events != 0 ? pair.ends[end].get() : -1, events, 0});
      }
    for (const auto& [name, mailbox] : mailboxes) waiting.push_back({mailbox.control.descriptor(), POLLIN, 0});
    const std::size_t known = waiting.size();
    strangers.watch(waiting);
    ::poll(waiting.data(), waiting.size(), 500);
    std::size_t place = 2;
    for (Joined& pair : joined) {
      if (waiting[place].revents != 0 || waiting[place + 1].revents != 0) pair.move();
      place += 2;
    }
    joined.remove_if([](const Joined& pair) { return pair.broken; });
    for (auto pair = joined.begin(); pair != joined.end();)
      pair = seconds_since(pair->used) > options.idle_s ? end_idle(pair) : std::next(pair);
    // Bytes on their way between members give no reason to look at every mailbox.
    const bool beat = seconds_since(beaten_at) > relay_beat_s;
    const bool heard = std::any_of(waiting.begin() + static_cast<std::ptrdiff_t>(place),
                                   waiting.begin() + static_cast<std::ptrdiff_t>(known),
                                   [](const pollfd& mailbox) { return mailbox.revents != 0; });
    if (beat) end_unwelcome();
    const bool lost = std::ranges::any_of(mailboxes, [](const auto& entry) { return entry.second.lost; });
    if (beat || heard || lost) look_after_mailboxes(beat);
    hear_strangers();
    log.tell_left_out();
  }

  void report(const std::exception& error) {
    if (trouble != error.what()) log(fmt::format("trouble what=\"{}\"", error.what()));
    trouble = error.what();
  }
};

Relay::Relay(RelayOptions options) {
  if (!options.identity && !is_loopback(options.listen))
    throw input_error(
        fmt::format("{} can be reached by other machines, but this relay has no certificate", options.listen),
        "listen on 127.0.0.1, or give a certificate");
  state_ = std::make_unique<State>(std::move(options));
}

Relay::~Relay() = default;

const std::string& Relay::address() const { return state_->listening.address; }

void Relay::run(std::stop_token stop) {
  const std::stop_callback on_stop(stop, [&] { state_->wakeup.notify(); });
  while (!stop.stop_requested()) survive([&] { state_->step(); }, [&](const auto& error) { state_->report(error); });
}

}  // namespace motley
