#include "motley/workers/fleet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/cluster/cluster.hpp"

namespace motley {
namespace {

constexpr double leaving_grace_s = 1;
constexpr std::chrono::milliseconds look_every(5);

bool among(const std::vector<std::string>& devices, const std::string& device) {
  return std::ranges::find(devices, device) != devices.end();
}

// Before others start: both may need the same memory.
void end_those_without_a_part(Workers& workers, const std::vector<std::string>& devices) {
  const auto leaving = std::stable_partition(workers.begin(), workers.end(), [&](const Worker& worker) {
    return !worker.handle->exit() && among(devices, worker.device);
  });
  Workers ended(std::make_move_iterator(leaving), std::make_move_iterator(workers.end()));
  workers.erase(leaving, workers.end());
  end_workers(ended, leaving_grace_s);
}

}  // namespace

Workers start_workers(Fleet& fleet, const std::vector<std::string>& devices, const WorkerReads& reads, Workers& earlier,
                      const std::function<bool()>& stopped) {
  end_those_without_a_part(earlier, devices);
  std::vector<std::string> starting, running;
  for (const std::string& device : devices)
    (std::ranges::find(earlier, device, &Worker::device) == earlier.end() ? starting : running).push_back(device);

  Workers come;
  for (const auto start = fleet.begin(starting, running, reads); !start->take(come);
       std::this_thread::sleep_for(look_every)) {
    check_running(earlier, devices);
    check_running(come, devices);
    if (stopped && stopped()) throw Error(ErrorCode::interrupted, "stopped");
  }
  std::ranges::move(earlier, std::back_inserter(come));
  earlier.clear();
  std::ranges::sort(come, {}, [&](const Worker& worker) { return std::ranges::find(devices, worker.device); });
  return come;
}

void check_running(const Workers& workers, const std::vector<std::string>& devices) {
  for (const Worker& worker : workers) {
    const auto exit = worker.handle->exit();
    if (!exit) continue;
    if (exit->how == WorkerExit::How::machine)
      throw WorkersNotStarted(machine_gone(devices, machine_of(worker.device)));
    throw WorkersNotStarted(
        {Error(ErrorCode::peer, fmt::format("{} {}", worker.name(), exit->text())), {worker.device}});
  }
}

}  // namespace motley
