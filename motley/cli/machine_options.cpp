#include "motley/cli/machine_options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <tuple>

#include "motley/agent/machine.hpp"
#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/comm/authority/machine_name.hpp"

namespace motley::cli {

void add_machine_options(CLI::App& verb, MachineOptions& options) {
  verb.add_option("--memory", options.memory, "Memory that this machine offers (default: nine tenths of what is free)")
      ->type_name("SIZE");
  verb.add_option("--name", options.name, "Name of this machine (default: its host name)")->type_name("NAME");
  verb.add_option("--devices", options.devices, "Equal parts of the processor, a worker each (default 1)")
      ->check(CLI::Range(1, 64));
  verb.add_option("--device-threads", options.threads, "Threads of each worker (default: all processors, shared)")
      ->check(CLI::Range(1, 1024));
}

std::string machine_name(const MachineOptions& options) {
  std::string name = options.name;
  if (name.empty()) {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    name = machine_name_of_host(host.data());
  }
  if (const std::string objection = machine_name_objection(name); !objection.empty())
    throw input_error(objection, machine_name_hint);
  return name;
}

namespace {

// The rates of an earlier run on the same processor, so that a machine that rejoins under load is not taken for a slow
// one. Nothing where there are none.
std::optional<std::pair<double, double>> kept_rates(const std::filesystem::path& file, const std::string& processor) {
  std::ifstream in(file);
  std::string name;
  double bytes_per_s = 0, flop_per_s = 0;
  if (!std::getline(in, name) || name != processor || !(in >> bytes_per_s >> flop_per_s) || !(bytes_per_s > 0) ||
      !(flop_per_s > 0))
    return std::nullopt;
  return std::pair(bytes_per_s, flop_per_s);
}

}  // namespace

std::int64_t offered_memory_bytes(const MachineOptions& options) {
  const std::int64_t usable = usable_memory_bytes();
  if (options.memory.empty()) return usable;
  const double memory = parse_bytes_option(options.memory, "--memory");
  if (memory > static_cast<double>(usable))
    throw input_error(fmt::format("--memory {} is more than the {} that are free here", options.memory,
                                  human_bytes(static_cast<double>(usable))),
                      "offer less, or end what uses the memory");
  return static_cast<std::int64_t>(memory);
}

std::vector<OfferedDevice> offered_devices(const MachineOptions& options, const std::filesystem::path& state) {
  const std::int64_t memory = offered_memory_bytes(options);
  const int devices = options.devices;
  const int threads = options.threads > 0 ? options.threads : std::max(1, usable_threads() / devices);
  const std::string processor = processor_name(devices * threads);
  const std::filesystem::path file = state / "rates";
  OfferedDevice all{.kind = processor_kind(), .memory_bytes = memory};
  if (const auto rates = kept_rates(file, processor)) {
    std::tie(all.bytes_per_s, all.flop_per_s) = *rates;
  } else {
    all = measure_processor(memory, devices * threads);
    try {
      std::filesystem::create_directories(state);
      replace_file(file, fmt::format("{}\n{:.6g} {:.6g}\n", processor, all.bytes_per_s, all.flop_per_s));
    } catch (const std::exception&) {
      // It is measured again the next time.
    }
  }
  return std::vector(static_cast<std::size_t>(devices), OfferedDevice{.kind = all.kind,
                                                                      .memory_bytes = memory / devices,
                                                                      .bytes_per_s = all.bytes_per_s / devices,
                                                                      .flop_per_s = all.flop_per_s / devices,
                                                                      .threads = threads});
}

}  // namespace motley::cli
