// Watches this machine's GPUs by the library of NVIDIA's driver, on a thread of its own: a call about a GPU that has
// failed may take as long as it likes.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "motley/comm/net/wakeup.hpp"

namespace motley {

// A device that is a GPU.
struct WatchedGpu {
  std::string device;  // "box/0"
  std::string uuid;    // as the driver knows it: "GPU-..." or "MIG-..."
};

struct GpuWatchOptions {
  std::vector<WatchedGpu> gpus = {};
  std::string library = "libnvidia-ml.so.1";
  double poll_s = 5;  // between two looks at a GPU of which no event comes: not every driver has them
};

struct GpuWatchState;

// Of one thread, that of its owner. Without GPUs nothing is opened.
class GpuWatch {
 public:
  // `wake` is notified when something can be asked below, and outlives this.
  GpuWatch(GpuWatchOptions options, const Wakeup& wake);
  ~GpuWatch();  // waits for the thread a moment, and leaves it behind where a call does not return
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // Devices that cannot be used any more, and why, or that can again (empty), since the last call.
  std::vector<std::pair<std::string, std::string>> changes();
  // Why something is not watched, once.
  std::vector<std::string> objections();
  // Looks at all soon: something has ended as it does where a GPU fails.
  void look_soon();

  // Waits from now on until these processes have given the device's memory back.
  void await_release(const std::string& device, std::set<unsigned> processes);
  // None: it is waited for. Otherwise what has not come, for people; empty: all has, or the device is not watched.
  std::optional<std::string> released(const std::string& device);

 private:
  const std::shared_ptr<GpuWatchState> state_;  // the thread's, too
  std::thread thread_;
};

}  // namespace motley
