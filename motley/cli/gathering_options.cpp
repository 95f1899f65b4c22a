#include "motley/cli/gathering_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string_view>

#include "motley/base/error.hpp"
#include "motley/cli/command.hpp"

namespace motley::cli {
namespace {

std::string check_store(const std::string& url) {
  return url.starts_with("etcd://") ? "" : fmt::format("\"{}\" is not of the form etcd://HOST:PORT/PREFIX", url);
}

// Whether it leads here is for the other machines to say: a name may be this machine's only later.
std::string check_host(const std::string& host) {
  const bool fits = !host.empty() && std::ranges::all_of(host, [](unsigned char letter) {
    return std::isalnum(letter) != 0 ||
           std::string_view(".-_:[]").find(static_cast<char>(letter)) != std::string_view::npos;
  });
  return fits ? "" : fmt::format("\"{}\" is neither an address nor a machine's name", host);
}

double token_lifetime_s(const std::string& text) {
  const double seconds = parse_seconds_option(text, "--token-lifetime");
  if (seconds > 0) return seconds;
  throw input_error("--token-lifetime must be above 0 s", "give a time, as in --token-lifetime \"24 h\"");
}

// `motley join` on this machine.
std::vector<std::string> local_agent(const MachineOptions& machine, const std::string& name) {
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(), "join", "-q", "--name",
                                 name};
  if (!machine.memory.empty()) words.insert(words.end(), {"--memory", machine.memory});
  if (!machine.gpus.empty()) words.insert(words.end(), {"--devices", machine.gpus});
  if (machine.processor) words.emplace_back("--processor");
  if (machine.processor_parts > 0)
    words.insert(words.end(), {"--processor-parts", std::to_string(machine.processor_parts)});
  if (machine.threads > 0) words.insert(words.end(), {"--device-threads", std::to_string(machine.threads)});
  return words;
}

// The line by which other machines join.
void print_invitation(const Invitation& invitation) {
  fmt::print("motley join '{}'\n", to_text(invitation));
  std::fflush(stdout);
}

}  // namespace

void add_gathering_options(CLI::App& verb, GatheringFlags& flags) {
  add_machine_options(verb, flags.machine);
  verb.add_option("--token-lifetime", flags.token_lifetime,
                  "How long a printed link admits new machines (default \"24 h\")")
      ->type_name("TIME");
  verb.add_option("--listen", flags.listen, "Address or name of this machine for the others (default: found)")
      ->type_name("HOST")
      ->check(check_host);
  verb.add_flag("--relay", flags.relays, "Pass data on between machines that join with --relayed");
  add_handshakes_option(verb, flags.most_handshakes);
}

CLI::Option* add_store_option(CLI::App& verb, std::string& store, const std::string& help) {
  return verb.add_option("--store", store, help)->type_name("URL")->check(check_store);
}

void add_handshakes_option(CLI::App& verb, std::size_t& most) {
  verb.add_option("--max-handshakes", most, "Most connections of one address without a credential (default 128)")
      ->check(CLI::Range(1, 4096));
}

GatheringOptions gathering_options(const GatheringFlags& flags, EventLog& events) {
  check_machine_options(flags.machine);  // throws here rather than in this machine's agent
  GatheringOptions options;
  options.name = machine_name(flags.machine);
  options.host = flags.listen;
  options.relays = flags.relays;
  options.strangers = strangers_with(flags.most_handshakes);
  options.token_lifetime_s = token_lifetime_s(flags.token_lifetime);
  options.local_agent = local_agent(flags.machine, options.name);
  options.report = std::ref(events);
  options.show_invitation = print_invitation;
  return options;
}

}  // namespace motley::cli
