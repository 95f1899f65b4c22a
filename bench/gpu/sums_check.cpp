// Two processes of one machine add up as the ranks of a stage do, on one device: whether sums have the bits of the
// host's, whether a recorded one is replayed right, and whether the loss of one process frees the other.
//
//   sums_check BACKEND WAY [SIZES] [REPLAYS]      BACKEND: cuda:0; or cpu: the kernels' source on the processor
//                                                 WAY: pinned, peers
//
// Prints one object of JSON; fails where one of these is not so.
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <csignal>
#include <iostream>
#include <random>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/engine/device/collectives.hpp"
#include "motley/engine/device/rank_sums.hpp"
#include "motley/engine/devices.hpp"
#include "motley/engine/ops/ops.hpp"
#include "motley/engine/stage/kernels_on_host_test.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

constexpr std::int64_t most_sum_bytes = 1 << 20, replayed_count = 2048, timed_rounds = 200;

struct Asked {
  std::string backend;
  SumWay way = SumWay::peers;
  int sizes = 500, replays = 1000;
};

Error wrong(const std::string& what) { return Error(ErrorCode::internal, what); }

const ComputeDevice& device_of(const Asked& asked) {
  if (asked.backend != "cpu") return open_device(asked.backend);
  static const KernelsOnHost on_host;
  return on_host;
}

void check_bits(const Asked& asked, WorkerGroup& group, const ComputeDevice& device, const RankSums& sums) {
  Collectives by_kernels(&group, device, &sums), by_host(&group, device);
  std::mt19937 same(7);
  at::manual_seed(group.rank());
  const double most = asked.way == SumWay::pinned ? 64 << 10 : most_sum_bytes;
  for (int time = 0; time < asked.sizes; ++time) {
    const auto bytes =
        static_cast<std::int64_t>(16 * std::pow(most / 16, std::uniform_real_distribution<double>()(same)));
    const at::ScalarType type = time % 2 == 0 ? at::kFloat : at::kBFloat16;
    at::Tensor terms =
        at::randn({bytes / static_cast<std::int64_t>(c10::elementSize(type))}).to(type).to(device.place());
    at::Tensor other = terms.clone();
    if (!by_kernels.on_device(bytes)) throw wrong(fmt::format("{} bytes go by way of the host", bytes));
    by_kernels.sum(terms);
    by_host.sum(other);
    if (!terms.equal(other)) throw wrong(fmt::format("sum {} of {} bytes has other bits than the host's", time, bytes));
  }
}

void check_replays(const Asked& asked, WorkerGroup& group, const ComputeDevice& device, const RankSums& sums) {
  const std::shared_ptr<const Ops> ops = device.make_ops();
  const at::Tensor terms = at::empty({replayed_count}, device.options(at::kFloat));
  const at::Tensor numbers = at::arange(replayed_count, at::kFloat).to(device.place());
  for (int time = 0; time < asked.replays; ++time) {
    terms.copy_(numbers + (group.rank() + 1) * time);
    ops->replay_or_run(1, [&] { sums.sum(terms); });
    if (!terms.equal(2 * numbers + 3 * time)) throw wrong(fmt::format("replay {} is wrong", time));
  }
}

double seconds_of_a_sum(const ComputeDevice& device, const RankSums& sums) {
  const at::Tensor terms = at::zeros({replayed_count}, device.options(at::kFloat));
  device.wait_for_thread();
  const Instant start = Clock::now();
  for (int time = 0; time < timed_rounds; ++time) sums.sum(terms);
  device.wait_for_thread();
  return seconds_since(start) / timed_rounds;
}

// The other process has ended without a word. How long this one waits yet once it is told so.
double seconds_to_give_up(const ComputeDevice& device, const RankSums& sums, std::stop_source& stop) {
  const at::Tensor terms = at::zeros({replayed_count}, device.options(at::kFloat));
  Instant told;
  const std::jthread teller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    told = Clock::now();
    stop.request_stop();
  });
  sums.sum(terms);
  device.wait_for_thread();
  const double seconds = seconds_since(told);
  try {
    sums.check();
  } catch (const GroupBroken&) {
    return seconds;
  }
  throw wrong("a sum without the other process has a result");
}

void run_rank(const Asked& asked, int rank, int socket, pid_t other) {
  const c10::InferenceMode guard;
  const ComputeDevice& device = device_of(asked);
  LinkedProcess here("shm", rank, socket);
  std::stop_source stop;
  const auto sums = RankSums::meet(here.group, device, most_sum_bytes, asked.way, stop.get_token());
  const SumWay way = sums ? sums->way() : SumWay::host;
  if (way != asked.way)
    throw wrong(fmt::format("the ranks add up by way of {}, not of {}", name(way), name(asked.way)));
  check_bits(asked, here.group, device, *sums);
  check_replays(asked, here.group, device, *sums);
  const double sum_s = seconds_of_a_sum(device, *sums);
  sums->check();
  float done = 1;
  here.group.all_reduce(std::as_writable_bytes(std::span(&done, 1)), CollectiveElement::fp32);
  if (rank == 0) ::_exit(0);  // as a process that is killed, without a word
  ::waitpid(other, nullptr, 0);
  const double give_up_s = seconds_to_give_up(device, *sums, stop);
  std::cout << fmt::format(R"({{"way": "{}", "sizes": {}, "replays": {}, "sum_us": {:.1f}, "give_up_s": {:.3f}}})",
                           name(way), asked.sizes, asked.replays, 1e6 * sum_s, give_up_s)
            << std::endl;
}

int run(const Asked& asked) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return 2;
  const pid_t child = ::fork();  // before anything is opened on a device
  if (child == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int rank = child == 0 ? 0 : 1;
  ::close(ends[static_cast<std::size_t>(1 - rank)]);
  try {
    run_rank(asked, rank, ends[static_cast<std::size_t>(rank)], child);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << fmt::format("error: rank {}: {}\n", rank, error.what());
    if (rank == 0) ::_exit(1);
    return 1;
  }
}

}  // namespace
}  // namespace motley

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (words.size() < 2 || words.size() > 4 || (words[1] != "pinned" && words[1] != "peers")) {
    std::cerr << "usage: sums_check BACKEND pinned|peers [SIZES] [REPLAYS]\n";
    return 2;
  }
  motley::Asked asked{.backend = words[0], .way = words[1] == "peers" ? motley::SumWay::peers : motley::SumWay::pinned};
  if (words.size() > 2) asked.sizes = std::stoi(words[2]);
  if (words.size() > 3) asked.replays = std::stoi(words[3]);
  return motley::run(asked);
}
