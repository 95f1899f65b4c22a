// How fast the GPUs are that a machine offers: measured once, and kept.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "motley/agent/agent_messages.hpp"
#include "motley/workers/copy_list.hpp"
#include "motley/workers/gpu_list.hpp"

namespace motley {

// As OfferedDevice::rates: a device type of a cluster file in JSON, of which the rates count. Throws a peer error for
// rates that no device has.
std::string rates_text(const DeviceType& rates);
DeviceType parse_rates(std::string_view text, const std::string& source);

// What measures: child processes that open a GPU, each with a limit of time. Throws an environment error where it
// fails.
struct GpuMeasuring {
  std::function<DeviceType(const ListedGpu& gpu)> rates;  // of steps and of copies
  std::function<CopyRates(const ListedGpu& gpu)> copies;
  std::function<LinkSpeed(const ListedGpu& from, const ListedGpu& to)> link;
};
// `program cluster probe --rates`, and `worker --copies`.
GpuMeasuring measuring_by(const std::filesystem::path& program, const std::filesystem::path& worker);

constexpr const char* gpu_rates_file = "gpu-rates";  // in an agent's state folder

// By GPUs and the versions of what computes on them.
class KeptGpuRates {
 public:
  // A file that is not there, or holds something else, has none.
  explicit KeptGpuRates(std::filesystem::path file);
  const DeviceType* rates(const ListedGpu& gpu) const;
  const LinkSpeed* link(const ListedGpu& from, const ListedGpu& to) const;
  void keep_rates(const ListedGpu& gpu, const DeviceType& rates);
  void keep_link(const ListedGpu& from, const ListedGpu& to, const LinkSpeed& link);
  // Where the file cannot be written, they are measured again the next time.
  void write() const;

 private:
  std::filesystem::path file_;
  std::map<std::string, DeviceType> rates_;
  std::map<std::string, LinkSpeed> links_;
};

// Puts rates into what is offered of these GPUs, and the links between them. What is not kept is measured: of the first
// GPU of a kind steps and copies, of the others copies alone, since they may be in slower slots, and of each kind of
// pair the link between two. `report` hears what is measured, and what could not be: that goes by the catalogue.
void add_gpu_rates(std::vector<OfferedDevice>& devices, const std::vector<ListedGpu>& gpus, KeptGpuRates& kept,
                   const GpuMeasuring& measuring, const std::function<void(const std::string&)>& report);

}  // namespace motley
