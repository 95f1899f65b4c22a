#include "motley/cli/machine_options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "motley/agent/gpu_rates.hpp"
#include "motley/agent/machine.hpp"
#include "motley/agent/offered_gpus.hpp"
#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/comm/authority/machine_name.hpp"

namespace motley::cli {

void add_machine_options(CLI::App& verb, MachineOptions& options) {
  verb.add_option("--memory", options.memory,
                  "Most memory: of each GPU, of the processor (default: what is free, less a rest)")
      ->type_name("SIZE");
  verb.add_option("--name", options.name, "Name of this machine (default: its host name)")->type_name("NAME");
  verb.add_option("--devices", options.gpus, "GPUs to offer, as 0,2, or none (default: all; see motley doctor)")
      ->type_name("NUMBERS");
  verb.add_flag("--processor", options.processor, "Offer the processor, too; it is where no GPU is");
  verb.add_option("--processor-parts", options.processor_parts,
                  "Offer the processor as equal parts, a worker each (default 1)")
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

constexpr double most_memory = 0x1p60;  // that is told from more

// As 0,2. Nothing: all that can be used.
std::optional<std::vector<int>> chosen_gpus(const MachineOptions& options) {
  if (options.gpus.empty()) return std::nullopt;
  std::vector<int> chosen;
  if (options.gpus == no_gpus) return chosen;
  for (std::string_view rest = options.gpus;; rest.remove_prefix(1)) {
    int number = -1;
    const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    if (failure != std::errc() || number < 0 || !(rest.empty() || rest.front() == ','))
      throw input_error(fmt::format("--devices {} does not name GPUs", options.gpus),
                        "give their numbers, as `motley doctor` shows them: --devices 0,2");
    chosen.push_back(number);
    if (rest.empty()) return chosen;
  }
}

std::optional<std::int64_t> most_memory_bytes(const MachineOptions& options) {
  if (options.memory.empty()) return std::nullopt;
  return static_cast<std::int64_t>(std::min(parse_bytes_option(options.memory, "--memory"), most_memory));
}

// Of the processor, where no GPU is offered. Throws an input error where --memory is more than there is.
std::int64_t host_memory_bytes(const MachineOptions& options) {
  const std::int64_t usable = usable_memory_bytes();
  const std::int64_t memory = most_memory_bytes(options).value_or(usable);
  if (memory > usable)
    throw input_error(fmt::format("--memory {} is more than the {} that are free here", options.memory,
                                  human_bytes(static_cast<double>(usable))),
                      "offer less, or end what uses the memory");
  return memory;
}

GpuList gpus_here(const MachineOptions& options, const std::filesystem::path& worker_program) {
  return options.gpus == no_gpus || !may_have_gpus() ? GpuList() : list_gpus(worker_program);
}

// The stand-in computes in the processor's place where tests name its library.
std::string processor_backend() {
  const char* library = std::getenv("MOTLEY_TEST_DEVICES");
  return library != nullptr && *library != '\0' ? "apart:0" : "cpu";
}

// In these slots, with all threads but one for each GPU that is offered.
std::vector<OfferedDevice> offered_processor(const MachineOptions& options, const std::filesystem::path& state,
                                             std::size_t first_slot, int gpus) {
  const int parts = std::max(1, options.processor_parts);
  if (first_slot + static_cast<std::size_t>(parts) > max_offered_devices)
    throw input_error(fmt::format("{} parts of the processor do not fit into the slots after {} of GPUs: there are {}",
                                  parts, first_slot, max_offered_devices),
                      fmt::format("offer fewer, or delete {}, which keeps the slots of GPUs that are gone",
                                  (state / "slots").string()));
  const int threads = options.threads > 0 ? options.threads : std::max(1, (usable_threads() - gpus) / parts);
  const std::int64_t memory = gpus == 0
                                  ? host_memory_bytes(options)
                                  : std::min(usable_memory_bytes(), most_memory_bytes(options).value_or(INT64_MAX));
  const std::string processor = processor_name(parts * threads);
  const std::filesystem::path file = state / "rates";
  OfferedDevice all{.kind = processor_kind(), .memory_bytes = memory};
  if (const auto rates = kept_rates(file, processor)) {
    std::tie(all.bytes_per_s, all.flop_per_s) = *rates;
  } else {
    all = measure_processor(memory, parts * threads);
    try {
      std::filesystem::create_directories(state);
      replace_file(file, fmt::format("{}\n{:.6g} {:.6g}\n", processor, all.bytes_per_s, all.flop_per_s));
    } catch (const std::exception&) {
      // It is measured again the next time.
    }
  }
  std::vector<OfferedDevice> devices(static_cast<std::size_t>(parts),
                                     OfferedDevice{.kind = all.kind,
                                                   .memory_bytes = memory / parts,
                                                   .bytes_per_s = all.bytes_per_s / parts,
                                                   .flop_per_s = all.flop_per_s / parts,
                                                   .threads = threads,
                                                   .backend = processor_backend()});
  for (OfferedDevice& device : devices) device.slot = static_cast<std::int32_t>(first_slot++);
  return devices;
}

}  // namespace

void check_machine_options(const MachineOptions& options) {
  const auto chosen = chosen_gpus(options);
  most_memory_bytes(options);
  if (may_have_gpus() && options.gpus != no_gpus) return;
  offered_gpus({}, {}, {.slots = chosen});
  host_memory_bytes(options);
}

std::vector<OfferedDevice> offered_devices(
    const MachineOptions& options, const std::filesystem::path& state, const std::filesystem::path& worker_program,
    const std::function<void(const std::string& what, const std::string& detail)>& report) {
  const GpuList list = gpus_here(options, worker_program);
  const std::vector<std::string> slots = gpu_slots(state / "slots", list.gpus);
  if (!list.gpus.empty()) try {
      keep_gpu_slots(state / "slots", slots);
    } catch (const std::exception&) {
      // GPUs that are new may have other slots the next time.
    }
  GpuChoice choice{.slots = chosen_gpus(options), .memory_bytes = most_memory_bytes(options)};
  const std::size_t count = std::max<std::size_t>(1, choice.slots ? choice.slots->size() : list.gpus.size());
  choice.threads = options.threads > 0 ? options.threads : std::max(1, usable_threads() / static_cast<int>(count));
  auto [devices, left_out] = offered_gpus(list, slots, choice);
  for (const std::string& why : left_out) report("gpus", why + ": it is not offered");
  if (!list.cause.empty()) report("gpus", fmt::format("none are offered: {}", list.cause));
  if (!devices.empty()) {
    KeptGpuRates kept(state / gpu_rates_file);
    add_gpu_rates(devices, list.gpus, kept,
                  measuring_by(std::filesystem::read_symlink("/proc/self/exe"), worker_program),
                  [&](const std::string& what) { report("gpus", what); });
  }
  if (devices.empty() || options.processor || options.processor_parts > 0) {
    // Where GPUs are gone for a while, it does not take the place of one in a plan that runs.
    const std::size_t first_slot = options.gpus == no_gpus ? 0 : slots.size();
    std::ranges::copy(offered_processor(options, state, first_slot, static_cast<int>(devices.size())),
                      std::back_inserter(devices));
  }
  return std::move(devices);
}

}  // namespace motley::cli
