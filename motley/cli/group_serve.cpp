#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/base/printable.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/gathering_options.hpp"
#include "motley/comm/authority/group_folder.hpp"
#include "motley/comm/membership/coordinator_server.hpp"
#include "motley/comm/net/relay.hpp"

namespace motley::cli {
namespace {

struct GroupServeOptions {
  std::string group, folder;
  std::string listen = "127.0.0.1:4700", relay;
  std::string store = "motley-ledger.sqlite";
  std::string token_file;
  std::string certificate, key, authority;
  std::string lost_state = "wait";
  std::string quorum = "none";
  std::string lease = "1 s", certificate_life = "24 h", relay_idle = "1 h";
  std::size_t most_handshakes = StrangerLimits{}.most_of_address;
  std::uint32_t minimum_size = 1, maximum_size = 1024, stages = 1;
  bool standby = false, quiet = false;
};

CoordinatorServerOptions server_options(const GroupServeOptions& options) {
  CoordinatorServerOptions server;
  if (!options.folder.empty()) {
    GroupFolder folder = read_group_folder(options.folder);
    check_coordinators_certificate(folder.identity.certificate, options.folder);
    server.group = folder.group;
    server.token = folder.token;
    server.identity = std::move(folder.identity);
    server.authority = std::move(folder.authority);
    server.certificate_s = parse_seconds_option(options.certificate_life, "--certificate-life");
  }
  if (!options.group.empty()) server.group = options.group;
  server.listen = options.listen;
  if (!options.token_file.empty()) server.token = read_secret(options.token_file);
  if (!options.certificate.empty())
    server.identity = TlsIdentity{read_file(options.certificate), read_file(options.key), read_file(options.authority)};
  server.policy.minimum_size = options.minimum_size;
  server.policy.maximum_size = options.maximum_size;
  server.policy.stages = options.stages;
  server.policy.lost_state = options.lost_state == "rewind" ? LostState::rewind : LostState::wait;
  server.policy.quorum = options.quorum == "majority" ? QuorumRule::majority : QuorumRule::none;
  server.strangers = strangers_with(options.most_handshakes);
  server.policy.lease_floor_s = parse_seconds_option(options.lease, "--lease");
  if (!options.quiet) server.log = [](const std::string& line) { fmt::print(stderr, "{}\n", printable(line)); };
  return server;
}

// With --standby, not before the other coordinator has given it up or fallen silent.
std::unique_ptr<LedgerStore> open_store(const GroupServeOptions& options) {
  if (!options.standby) return open_ledger_store(options.store);
  return wait_for_ledger_store(options.store, [&](const StoreFenced& held) {
    if (!options.quiet) fmt::print(stderr, "standby what=\"{}\"\n", printable(held.what()));
  });
}

// Held back from this thread and those that it starts.
sigset_t hold_back_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// They end the coordinator in order; everything is on disk anyway.
int serve_until(const sigset_t& signals, CoordinatorServer& server) {
  std::exception_ptr failure;
  std::jthread serving([&](const std::stop_token& stop) {
    try {
      server.run(stop);
    } catch (...) {
      failure = std::current_exception();
      ::kill(::getpid(), SIGTERM);
    }
  });
  int signal = 0;
  sigwait(&signals, &signal);
  serving.request_stop();
  serving.join();
  if (failure) std::rethrow_exception(failure);
  return signal == SIGINT ? static_cast<int>(ErrorCode::interrupted) : 0;
}

int coordinate(const GroupServeOptions& options) {
  const sigset_t signals = hold_back_signals();  // before anything is printed, and for the relay's thread
  CoordinatorServerOptions served = server_options(options);
  std::optional<RelayThread> relay;
  if (!options.relay.empty())  // with the same identity and secret
    relay.emplace(RelayOptions{.listen = options.relay,
                               .key = served.token,
                               .identity = served.identity,
                               .strangers = served.strangers,
                               .idle_s = parse_seconds_option(options.relay_idle, "--relay-idle"),
                               .log = served.log});
  CoordinatorServer server(std::move(served), open_store(options));
  fmt::print("{}\n", server.address());
  if (relay) fmt::print("relay:{}\n", relay->address());
  std::fflush(stdout);
  return serve_until(signals, server);
}

}  // namespace

void add_group_serve(CLI::App& group_verbs, Action& action) {
  const auto [verb, options] = add_verb<GroupServeOptions>(
      group_verbs, action, "serve", "Coordinate a group: its members and its committed steps", coordinate);
  verb->footer(
      "Members connect to this process. Operations run between members without it, and continue while it is away. It "
      "logs\n"
      "each decision before it announces it: started again with the same log, it continues.\n"
      "\n"
      "examples:\n"
      "  motley group serve --token-file token --minimum-size 2            log in ./motley-ledger.sqlite\n"
      "  motley group serve --store etcd://127.0.0.1:2379/run7             log that survives this machine\n"
      "  motley group serve --store etcd://127.0.0.1:2379/run7 --standby   standby on another machine\n"
      "  motley group serve --folder lab --listen 10.0.0.5:4700            folder from `motley group create lab`\n"
      "  motley group serve --folder lab --listen 203.0.113.5:4700 --relay 203.0.113.5:4701\n"
      "                                                                   relay for members that only dial out\n"
      "  motley group serve --listen 10.0.0.5:4700 --certificate c.pem --key k.pem --authority ca.pem");
  auto* group =
      verb->add_option("--group", options->group, "Name of the group; members of another are refused (default: group)")
          ->type_name("NAME");
  auto* folder = verb->add_option("--folder", options->folder,
                                  "Folder from `motley group create`; joiners with its token get certificates")
                     ->type_name("DIR")
                     ->excludes(group);
  verb->add_option("--certificate-life", options->certificate_life,
                   "Lifetime of issued certificates; renewed after half of it (default 24 h)")
      ->type_name("TIME")
      ->needs(folder);
  verb->add_option("--listen", options->listen, "Address to listen on; port 0 is any free one (default 127.0.0.1:4700)")
      ->type_name("HOST:PORT");
  auto* relayed = verb->add_option("--relay", options->relay,
                                   "Also relay for members that cannot connect: they use relay:HOST:PORT")
                      ->type_name("HOST:PORT");
  verb->add_option("--relay-idle", options->relay_idle, "End a relayed connection that is idle this long (default 1 h)")
      ->type_name("TIME")
      ->needs(relayed);
  add_handshakes_option(*verb, options->most_handshakes);
  verb->add_option("--store", options->store, "Log: a file, or etcd://HOST:PORT/PREFIX (default motley-ledger.sqlite)")
      ->type_name("FILE|URL");
  verb->add_option("--token-file", options->token_file, "File with the token that members must show")
      ->type_name("FILE")
      ->excludes(folder);
  auto* certificate = verb->add_option("--certificate", options->certificate,
                                       "Certificate of this coordinator (PEM); required off loopback")
                          ->type_name("FILE");
  auto* key = verb->add_option("--key", options->key, "Private key of the certificate (PEM)")->type_name("FILE");
  auto* authority =
      verb->add_option("--authority", options->authority, "CA certificate that signs the members' certificates (PEM)")
          ->type_name("FILE");
  certificate->needs(key)->needs(authority)->excludes(folder);
  verb->add_option("--minimum-size", options->minimum_size, "Fewest members with which steps run (default 1)")
      ->check(CLI::Range(1, 4096));
  verb->add_option("--maximum-size", options->maximum_size, "Most members; further ones wait (default 1024)")
      ->check(CLI::Range(1, 4096));
  verb->add_option("--stages", options->stages, "Number of stages, each of which needs a member (default 1)")
      ->check(CLI::Range(1, 4096));
  verb->add_option("--quorum", options->quorum, "Members of the last epoch that the next one needs (default none)")
      ->check(CLI::IsMember({"none", "majority"}));
  verb->add_option("--lost-state", options->lost_state,
                   "If no member has the last state: wait for one, or rewind (default wait)")
      ->check(CLI::IsMember({"wait", "rewind"}));
  verb->add_option("--lease", options->lease, "Evict a member that is silent for this long (default \"1 s\")")
      ->type_name("TIME");
  verb->add_flag("--standby", options->standby, "Wait until the coordinator that holds the log ends, then take over");
  verb->add_flag("-q,--quiet", options->quiet, "Print no log on stderr");
}

}  // namespace motley::cli
