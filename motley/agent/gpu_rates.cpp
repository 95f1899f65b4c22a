#include "motley/agent/gpu_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "motley/base/files.hpp"

namespace motley {
namespace {

constexpr double measured_within_s = 120;  // of a GPU, with the starts of its workers
constexpr std::size_t longest_rates = 4096;
constexpr double least_rate = 1e6, most_bytes_per_s = 1e15, most_flop_per_s = 1e18;
constexpr double longest_overhead_s = 10;

bool is_rate(double value, double most) { return value >= least_rate && value <= most; }

void check_rates(const DeviceType& rates) {
  const auto can_be = [&] {
    if (!is_rate(rates.memory_bandwidth_bytes_per_s, most_bytes_per_s) || rates.flop_per_s.empty()) return false;
    for (const auto& [type, flop_per_s] : rates.flop_per_s)
      if (!is_rate(flop_per_s, most_flop_per_s)) return false;
    const Overhead overhead = rates.overhead.value_or(Overhead{});
    return is_rate(rates.copies.upload_bytes_per_s, most_bytes_per_s) &&
           is_rate(rates.copies.download_bytes_per_s, most_bytes_per_s) &&
           rates.copies.latency_s <= longest_overhead_s && overhead.layer_s <= longest_overhead_s &&
           overhead.step_s <= longest_overhead_s;
  };
  if (!can_be()) throw Error(ErrorCode::peer, "rates that no device has");
}

std::string key_of(const ListedGpu& gpu) { return gpu.uuid + " " + gpu.software; }
std::string key_of(const ListedGpu& from, const ListedGpu& to) { return from.uuid + " " + key_of(to); }

// The file's values by their keys, those that can be read.
template <class T, class Read>
std::map<std::string, T> read_all(const Value& file, std::string_view key, const Read& read_one) {
  std::map<std::string, T> all;
  const Value* found = file.find(key);
  if (found == nullptr || !found->is_object()) return all;
  for (const auto& [name, value] : found->as_object()) all.emplace(name, read_one(value));
  return all;
}

const ListedGpu* gpu_of(const OfferedDevice& device, const std::vector<ListedGpu>& gpus) {
  const auto found = std::ranges::find(gpus, device.uuid, &ListedGpu::uuid);
  return found == gpus.end() ? nullptr : &*found;
}

// GPUs of a kind compute alike.
std::string kind_of(const ListedGpu& gpu) { return fmt::format("{} {}", gpu.name, gpu.total_bytes); }

}  // namespace

std::string rates_text(const DeviceType& rates) { return to_json(write(rates)); }

DeviceType parse_rates(std::string_view text, const std::string& source) {
  if (text.size() > longest_rates)
    throw Error(ErrorCode::peer, fmt::format("{}: rates of a device that are no rates", source));
  try {
    DeviceType rates = read<DeviceType>(parse_json(text, source), source);
    check_rates(rates);
    return rates;
  } catch (const Error& error) {
    throw Error(ErrorCode::peer, fmt::format("{}: rates of a device that cannot be read: {}", source, error.what()));
  }
}

GpuMeasuring measuring_by(const std::filesystem::path& program, const std::filesystem::path& worker) {
  return {.rates =
              [program](const ListedGpu& gpu) {
                const ChildQuestion question{
                    .program = program,
                    .arguments = {"cluster", "probe", "--rates", "--backend", "cuda:0", "--quiet"},
                    .environment = gpu_variables(gpu.uuid),
                    .within_s = measured_within_s,
                    .purpose = "measures a GPU",
                    .hint = fmt::format("run it by hand, with CUDA_VISIBLE_DEVICES={}, to see what fails", gpu.uuid)};
                const auto [answer, code] = ask_child(question);
                if (code != 0) throw child_failure(question, fmt::format("ended with exit code {}", code));
                return parse_rates(answer, name_of(question));
              },
          .copies =
              [worker](const ListedGpu& gpu) {
                return list_copies(worker, {"cuda:0"}, gpu_variables(gpu.uuid)).devices.front().at_once;
              },
          .link =
              [worker](const ListedGpu& from, const ListedGpu& to) {
                return list_copies(worker, {"cuda:0", "cuda:1"}, gpu_variables(from.uuid + "," + to.uuid))
                    .links.front()
                    .speed;
              }};
}

KeptGpuRates::KeptGpuRates(std::filesystem::path file) : file_(std::move(file)) {
  std::error_code ignored;
  if (!std::filesystem::exists(file_, ignored)) return;
  try {
    const std::string source = file_.string();
    const Value kept = parse_json(read_file(file_), source);
    rates_ =
        read_all<DeviceType>(kept, "rates", [&](const Value& value) { return parse_rates(to_json(value), source); });
    links_ = read_all<LinkSpeed>(kept, "links", [&](const Value& value) { return read<LinkSpeed>(value, source); });
  } catch (const std::exception&) {
    rates_.clear();
    links_.clear();
  }
}

const DeviceType* KeptGpuRates::rates(const ListedGpu& gpu) const {
  const auto found = rates_.find(key_of(gpu));
  return found == rates_.end() ? nullptr : &found->second;
}

const LinkSpeed* KeptGpuRates::link(const ListedGpu& from, const ListedGpu& to) const {
  const auto found = links_.find(key_of(from, to));
  return found == links_.end() ? nullptr : &found->second;
}

void KeptGpuRates::keep_rates(const ListedGpu& gpu, const DeviceType& rates) { rates_[key_of(gpu)] = rates; }

void KeptGpuRates::keep_link(const ListedGpu& from, const ListedGpu& to, const LinkSpeed& link) {
  links_[key_of(from, to)] = link;
}

void KeptGpuRates::write() const {
  Value rates = Value::object(), links = Value::object();
  for (const auto& [key, type] : rates_) rates.set(key, motley::write(type));
  for (const auto& [key, link] : links_) links.set(key, motley::write(link));
  try {
    std::filesystem::create_directories(file_.parent_path());
    replace_file(file_, to_json(Value::object({{"rates", rates}, {"links", links}}), 2) + "\n");
  } catch (const std::exception&) {
    // They are measured again the next time.
  }
}

namespace {

// Measures what is missing of the GPUs that are offered.
class GpuSurvey {
 public:
  GpuSurvey(std::vector<OfferedDevice>& devices, const std::vector<ListedGpu>& gpus, KeptGpuRates& kept,
            const GpuMeasuring& measuring, const std::function<void(const std::string&)>& report)
      : devices_(devices), gpus_(gpus), kept_(kept), measuring_(measuring), report_(report) {}

  void run() {
    for (OfferedDevice& device : devices_)
      if (const ListedGpu* gpu = gpu_of(device, gpus_)) add_rates(device, *gpu);
    for (OfferedDevice& from : devices_)
      for (const OfferedDevice& to : devices_) add_link(from, to);
    if (measured_) kept_.write();
  }

 private:
  void add_rates(OfferedDevice& device, const ListedGpu& gpu) {
    const DeviceType* rates = kept_.rates(gpu);
    if (rates == nullptr && !failed_.contains(kind_of(gpu))) rates = measured(gpu);
    if (rates == nullptr) return;
    of_kind_.try_emplace(kind_of(gpu), *rates);
    device.rates = rates_text(*rates);
    device.bytes_per_s = rates->memory_bandwidth_bytes_per_s;
    const auto bf16 = rates->flop_per_s.find("bf16");
    device.flop_per_s = (bf16 != rates->flop_per_s.end() ? bf16 : rates->flop_per_s.begin())->second;
  }

  const DeviceType* measured(const ListedGpu& gpu) {
    report_(fmt::format("measures {} ({}): once", gpu.name, gpu.uuid));
    const bool done = attempt(kind_of(gpu), gpu.name, [&] {
      const auto like = of_kind_.find(kind_of(gpu));
      DeviceType rates = like != of_kind_.end() ? like->second : measuring_.rates(gpu);
      if (like != of_kind_.end()) rates.copies = measuring_.copies(gpu);
      kept_.keep_rates(gpu, rates);
    });
    return done ? kept_.rates(gpu) : nullptr;
  }

  // One pair of a kind stands for all; slices of cards do not reach each other.
  void add_link(OfferedDevice& from, const OfferedDevice& to) {
    const ListedGpu *here = gpu_of(from, gpus_), *there = gpu_of(to, gpus_);
    if (here == nullptr || there == nullptr || here == there || here->is_slice() || there->is_slice()) return;
    const bool reaches = std::ranges::find(here->peers, there->uuid) != here->peers.end();
    const std::string kind =
        fmt::format("{} to {}, {}", here->name, there->name, reaches ? "by itself" : "through the host");
    const LinkSpeed* link = kept_.link(*here, *there);
    if (const auto like = link_of_kind_.find(kind); link == nullptr && like != link_of_kind_.end()) {
      kept_.keep_link(*here, *there, like->second);
      link = kept_.link(*here, *there);
    }
    if (link == nullptr && !failed_.contains(kind) &&
        attempt(kind, kind, [&] { kept_.keep_link(*here, *there, measuring_.link(*here, *there)); }))
      link = kept_.link(*here, *there);
    if (link == nullptr) return;
    link_of_kind_.try_emplace(kind, *link);
    from.peers.push_back({to.slot, link->latency_s, link->bandwidth_bytes_per_s});
  }

  template <class Measure>
  bool attempt(const std::string& kind, const std::string& name, const Measure& measure) {
    try {
      measure();
      return measured_ = true;
    } catch (const Error& error) {
      report_(fmt::format("{} could not be measured: {}", name, with_hint(error)));
      failed_.insert(kind);
      return false;
    }
  }

  std::vector<OfferedDevice>& devices_;
  const std::vector<ListedGpu>& gpus_;
  KeptGpuRates& kept_;
  const GpuMeasuring& measuring_;
  const std::function<void(const std::string&)>& report_;
  std::map<std::string, DeviceType> of_kind_;
  std::map<std::string, LinkSpeed> link_of_kind_;
  std::set<std::string> failed_;
  bool measured_ = false;
};

}  // namespace

void add_gpu_rates(std::vector<OfferedDevice>& devices, const std::vector<ListedGpu>& gpus, KeptGpuRates& kept,
                   const GpuMeasuring& measuring, const std::function<void(const std::string&)>& report) {
  GpuSurvey(devices, gpus, kept, measuring, report).run();
}

}  // namespace motley
