#include "motley/engine/copy_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <exception>
#include <functional>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/engine/devices.hpp"

namespace motley {
namespace {

constexpr std::int64_t small_bytes = std::int64_t{16} << 10, large_bytes = std::int64_t{64} << 20;
constexpr double measured_s = 0.2;  // of each rate
constexpr int untimed = 3, most_small_copies = 500;

enum class Way { up, down };

// Copies in one direction, by the thread that makes it.
class HostCopies {
 public:
  HostCopies(const std::string& device, Way way, std::int64_t bytes)
      : device_(open_device(device)),
        way_(way),
        there_(at::zeros({bytes}, device_.options(at::kByte))),
        here_(device_.host_space(there_, buffer_)) {
    if (!device_.has_own_memory())
      throw input_error(device + " has no memory of its own: nothing is copied", "name a GPU, as cuda:0");
    here_.zero_();
    for (int i = 0; i < untimed; ++i) copy();
  }
  void copy() {
    (way_ == Way::up ? there_ : here_).copy_(way_ == Way::up ? here_ : there_, true);
    device_.wait_for_thread();
  }

 private:
  const ComputeDevice& device_;
  const Way way_;
  at::Tensor buffer_, there_, here_;
};

// The median, which what disturbs a few copies does not change.
double seconds_of(const std::function<void()>& copy) {
  std::vector<double> seconds;
  const Instant start = Clock::now();
  while (seconds.empty() || (seconds_since(start) < measured_s && seconds.size() < most_small_copies)) {
    const Instant copied = Clock::now();
    copy();
    seconds.push_back(seconds_since(copied));
  }
  std::ranges::nth_element(seconds, seconds.begin() + std::ssize(seconds) / 2);
  return seconds[seconds.size() / 2];
}

double copy_s(const std::string& device, Way way, std::int64_t bytes) {
  HostCopies copies(device, way, bytes);
  return seconds_of([&] { copies.copy(); });
}

// Both directions for the same time, each by a thread of its own.
CopyRates rates_at_once(const std::string& device, double latency_s) {
  CopyRates rates{.latency_s = latency_s};
  std::barrier start(2);
  std::atomic<bool> ended = false;
  std::array<std::exception_ptr, 2> failures;
  const auto copy_for_a_while = [&](Way way) {
    HostCopies copies(device, way, large_bytes);
    start.arrive_and_wait();
    const Instant began = Clock::now();
    double copied = 0;
    do {
      copies.copy();
      copied += static_cast<double>(large_bytes);
    } while (!ended && seconds_since(began) < measured_s);
    ended = true;
    (way == Way::up ? rates.upload_bytes_per_s : rates.download_bytes_per_s) = copied / seconds_since(began);
  };
  const auto run = [&](Way way) {
    try {
      copy_for_a_while(way);
    } catch (...) {
      failures[static_cast<std::size_t>(way)] = std::current_exception();
      ended = true;
      start.arrive_and_drop();
    }
  };
  {
    const std::jthread down([&] { run(Way::down); });
    run(Way::up);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return rates;
}

DeviceCopies probed_copies(const std::string& device) {
  const double latency_s = std::max(copy_s(device, Way::up, small_bytes), copy_s(device, Way::down, small_bytes));
  const auto rate = [&](Way way) { return static_cast<double>(large_bytes) / copy_s(device, way, large_bytes); };
  return {
      .device = device,
      .alone = {.upload_bytes_per_s = rate(Way::up), .download_bytes_per_s = rate(Way::down), .latency_s = latency_s},
      .at_once = rates_at_once(device, latency_s),
      .free_bytes = open_device(device).free_bytes().value_or(0)};
}

double link_s(const ComputeDevice& from, const ComputeDevice& to, std::int64_t bytes) {
  const at::Tensor here = at::zeros({bytes}, from.options(at::kByte)),
                   there = at::zeros({bytes}, to.options(at::kByte));
  const auto copy = [&] {
    there.copy_(here, true);
    from.synchronize();
    to.synchronize();
  };
  for (int i = 0; i < untimed; ++i) copy();
  return seconds_of(copy);
}

DeviceLink link_of(const std::string& from, const std::string& to) {
  const ComputeDevice &here = open_device(from), &there = open_device(to);
  return {.from = from,
          .to = to,
          .speed = {.latency_s = link_s(here, there, small_bytes),
                    .bandwidth_bytes_per_s = static_cast<double>(large_bytes) / link_s(here, there, large_bytes)}};
}

}  // namespace

CopyList probe_copies(const std::vector<std::string>& devices) {
  CopyList list;
  for (const std::string& device : devices) list.devices.push_back(probed_copies(device));
  for (const std::string& from : devices)
    for (const std::string& to : devices)
      if (from != to) list.links.push_back(link_of(from, to));
  return list;
}

}  // namespace motley
