// What a hop of many rows costs from one stage's device to the next stage's, down, over a wire and up: against each of
// these alone, and against one after the other.
//
//   crossing_check FROM TO [RATE] [ROWS]      FROM, TO: cuda:0 cuda:0; or apart:0 apart:1 (MOTLEY_TEST_DEVICES)
//                                             RATE: of the wire, in bytes per second; 1e9 if not given
//                                             ROWS: of 8 KiB; 2048 if not given
//
// The wire is TCP on this machine, which the kernel paces. Prints one object of JSON.
#include <c10/core/InferenceMode.h>
#include <dirent.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/median.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/devices.hpp"
#include "motley/engine/stage/crossing.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

constexpr std::int64_t width = 4096;  // in bf16
constexpr int timed_hops = 9;
constexpr std::uint64_t steps_in_a_row = 8;

struct Found {
  double down_s = 0, wire_s = 0, up_s = 0;  // each alone
  double serial_s = 0;                      // one after the other
  double hop_s = 0, post_s = 0;             // of a step alone: until it is there, and until who posts it goes on
  double step_s = 0;                        // of many in a row
};

// Two threads, the sender's and the receiver's, that begin each measurement together and end it together.
class Turns {
 public:
  double timed_s(const std::function<void()>& work) {
    both_.arrive_and_wait();
    const Instant start = Clock::now();
    work();
    both_.arrive_and_wait();
    return seconds_since(start);
  }
  double median_s(const std::function<void()>& work) {
    std::vector<double> all;
    for (int i = 0; i < timed_hops; ++i) all.push_back(timed_s(work));
    return median(std::move(all));
  }

 private:
  std::barrier<> both_{2};
};

// Connections of this process send no faster from now on.
void pace_connections(double bytes_per_s) {
  const auto rate = static_cast<std::uint64_t>(bytes_per_s);
  DIR* files = ::opendir("/proc/self/fd");
  bool paced = false;
  while (const dirent* file = files != nullptr ? ::readdir(files) : nullptr)
    paced |= ::setsockopt(std::atoi(file->d_name), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) == 0;
  if (files != nullptr) ::closedir(files);
  if (!paced) throw Error(ErrorCode::environment, "the kernel paces no connections", "Linux 4.13 or newer does");
}

void send(const ComputeDevice& device, std::int64_t rows, WorkerGroup& group, Turns& turns, Found& found) {
  const at::Tensor hidden = at::zeros({rows, width}, device.options(at::kBFloat16));
  at::Tensor buffer;
  const at::Tensor host = device.host_space(hidden, buffer);
  const auto down = [&] {
    host.copy_(hidden, /*non_blocking=*/true);
    device.wait_for_thread();
  };
  const auto onto_the_wire = [&] { group.send(bytes_of(host), 1); };
  found.down_s = turns.median_s(down);
  found.wire_s = turns.median_s(onto_the_wire);
  found.up_s = turns.median_s([] {});
  found.serial_s = turns.median_s([&] {
    down();
    onto_the_wire();
  });

  CrossingSender sender(device);
  const std::vector<WorkerGroup*> to{&group};
  std::vector<double> posts_s;
  found.hop_s = turns.median_s([&] {
    const Instant start = Clock::now();
    sender.post(hidden, DType::bf16, to);
    posts_s.push_back(seconds_since(start));
  });
  found.post_s = median(std::move(posts_s));
  found.step_s = turns.timed_s([&] {
    for (std::uint64_t step = 0; step < steps_in_a_row; ++step) sender.post(hidden, DType::bf16, to);
  }) / steps_in_a_row;
}

void receive(const ComputeDevice& device, std::int64_t rows, WorkerGroup& group, Turns& turns, Found&) {
  const at::Tensor buffers = at::zeros({2 * rows, width}, device.options(at::kBFloat16)),
                   there = buffers.narrow(0, 0, rows);
  at::Tensor buffer;
  const at::Tensor host = device.host_space(there, buffer);
  const auto up = [&] {
    there.copy_(host, /*non_blocking=*/true);
    device.wait_for_thread();
  };
  const auto off_the_wire = [&] { group.receive(bytes_of(host), 0); };
  turns.median_s([] {});
  turns.median_s(off_the_wire);
  turns.median_s(up);
  turns.median_s([&] {
    off_the_wire();
    up();
  });

  CrossingReceiver receiver(device, buffers, nullptr);
  std::uint64_t announced = 0, next = 0;
  const auto expect = [&](std::uint64_t steps) {
    while (steps-- > 0) receiver.expect({announced++, rows, DType::bf16, &group});
  };
  const auto take = [&] {
    receiver.take(next++);
    device.wait_for_thread();
    receiver.release();
  };
  turns.median_s([&] {
    expect(1);
    take();
  });
  turns.timed_s([&] {
    expect(steps_in_a_row);
    for (std::uint64_t step = 0; step < steps_in_a_row; ++step) take();
  });
}

void run(const std::string& from, const std::string& to, double rate, std::int64_t rows) {
  const LinkedGroups groups("tcp", 2);
  pace_connections(rate);
  Turns turns;
  Found found;
  const auto side = [&](const std::string& name, std::size_t rank, const auto& part) {
    try {
      const c10::InferenceMode guard;
      const ComputeDevice& device = open_device(name);
      use_own_stream(device);
      part(device, rows, *groups[rank], turns, found);
    } catch (const std::exception& error) {
      std::cerr << "error: " << error.what() << std::endl;
      std::_Exit(1);  // the other waits for it
    }
  };
  std::jthread receiving([&] { side(to, 1, receive); });
  side(from, 0, send);
  receiving.join();
  const double slowest_s = std::max({found.down_s, found.wire_s, found.up_s});
  std::cout << fmt::format(R"({{"bytes": {}, "down_s": {:.3g}, "wire_s": {:.3g}, "up_s": {:.3g}, "serial_s": {:.3g}, )"
                           R"("hop_s": {:.3g}, "step_s": {:.3g}, "post_s": {:.3g}, "hop_to_slowest": {:.3f}, )"
                           R"("serial_to_slowest": {:.3f}}})",
                           rows * width * 2, found.down_s, found.wire_s, found.up_s, found.serial_s, found.hop_s,
                           found.step_s, found.post_s, found.hop_s / slowest_s, found.serial_s / slowest_s)
            << std::endl;
}

}  // namespace
}  // namespace motley

int main(int count, char** arguments) {
  const double rate = count > 3 ? std::atof(arguments[3]) : 1e9;
  const int rows = count > 4 ? std::atoi(arguments[4]) : 2048;
  if (count < 3 || count > 5 || rate < 1e4 || rows < 1) {
    std::cerr << "usage: crossing_check FROM TO [RATE] [ROWS]\n";
    return 2;
  }
  try {
    motley::run(arguments[1], arguments[2], rate, rows);
    std::_Exit(0);  // a library of a device may not survive the end of static objects
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    std::_Exit(1);
  }
}
