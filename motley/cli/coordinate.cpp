#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/cli/command.hpp"
#include "motley/comm/membership/coordinator_server.hpp"
#include "motley/comm/net/group_folder.hpp"
#include "motley/comm/net/relay.hpp"

namespace motley::cli {
namespace {

constexpr auto standby_pause = std::chrono::milliseconds(500);

struct CoordinateOptions {
  std::string group, folder;
  std::string listen = "127.0.0.1:4700", relay;
  std::string store = "motley-ledger.sqlite";
  std::string token_file;
  std::string certificate, key, authority;
  std::string lost_state = "wait";
  std::string quorum = "none";
  std::string lease = "1 s", certificate_life = "24 h";
  std::uint32_t minimum_size = 1, maximum_size = 1024, stages = 1;
  bool standby = false, quiet = false;
};

// Members that ask for their certificates believe no other name.
void check_coordinators_certificate(const std::string& certificate, const std::string& folder) {
  const CertificateFacts facts = certificate_facts(certificate);
  const std::string renewal = fmt::format(
      "rm {0}/certificate.pem {0}/key.pem, then where the authority's key is: motley group issue DIR {1} -o {0}",
      folder, coordinator_name);
  if (facts.name != coordinator_name)
    throw input_error(fmt::format("{}/certificate.pem names \"{}\", not \"{}\"", folder, facts.name, coordinator_name),
                      renewal);
  if (facts.expires_s <= std::time(nullptr))
    throw input_error(fmt::format("{}/certificate.pem has expired", folder), renewal);
}

CoordinatorServerOptions server_options(const CoordinateOptions& options) {
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
  server.policy.lease_floor_s = parse_seconds_option(options.lease, "--lease");
  if (!options.quiet) server.log = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  return server;
}

// With --standby, not before the other coordinator has given it up or fallen silent.
std::unique_ptr<LedgerStore> open_store(const CoordinateOptions& options) {
  for (bool told = options.quiet;; told = true) try {
      return open_ledger_store(options.store);
    } catch (const StoreFenced& held) {
      if (!options.standby) throw;
      if (!told) fmt::print(stderr, "standby what=\"{}\"\n", held.what());
      std::this_thread::sleep_for(standby_pause);
    }
}

// A relay beside the coordinator, with the same identity and secret; its end is not the coordinator's.
class RelayBeside {
 public:
  RelayBeside(const std::string& listen, const CoordinatorServerOptions& server)
      : relay_({.listen = listen, .key = server.token, .identity = server.identity, .log = server.log}),
        thread_([this, log = server.log](const std::stop_token& stop) {
          sigset_t all;  // signals are for the thread that waits for them
          sigfillset(&all);
          pthread_sigmask(SIG_BLOCK, &all, nullptr);
          try {
            relay_.run(stop);
          } catch (const std::exception& error) {
            if (log) log(fmt::format("trouble what=\"the relay has ended: {}\"", error.what()));
          }
        }) {}
  const std::string& address() const { return relay_.address(); }

 private:
  Relay relay_;
  std::jthread thread_;
};

// SIGINT and SIGTERM end the coordinator in order; everything is on disk anyway.
int serve_until_signal(CoordinatorServer& server) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
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

}  // namespace

void add_coordinate(CLI::App& parent, Action& action) {
  const auto options = std::make_shared<CoordinateOptions>();
  auto* verb =
      parent.add_subcommand("coordinate", "Keep a group of processes together: who is in it, what is committed");
  verb->footer(
      "Members connect here; operations run between them without this process, and survive its absence. What it "
      "decides\n"
      "is in its log before anybody hears of it: killed and started again with the same log, it goes on.\n\n"
      "examples:\n"
      "  motley coordinate --token-file token --minimum-size 2            here, the log in ./motley-ledger.sqlite\n"
      "  motley coordinate --store etcd://127.0.0.1:2379/run7             the log survives this machine\n"
      "  motley coordinate --store etcd://127.0.0.1:2379/run7 --standby   on another one, and members know both "
      "addresses\n"
      "  motley coordinate --folder lab --listen 10.0.0.5:4700            with what `motley group create lab` made\n"
      "  motley coordinate --folder lab --listen 203.0.113.5:4700 --relay 203.0.113.5:4701\n"
      "                                                                   for members that only dial out\n"
      "  motley coordinate --listen 10.0.0.5:4700 --certificate c.pem --key k.pem --authority ca.pem");
  auto* group = verb->add_option("--group", options->group, "Members of another group are turned away (default: group)")
                    ->type_name("NAME");
  auto* folder = verb->add_option("--folder", options->folder,
                                  "Group, token, certificate and authority from `motley group create`; who shows the "
                                  "token gets a certificate")
                     ->type_name("DIR")
                     ->excludes(group);
  verb->add_option("--certificate-life", options->certificate_life,
                   "Of those that are issued here; members renew theirs halfway (default: 24 h)")
      ->type_name("TIME")
      ->needs(folder);
  verb->add_option("--listen", options->listen, "Port 0: any free one")->type_name("HOST:PORT");
  verb->add_option("--relay", options->relay,
                   "Also joins members that cannot dial each other; they listen at relay:HOST:PORT (default: no)")
      ->type_name("HOST:PORT");
  verb->add_option("--store", options->store, "The log: a file, made where there is none, or etcd://HOST:PORT/PREFIX")
      ->type_name("FILE|URL");
  verb->add_option("--token-file", options->token_file, "Members must show the token in it")
      ->type_name("FILE")
      ->excludes(folder);
  auto* certificate = verb->add_option("--certificate", options->certificate,
                                       "Of this coordinator, in PEM: TLS 1.3; needed where other machines can connect")
                          ->type_name("FILE");
  auto* key = verb->add_option("--key", options->key, "The certificate's private key")->type_name("FILE");
  auto* authority =
      verb->add_option("--authority", options->authority, "The certificate that members' come from")->type_name("FILE");
  certificate->needs(key)->needs(authority)->excludes(folder);
  verb->add_option("--minimum-size", options->minimum_size, "Below it the group waits")->check(CLI::Range(1, 4096));
  verb->add_option("--maximum-size", options->maximum_size, "Further ones wait")->check(CLI::Range(1, 4096));
  verb->add_option("--stages", options->stages, "An epoch needs a member of each stage")->check(CLI::Range(1, 4096));
  verb->add_option("--quorum", options->quorum, "majority: of the epoch before, or the group waits")
      ->check(CLI::IsMember({"none", "majority"}));
  verb->add_option("--lost-state", options->lost_state,
                   "When nobody holds the state of the last step: wait for somebody who does, or rewind to the newest "
                   "that somebody has")
      ->check(CLI::IsMember({"wait", "rewind"}));
  verb->add_option("--lease", options->lease, "Evict a member that is silent for this long, as \"3 s\" (default 1 s)")
      ->type_name("TIME");
  verb->add_flag("--standby", options->standby,
                 "Wait while another coordinator holds the log, and go on from there when it ends or falls silent");
  verb->add_flag("-q,--quiet", options->quiet, "No log on stderr");
  verb->callback([options, &action] {
    action = [options] {
      CoordinatorServerOptions served = server_options(*options);
      std::optional<RelayBeside> relay;
      if (!options->relay.empty()) relay.emplace(options->relay, served);
      CoordinatorServer server(std::move(served), open_store(*options));
      fmt::print("{}\n", server.address());
      if (relay) fmt::print("relay:{}\n", relay->address());
      std::fflush(stdout);
      return serve_until_signal(server);
    };
  });
}

}  // namespace motley::cli
