// How bytes cross between a device and its host, as serving moves them: by size, out of memory that is pinned and that
// is not, and how fast memory is pinned.
//
//   copies_check DEVICE [MOST_MIB]       DEVICE: cuda:0
//
// Prints one object of JSON.
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/engine/copy_probe.hpp"
#include "motley/engine/devices.hpp"

namespace motley {
namespace {

constexpr std::int64_t pinned_bytes = std::int64_t{256} << 20;
constexpr int pinned_times = 3;

std::string line_of(const std::string& device, std::int64_t bytes) {
  const auto seconds = [&](CopyWay way, bool pinned) { return copy_times(device, way, bytes, pinned).done_s; };
  const auto rate = [&](CopyWay way, bool pinned) { return static_cast<double>(bytes) / seconds(way, pinned); };
  const CopyTimes up = copy_times(device, CopyWay::up, bytes), down = copy_times(device, CopyWay::down, bytes);
  const CopyRates at_once = copy_rates_at_once(device, bytes);
  return fmt::format(
      R"({{"bytes": {}, "up_asked_s": {:.3g}, "up_s": {:.3g}, "down_asked_s": {:.3g}, "down_s": {:.3g}, )"
      R"("up_at_once": {:.4g}, "down_at_once": {:.4g}, "up_pageable": {:.4g}, "down_pageable": {:.4g}}})",
      bytes, up.asked_s, up.done_s, down.asked_s, down.done_s, at_once.upload_bytes_per_s, at_once.download_bytes_per_s,
      rate(CopyWay::up, false), rate(CopyWay::down, false));
}

// Of memory that was written before, as weights are when they are pinned; 0 where the device pins none.
double pin_rate(const ComputeDevice& device) {
  std::vector<std::byte> memory(static_cast<std::size_t>(pinned_bytes), std::byte{1});
  double best = 0;
  for (int time = 0; time < pinned_times; ++time) {
    const Instant start = Clock::now();
    if (!device.pin(memory)) return 0;
    best = std::max(best, static_cast<double>(pinned_bytes) / seconds_since(start));
    device.unpin(memory);
  }
  return best;
}

void run(const std::string& device, std::int64_t most_mib) {
  const c10::InferenceMode guard;
  std::vector<std::string> lines;
  for (std::int64_t bytes = 8 << 10; bytes <= most_mib << 20; bytes *= 8) lines.push_back(line_of(device, bytes));
  std::cout << fmt::format(R"({{"copies": [{}], "pin_bytes_per_s": {:.4g}}})", fmt::join(lines, ", "),
                           pin_rate(open_device(device)))
            << std::endl;
}

}  // namespace
}  // namespace motley

int main(int count, char** arguments) {
  if (count < 2 || count > 3) {
    std::cerr << "usage: copies_check DEVICE [MOST_MIB]\n";
    return 2;
  }
  try {
    motley::run(arguments[1], count > 2 ? std::atoi(arguments[2]) : 64);
    std::cout.flush();
    std::_Exit(0);  // a library of a device may not survive the end of static objects
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
