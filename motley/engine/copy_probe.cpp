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
#include "motley/base/median.hpp"
#include "motley/engine/devices.hpp"

namespace motley {
namespace {

constexpr std::int64_t small_bytes = std::int64_t{16} << 10, large_bytes = std::int64_t{64} << 20;
constexpr double measured_s = 0.2;  // of each rate
constexpr int untimed = 3, most_small_copies = 500;

// Copies in one direction, by the thread that makes it.
class HostCopies {
 public:
  HostCopies(const std::string& device, CopyWay way, std::int64_t bytes, bool pinned = true)
      : device_(open_device(device)),
        way_(way),
        there_(at::zeros({bytes}, device_.options(at::kByte))),
        here_(pinned ? device_.host_space(there_, buffer_) : at::empty({bytes}, at::kByte)) {
    if (!device_.has_own_memory())
      throw input_error(device + " has no memory of its own: nothing is copied", "name a GPU, as cuda:0");
    here_.zero_();
    for (int i = 0; i < untimed; ++i) copy();
  }
  void copy() {
    ask();
    device_.wait_for_thread();
  }
  CopyTimes timed() {
    const Instant start = Clock::now();
    ask();
    const double asked_s = seconds_since(start);
    device_.wait_for_thread();
    return {.asked_s = asked_s, .done_s = seconds_since(start)};
  }

 private:
  void ask() { (way_ == CopyWay::up ? there_ : here_).copy_(way_ == CopyWay::up ? here_ : there_, true); }

  const ComputeDevice& device_;
  const CopyWay way_;
  at::Tensor buffer_, there_, here_;
};

// Calls `copy` for a while, at least once.
void repeat(const std::function<void()>& copy) {
  const Instant start = Clock::now();
  int copies = 0;
  do copy();
  while (seconds_since(start) < measured_s && ++copies < most_small_copies);
}

}  // namespace

CopyTimes copy_times(const std::string& device, CopyWay way, std::int64_t bytes, bool pinned) {
  HostCopies copies(device, way, bytes, pinned);
  std::vector<double> asked, done;
  repeat([&] {
    const CopyTimes times = copies.timed();
    asked.push_back(times.asked_s);
    done.push_back(times.done_s);
  });
  return {.asked_s = median(std::move(asked)), .done_s = median(std::move(done))};
}

CopyRates copy_rates_at_once(const std::string& device, std::int64_t bytes) {
  CopyRates rates;
  std::barrier start(2);
  std::atomic<bool> ended = false;
  std::array<std::exception_ptr, 2> failures;
  const auto copy_for_a_while = [&](CopyWay way) {
    HostCopies copies(device, way, bytes);
    start.arrive_and_wait();
    const Instant began = Clock::now();
    double copied = 0;
    do {
      copies.copy();
      copied += static_cast<double>(bytes);
    } while (!ended && seconds_since(began) < measured_s);
    ended = true;
    (way == CopyWay::up ? rates.upload_bytes_per_s : rates.download_bytes_per_s) = copied / seconds_since(began);
  };
  const auto run = [&](CopyWay way) {
    try {
      copy_for_a_while(way);
    } catch (...) {
      failures[static_cast<std::size_t>(way)] = std::current_exception();
      ended = true;
      start.arrive_and_drop();
    }
  };
  {
    const std::jthread down([&] { run(CopyWay::down); });
    run(CopyWay::up);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return rates;
}

namespace {

DeviceCopies probed_copies(const std::string& device) {
  const auto done_s = [&](CopyWay way, std::int64_t bytes) { return copy_times(device, way, bytes).done_s; };
  const auto rate = [&](CopyWay way) { return static_cast<double>(large_bytes) / done_s(way, large_bytes); };
  const double latency_s = std::max(done_s(CopyWay::up, small_bytes), done_s(CopyWay::down, small_bytes));
  DeviceCopies copies{.device = device,
                      .alone = {.upload_bytes_per_s = rate(CopyWay::up), .download_bytes_per_s = rate(CopyWay::down)},
                      .at_once = copy_rates_at_once(device, large_bytes),
                      .free_bytes = open_device(device).free_bytes().value_or(0)};
  copies.alone.latency_s = copies.at_once.latency_s = latency_s;
  return copies;
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
  std::vector<double> seconds;
  repeat([&] {
    const Instant start = Clock::now();
    copy();
    seconds.push_back(seconds_since(start));
  });
  return median(std::move(seconds));
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
