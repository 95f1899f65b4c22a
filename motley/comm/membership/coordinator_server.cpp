#include "motley/comm/membership/coordinator_server.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <vector>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/limited_log.hpp"
#include "motley/base/survive.hpp"
#include "motley/comm/authority/authority.hpp"
#include "motley/comm/authority/machine_name.hpp"
#include "motley/comm/membership/membership_messages.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {
namespace {

constexpr std::size_t most_of_member = 4;        // connections: an old one may still be ending
constexpr std::size_t largest_handshake = 1024;  // bytes
constexpr int messages_per_turn = 64;            // of one client, so that one that never pauses holds up no other
constexpr double tick_s = 0.05;
constexpr double certificates_per_s = 20, most_certificates_at_once = 100;  // to strangers and members together

// A connection until its first message has arrived, which shows the token.
class ControlStranger {
 public:
  ControlStranger(FileDescriptor socket, const std::optional<TlsContext>& tls) : bytes_(std::move(socket)) {
    if (tls)
      bytes_.start_tls(*tls, TlsSide::server);
    else
      begin_messages();
  }

  int descriptor() const { return stream_ ? stream_->descriptor() : bytes_.descriptor(); }
  short events() const { return stream_ ? POLLIN : bytes_.wanted(); }

  bool advance() {
    if (!stream_) {
      if (!bytes_.advance_tls()) return false;
      begin_messages();
    }
    if (const auto message = stream_->receive()) first_ = decode_control(*message);
    if (stream_->ended()) throw Error(ErrorCode::peer, stream_->cause());
    return first_.has_value();
  }

  // Once advance() was true.
  MessageStream take_stream() { return *std::move(stream_); }
  const ControlMessage& first() const { return *first_; }

 private:
  void begin_messages() {
    stream_.emplace(std::move(bytes_), max_control_bytes);
    stream_->accept_up_to(largest_handshake);
  }

  ByteStream bytes_;
  std::optional<MessageStream> stream_;
  std::optional<ControlMessage> first_;
};

struct ControlClient {
  MessageStream stream;
  std::string name;    // for messages: the address, later the id
  Instant idle_until;  // until it reports, or has taken why it is turned away
  bool introduced = false;
  bool closing = false;  // once everything is sent
  bool gone = false;
  std::string id = {};
  std::uint64_t process = 0;
  bool due = false;  // a directive, as soon as the last one has been sent
};

}  // namespace

struct CoordinatorServer::State {
  CoordinatorServerOptions options;
  std::unique_ptr<LedgerStore> store;
  std::optional<TlsContext> tls;
  ListeningSocket listener;
  Wakeup wakeup;
  std::optional<Coordinator> coordinator;
  LimitedLog limited_log;  // of what clients cause
  Strangers<ControlStranger> strangers;
  std::list<ControlClient> clients;
  std::size_t records = 0;  // since the last snapshot
  std::string trouble;      // of the log, as last reported
  bool uncertain = false;   // whether the last write to the log has happened
  Instant kept = Clock::now();
  double certificates = most_certificates_at_once;  // that may be issued now
  Instant certified_at = Clock::now();

  State(CoordinatorServerOptions given, std::unique_ptr<LedgerStore> log_store)
      : options(std::move(given)),
        store(std::move(log_store)),
        limited_log(options.log),
        strangers(options.strangers, [this](const std::string& peer, const std::string& cause) {
          limited_log(fmt::format("refused peer=\"{}\" cause=\"{}\"", peer, cause));
        }) {}

  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  // ---- decisions ----

  // What follows from `handle` is on disk before it is believed or told; if that fails, it has not happened.
  template <class Handle>
  std::optional<CoordinatorDirective> decide(const Handle& handle) {
    if (!know_the_log()) return std::nullopt;
    Coordinator next = *coordinator;
    CoordinatorOutput output = handle(next);
    if (!output.records.empty()) {
      std::vector<std::string> bytes;
      for (const LedgerRecord& record : output.records) bytes.push_back(encode_record(record));
      try {
        store->append(bytes);
      } catch (const StoreFenced&) {
        throw;
      } catch (const Error& error) {
        uncertain = dynamic_cast<const StoreUncertain*>(&error) != nullptr;
        complain(error);
        return std::nullopt;
      }
      if (!trouble.empty()) log("recovered what=\"the log can be written again\"");
      trouble.clear();
      records += bytes.size();
    }
    coordinator = std::move(next);
    for (const std::string& note : output.notes)
      log(fmt::format("decided epoch={} step={} what=\"{}\"", coordinator->ledger().current.epoch.number,
                      coordinator->ledger().committed_step, note));
    for (ControlClient& client : clients)
      if (!client.id.empty() && std::find(output.tell.begin(), output.tell.end(), client.id) != output.tell.end())
        client.due = true;
    return output.answer;
  }

  void complain(const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    if (trouble != error.what())
      log(fmt::format("trouble what=\"{}\" hint=\"{}\"", error.what(), known != nullptr ? known->hint() : ""));
    trouble = error.what();
  }

  // After a write that may or may not have happened, what the log says counts.
  bool know_the_log() {
    if (!uncertain) return true;
    try {
      coordinator.emplace(options.policy, load_ledger(*store, options.group), now_s());
      uncertain = false;
    } catch (const Error& error) {
      complain(error);
    }
    return !uncertain;
  }

  void cut_log() {
    if (uncertain || records < options.snapshot_every) return;
    try {
      store->replace(encode_record(LedgerSnapshot{coordinator->ledger()}));
      records = 0;
    } catch (const StoreFenced&) {
      throw;
    } catch (const Error& error) {
      uncertain = dynamic_cast<const StoreUncertain*>(&error) != nullptr;
      complain(error);
      records /= 2;  // tried again after as many more
    }
  }

  // ---- connections ----

  void hear_strangers() {
    strangers.take_in([this] { return accept_connection(listener.socket.get()); },
                      [this](FileDescriptor socket) { return ControlStranger(std::move(socket), tls); });
    for (ControlStranger& stranger : strangers.advance()) {
      ControlClient& client = add_client(stranger.take_stream());
      serving(client, [&] { handshake(client, stranger.first()); });
      serve(client);  // what came with its first message
    }
  }

  ControlClient& add_client(MessageStream stream) {
    const std::string name = stream.bytes().peer_name(), address = peer_address(stream.descriptor());
    return clients.emplace_back(ControlClient{.stream = std::move(stream),
                                              .name = name.empty() ? address : fmt::format("{} at {}", name, address),
                                              .idle_until = deadline_in(options.strangers.handshake_s)});
  }

  // A member may be dialling again while its last connection has not ended. The oldest goes.
  void bound_connections(const ControlClient& newest, const std::string& member,
                         const std::function<std::string(const ControlClient&)>& member_of) {
    std::vector<ControlClient*> same;
    for (ControlClient& client : clients)
      if (&client != &newest && client.introduced && !client.closing && !client.gone && member_of(client) == member)
        same.push_back(&client);
    if (same.size() < most_of_member) return;
    dismiss(*same.front());
  }

  // Another connection counts in its place.
  void dismiss(ControlClient& client) {
    client.id.clear();
    close_when_sent(client);
  }

  // Or when the other side has not taken it for a while.
  void close_when_sent(ControlClient& client) {
    client.closing = true;
    client.idle_until = deadline_in(options.strangers.handshake_s);
  }

  void refuse(ControlClient& client, const std::string& reason, const std::string& hint,
              RefusalKind kind = RefusalKind::for_good) {
    limited_log(fmt::format("refused peer=\"{}\" cause=\"{}\"", client.name, reason));
    client.stream.send(encode_control(ControlRefusal{reason, hint, kind}));
    close_when_sent(client);
  }

  std::string token_objection(const ControlClient& client, const std::string& token) const {
    if (!options.admission) return same_secret(token, options.token) ? "" : "the token is not this group's";
    // A process that shows a certificate was admitted, and may renew it.
    return client.stream.bytes().peer_name().empty() ? options.admission->token_objection(token) : "";
  }

  // True where group and token are right.
  bool knows_the_group(ControlClient& client, const std::string& group, const std::string& token) {
    if (const std::string objection = token_objection(client, token); !objection.empty())
      refuse(client, objection,
             options.admission ? "get a new link on the machine that runs `motley up`: motley deployment invite"
                               : "give every member the coordinator's token");
    else if (group != options.group)
      refuse(client, fmt::format("this coordinator serves group \"{}\", not \"{}\"", options.group, group), "");
    return !client.closing;
  }

  void handshake(ControlClient& client, const ControlMessage& message) {
    if (const auto* request = std::get_if<CertificateRequest>(&message)) {
      certify(client, *request);
      close_when_sent(client);  // a joiner comes back with what it was given
      return;
    }
    const auto* hello = std::get_if<ControlHello>(&message);
    if (hello == nullptr) return refuse(client, "the first message must be the handshake", "");
    if (!knows_the_group(client, hello->group, hello->token)) return;
    if (tls && client.stream.bytes().peer_name().empty())
      return refuse(client, "this connection shows no certificate", "request a certificate first");
    if (clients.size() > options.most_clients)
      return refuse(client, fmt::format("the coordinator has {} connections already", options.most_clients),
                    "retry in a few seconds");
    if (const std::string certified = client.stream.bytes().peer_name(); !certified.empty())
      bound_connections(client, certified, [](const ControlClient& each) { return each.stream.bytes().peer_name(); });
    client.introduced = true;
    client.stream.accept_up_to(max_control_bytes);
  }

  // Why this connection does not get a certificate for this name; empty where it may.
  std::string certificate_objection(const ControlClient& client, const std::string& member) const {
    if (!options.authority) return "this coordinator issues no certificates";
    if (member == coordinator_name)
      return fmt::format("\"{}\" is the coordinator's name: no member may use it", member);
    if (options.admission) {
      if (const std::string objection = machine_name_objection(member); !objection.empty()) return objection;
      if (const std::string objection = options.admission->member_objection(member); !objection.empty())
        return objection;
    }
    const std::string certified = client.stream.bytes().peer_name();
    if (!certified.empty() && certified != member)
      return fmt::format("the certificate is of \"{}\", not of \"{}\"", certified, member);
    if (certified.empty() && coordinator->state(member) != MemberState::gone)
      return fmt::format("a live member already uses the name \"{}\"", member);
    return {};
  }

  bool may_issue() {
    const auto now = Clock::now();
    const double passed_s = std::chrono::duration<double>(now - std::exchange(certified_at, now)).count();
    certificates = std::min(most_certificates_at_once, certificates + passed_s * certificates_per_s);
    if (certificates < 1) return false;
    --certificates;
    return true;
  }

  // Where names are kept: this one, before its certificate is given away. False: it is refused.
  bool enter(ControlClient& client, const CertificateRequest& request, const std::string& key) {
    if (!options.admission) return true;
    const bool renews = !client.stream.bytes().peer_name().empty();
    GroupAdmission::Certification made;
    try {
      made = options.admission->certify({request.member, key, renews ? std::string() : std::string(request.token)},
                                        options.certificate_s);
    } catch (const Error& error) {
      complain(error);
      refuse(client, "the coordinator cannot write down which names it certifies", "try again later",
             RefusalKind::for_now);
      return false;
    }
    if (!made.objection.empty()) refuse(client, made.objection, "");
    if (made.first && options.on_certified) options.on_certified(request.member, host_of_peer(client));
    return made.objection.empty();
  }

  static std::string host_of_peer(const ControlClient& client) {
    const std::string address = peer_address(client.stream.descriptor());
    return address.substr(0, address.rfind(':'));
  }

  void certify(ControlClient& client, const CertificateRequest& request) {
    if (!knows_the_group(client, request.group, request.token)) return;
    try {
      check_certificate_name(request.member);
      if (const std::string objection = certificate_objection(client, request.member); !objection.empty())
        return refuse(client, objection, "");
      if (!may_issue()) {
        if (client.introduced) return;  // it will ask again
        return refuse(client, "too many certificates are requested", "retry in a few seconds", RefusalKind::for_now);
      }
      const double valid_s = options.certificate_s;
      const CertificateGrant grant{options.authority->certify(request.request, request.member, valid_s),
                                   options.authority->certificate(), static_cast<std::uint32_t>(std::lround(valid_s)),
                                   options.key};
      if (!enter(client, request, certificate_facts(grant.certificate).key)) return;
      log(fmt::format("certified member=\"{}\" peer=\"{}\" valid_s={:.0f}", request.member, client.name, valid_s));
      client.stream.send(encode_control(grant));
    } catch (const Error& error) {
      refuse(client, error.what(), error.hint());
    }
  }

  void hear(ControlClient& client, const ControlMessage& message) {
    if (client.closing) return;
    if (!client.introduced) return handshake(client, message);
    if (const auto* request = std::get_if<CertificateRequest>(&message)) return certify(client, *request);
    const auto* report = std::get_if<MemberReport>(&message);
    if (report == nullptr) return refuse(client, "a member must send only reports after the handshake", "");
    const std::string certified = client.stream.bytes().peer_name();
    if (!certified.empty() && certified != report->member.id)
      return refuse(client, fmt::format("the certificate is of \"{}\", not of \"{}\"", certified, report->member.id),
                    "");
    if (client.process != report->process) {
      client.id = report->member.id;
      client.name = fmt::format("{} at {}", client.id, report->member.address);
      client.process = report->process;
      bound_connections(client, client.id, [](const ControlClient& each) { return each.id; });
      // The newest connection of a process is the one that counts.
      for (ControlClient& other : clients)
        if (&other != &client && other.process == client.process && other.id == client.id) dismiss(other);
    }
    const auto answer = decide([&](Coordinator& next) { return next.report(*report, now_s()); });
    if (answer) client.stream.send(encode_control(*answer));
  }

  // What goes wrong with a client costs its connection alone.
  template <class Work>
  void serving(ControlClient& client, const Work& work) {
    try {
      work();
    } catch (const StoreFenced&) {
      throw;
    } catch (const std::exception& error) {
      lose(client, error.what());
    }
  }

  void serve(ControlClient& client) {
    serving(client, [&] {
      for (int i = 0; i < messages_per_turn; ++i) {
        const auto message = client.stream.receive();
        if (!message) break;
        hear(client, decode_control(*message));
      }
      if (client.stream.ended()) lose(client, "the control connection is lost: " + client.stream.cause());
    });
  }

  void lose(ControlClient& client, const std::string& cause) {
    if (client.gone) return;
    client.gone = true;
    limited_log(fmt::format("lost peer=\"{}\" cause=\"{}\"", client.name, cause));
    if (client.id.empty()) return;
    decide([&](Coordinator& next) { return next.connection_lost(client.id, client.process, now_s()); });
  }

  // A member that does not read is told the newest state when it does, and no older one.
  void tell(ControlClient& client) {
    if (client.gone) return;
    serving(client, [&] {
      client.stream.flush();
      if (client.closing && client.stream.flushed()) return lose(client, "turned away");
      if (!client.due || !client.stream.flushed() || client.closing) return;
      client.due = false;
      if (coordinator->state(client.id) == MemberState::gone) return;
      const CoordinatorDirective directive = coordinator->directive(client.id);
      if (directive.process != client.process) return;
      client.stream.send(encode_control(directive));
    });
  }

  // ---- the loop ----

  void keep_store() {
    if (store->hold_s() <= 0 || Clock::now() - kept < duration_of(store->hold_s() / 3)) return;
    kept = Clock::now();
    try {
      store->keep();
    } catch (const StoreFenced&) {
      throw;
    } catch (const Error& error) {
      complain(error);
    }
  }

  void step() {
    std::vector<pollfd> waiting{{listener.socket.get(), POLLIN, 0}, {wakeup.descriptor(), POLLIN, 0}};
    bool pending = false;
    for (const ControlClient& client : clients) {
      waiting.push_back({client.stream.descriptor(), client.stream.events(), 0});
      pending = pending || client.stream.pending();
    }
    strangers.watch(waiting);
    ::poll(waiting.data(), waiting.size(), pending ? 0 : static_cast<int>(tick_s * 1000));
    std::size_t place = 2;
    for (ControlClient& client : clients) {
      const bool ready = waiting[place++].revents != 0 || client.stream.pending();
      if (ready && !client.gone) serve(client);
      if ((client.id.empty() || client.closing) && Clock::now() > client.idle_until)
        lose(client, "it says nothing, or does not listen");
    }
    hear_strangers();
    decide([&](Coordinator& next) { return next.tick(now_s()); });
    for (ControlClient& client : clients) tell(client);
    clients.remove_if([](const ControlClient& client) { return client.gone; });
    cut_log();
    keep_store();
    limited_log.tell_left_out();
  }
};

CoordinatorServer::CoordinatorServer(CoordinatorServerOptions options, std::unique_ptr<LedgerStore> store) {
  if (!options.identity && !is_loopback(options.listen))
    throw input_error(
        fmt::format("{} can be reached by other machines, but this coordinator has no certificate", options.listen),
        "listen on 127.0.0.1, or give a certificate");
  if (options.authority && (!options.identity || options.identity->authority != options.authority->certificate()))
    throw input_error("the coordinator's certificate is not signed by the authority that it issues from",
                      "take both from one folder with `motley group serve --folder DIR`");
  if (options.authority && !(options.certificate_s >= 1 && options.certificate_s <= 3650.0 * 24 * 3600))
    throw input_error(
        fmt::format("the lifetime of certificates must be from 1 s to 10 years, found {} s", options.certificate_s),
        "give another --certificate-life");
  state_ = std::make_unique<State>(std::move(options), std::move(store));
  State& state = *state_;
  const CoordinatorServerOptions& kept = state.options;
  if (kept.identity) state.tls.emplace(kept.authority ? TlsContext::for_strangers_too(*kept.identity) : *kept.identity);
  state.coordinator.emplace(kept.policy, load_ledger(*state.store, kept.group), now_s());
  state.listener = listen_tcp(kept.listen);
}

CoordinatorServer::~CoordinatorServer() = default;

const std::string& CoordinatorServer::address() const { return state_->listener.address; }

void CoordinatorServer::run(std::stop_token stop) {
  State& state = *state_;
  const GroupLedger& ledger = state.coordinator->ledger();
  state.log(fmt::format("serving group=\"{}\" address={} log=\"{}\" epoch={} step={}", state.options.group, address(),
                        state.store->name(), ledger.current.epoch.number, ledger.committed_step));
  const std::stop_callback on_stop(stop, [&] { state.wakeup.notify(); });
  std::exception_ptr fenced;
  while (!stop.stop_requested() && !fenced)
    survive(
        [&] {
          try {
            state.step();
          } catch (const StoreFenced&) {
            fenced = std::current_exception();
          }
        },
        [&](const std::exception& error) { state.complain(error); });
  if (fenced) std::rethrow_exception(fenced);
}

}  // namespace motley
