#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "motley/agent/agent.hpp"
#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"
#include "motley/base/worker_program.hpp"
#include "motley/checkpoint/checkpoint.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/machine_options.hpp"
#include "motley/cli/serving_options.hpp"
#include "motley/comm/authority/group_folder.hpp"
#include "motley/comm/net/file_descriptor.hpp"
#include "motley/hub/named_model.hpp"

namespace motley::cli {
namespace {

struct JoinOptions {
  std::string link, link_file;
  MachineOptions machine;
  std::string model, cache_limit = "256 GiB";
  bool relayed = false;
  bool quiet = false;
};

std::string link_text(const JoinOptions& options) {
  if (!options.link.empty()) return options.link;
  if (!options.link_file.empty()) return read_secret(options.link_file);
  if (const char* given = std::getenv("MOTLEY_LINK"); given != nullptr && *given != '\0') return given;
  throw input_error("the link to join by is missing",
                    "give the line that `motley up` prints, --link-file FILE, or MOTLEY_LINK");
}

// Readable once SIGINT or SIGTERM has come. Before any thread is started: all inherit the mask.
FileDescriptor stop_descriptor() {
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGINT);
  sigaddset(&stops, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  FileDescriptor descriptor(::signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor) throw environment_error("cannot wait for signals");
  return descriptor;
}

int join(const JoinOptions& options) {
  AgentOptions agent;
  agent.invitation = parse_invitation(link_text(options));
  ::unsetenv("MOTLEY_LINK");  // not for workers
  agent.relayed = options.relayed;
  if (options.relayed && agent.invitation.relay.empty())
    throw input_error("the deployment has no relay", "start the driver with --relay (`motley up --relay`)");
  const FileDescriptor stop = stop_descriptor();
  agent.name = machine_name(options.machine);
  agent.worker_program = prepare_worker_program();
  agent.cache = cache_folder();
  agent.state = state_folder() / "agents";
  agent.cache_bytes = static_cast<std::uint64_t>(parse_bytes_option(options.cache_limit, "--cache-limit"));
  if (!options.model.empty()) {
    agent.model = locate_model(options.model, ModelFiles::all).path;
    Checkpoint{agent.model};  // throws where it cannot be read
  }
  EventLog events(shown(options.quiet));
  agent.report = std::ref(events);
  agent.devices = offered_devices(options.machine, agent.state, agent.worker_program, agent.report);
  return run_agent(agent, stop.get()) ? 0 : static_cast<int>(ErrorCode::interrupted);
}

}  // namespace

void add_join(CLI::App& parent, Action& action) {
  const auto [verb, options] = add_verb<JoinOptions>(
      parent, action, "join", "Join a deployment with this machine: the agent that runs its workers", join);
  verb->footer(
      "Runs until the deployment ends, or Ctrl-C: then the deployment first plans without this machine. Started\n"
      "again with the same link it rejoins. Weights are fetched, and kept below XDG_CACHE_HOME.\n"
      "\n"
      "examples:\n"
      "  motley join 'motley://10.0.0.5:4700/...'          the line that `motley up` prints\n"
      "  motley join --link-file link --memory \"16 GiB\"    offer 16 GiB, and leave the rest free\n"
      "  motley join --link-file link --devices 0,2        offer two of the machine's GPUs\n"
      "  MOTLEY_LINK='motley://...' motley join --name attic --model DIR");
  auto* link = verb->add_option("link", options->link, "Link, as `motley up` prints it")->type_name("LINK");
  verb->add_option("--link-file", options->link_file, "File with the link, in place of it")
      ->type_name("FILE")
      ->excludes(link);
  add_machine_options(*verb, options->machine);
  verb->add_option("--model", options->model, "The model on this machine: equal files are read in place of fetching");
  verb->add_option("--cache-limit", options->cache_limit, "Most that fetched weights may take (default \"256 GiB\")")
      ->type_name("SIZE");
  verb->add_flag("--relayed", options->relayed, "Others cannot connect to this machine: use the driver's relay");
  verb->add_flag("-q,--quiet", options->quiet, "Print nothing on stderr but errors");
}

}  // namespace motley::cli
