#include "motley/workers/gpu_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "motley/base/error.hpp"
#include "motley/base/printable.hpp"

namespace motley {
namespace {

constexpr std::size_t most_gpus = 64, longest_gpu_name = 256, longest_uuid = 64, longest_shown_cause = 1000;
constexpr double most_gpu_bytes = 0x1p48;

constexpr const char* listing_hint =
    "`nvidia-smi` must list the GPUs at once; --devices none does without them, and offers the processor";

// With the hint of the failure that it is part of.
Error unreadable(const std::string& source, const char* what) {
  return {ErrorCode::peer, fmt::format("{}: {}", source, what)};
}

void check_gpu(const ListedGpu& gpu, const std::string& source) {
  if (!is_gpu_uuid(gpu.uuid) || !std::ranges::all_of(gpu.peers, is_gpu_uuid))
    throw unreadable(source, "a UUID that no GPU has");
  if (gpu.name.empty() || gpu.name.size() > longest_gpu_name || printable(gpu.name) != gpu.name)
    throw unreadable(source, "a name that no GPU has");
  if (gpu.pci_bus.size() > longest_uuid || printable(gpu.pci_bus) != gpu.pci_bus)
    throw unreadable(source, "a PCI bus that no GPU has");
  if (gpu.software.size() > longest_gpu_name || printable(gpu.software) != gpu.software)
    throw unreadable(source, "versions that nothing has");
  if (gpu.free_bytes > gpu.total_bytes) throw unreadable(source, "more memory is free than there is");
}

std::vector<ListedGpu> parse_gpus(std::string_view answer, const std::string& name) {
  std::vector<ListedGpu> gpus;
  std::set<std::string> uuids;
  for (std::size_t line = 1; !answer.empty(); ++line) {
    const std::size_t end = std::min(answer.find('\n'), answer.size());
    const std::string source = fmt::format("{}, line {}", name, line);
    ListedGpu gpu = read<ListedGpu>(parse_json(answer.substr(0, end), source), source);
    answer.remove_prefix(std::min(end + 1, answer.size()));
    check_gpu(gpu, source);
    if (!uuids.insert(gpu.uuid).second) throw unreadable(source, "a GPU that was listed before");
    if (uuids.size() > most_gpus) throw unreadable(source, "more GPUs than a machine may have");
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::string parse_cause(std::string_view answer, const std::string& name) {
  const Value value = parse_json(answer, name);
  const Value* cause = value.find("cause");
  if (cause == nullptr || !cause->is_string()) throw unreadable(name, "no `cause`");
  return printable(cause->as_string().substr(0, longest_shown_cause));
}

}  // namespace

Schema<ListedGpu> schema_of(Bound<ListedGpu>) {
  using G = ListedGpu;
  return Schema<G>("gpu", "A GPU, or a slice of one, as CUDA lists it.")
      .field("uuid", &G::uuid, "What CUDA_VISIBLE_DEVICES takes.", {.required = true})
      .field("name", &G::name, "As the driver has it.", {.required = true})
      .field("pci_bus", &G::pci_bus, "Where it is.")
      .field("compute_capability", &G::compute_capability, "As 8.6.", {.required = true, .min = 1, .max = 100})
      .field("total_bytes", &G::total_bytes, "Its memory.", {.required = true, .min = 1, .max = most_gpu_bytes})
      .field("free_bytes", &G::free_bytes, "Free of it.", {.required = true, .min = 0, .max = most_gpu_bytes})
      .field("display", &G::display, "Whether a desktop is shown on it.")
      .field("kernels", &G::kernels, "Version of motley's own.", {.min = 0, .max = 1e6})
      .field("software", &G::software, "Versions of what computes on it.")
      .field("peers", &G::peers, "UUIDs of those whose memory it reaches.");
}

bool may_have_gpus() {
  std::error_code ignored;
  return std::filesystem::exists("/dev/nvidiactl", ignored) ||
         std::filesystem::exists("/dev/dxg", ignored);  // Windows' subsystem for Linux
}

GpuList list_gpus(const std::filesystem::path& program, double within_s) {
  const ChildQuestion question{.program = program,
                               .arguments = {"--devices"},
                               .within_s = within_s,
                               .purpose = "lists the GPUs",
                               .hint = listing_hint};
  const auto [answer, code] = ask_child(question);
  try {
    if (code == 0) return {.gpus = parse_gpus(answer, name_of(question))};
    if (code == static_cast<int>(ErrorCode::environment))
      return {.gpus = {}, .cause = parse_cause(answer, name_of(question))};
  } catch (const Error& error) {
    throw child_failure(question, fmt::format("answers what cannot be read: {}", error.what()));
  }
  throw child_failure(question, fmt::format("ended with exit code {}", code));
}

std::string gpu_lines(const std::vector<ListedGpu>& gpus) {
  std::string lines;
  for (const ListedGpu& gpu : gpus) lines += to_json(write(gpu)) + "\n";
  return lines;
}

std::string no_gpu_line(std::string_view cause) { return to_json(Value::object({{"cause", cause}})) + "\n"; }

bool is_gpu_uuid(std::string_view text) {
  if (text.size() > longest_uuid || text.size() < 5 || !(text.starts_with("GPU-") || text.starts_with("MIG-")))
    return false;
  return text.find_first_not_of("0123456789abcdefABCDEF-", 4) == std::string_view::npos;
}

std::string_view whole_card(std::string_view name) { return name.substr(0, name.find(" MIG ")); }

Variables gpu_variables(const std::string& uuid) {
  return {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES", uuid}};
}

}  // namespace motley
