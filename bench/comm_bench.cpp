// How long collectives take among processes of this machine: comm_bench [transport] [ranks] [operation] [max bytes]
//   transport: shm, tcp, tls; operation: all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, barrier
// Prints, per size, the median and the smallest time of an operation at rank 0, and the rate at which a rank's vector
// goes through (bytes / time), rank 0's processor time per operation, waiting included; for all_reduce also the bus
// bandwidth 2 (n - 1) / n times that.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/authority.hpp"
#include "motley/comm/communicator.hpp"
#include "motley/comm/fabric.hpp"

namespace {

using namespace motley;
using Clock = std::chrono::steady_clock;

constexpr int most_ranks = 16;

struct Meeting {
  std::atomic<int> there;
  char addresses[most_ranks][64];
};

struct Task {
  std::string transport = "shm";
  int ranks = 2;
  std::string operation = "all_reduce";
  std::size_t most_bytes = std::size_t{256} << 20;
};

double cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

void once(Communicator& group, const Task& task, std::span<std::byte> data) {
  OperationOutcome outcome;
  const OperationOptions options{.timeout_s = 60};
  if (task.operation == "all_reduce") outcome = group.all_reduce(data, CollectiveElement::fp32, options);
  if (task.operation == "broadcast") outcome = group.broadcast(data, 0, options);
  if (task.operation == "all_gather") outcome = group.all_gather(data, options);
  if (task.operation == "reduce_scatter") outcome = group.reduce_scatter(data, CollectiveElement::fp32, options);
  if (task.operation == "barrier") outcome = group.barrier(options);
  if (task.operation == "all_to_all") {
    static std::vector<std::byte> out;
    out.resize(data.size());
    const std::vector<std::int64_t> blocks(static_cast<std::size_t>(group.size()),
                                           static_cast<std::int64_t>(data.size()) / group.size());
    outcome = group.all_to_all(data, blocks, out, blocks, options);
  }
  if (outcome.status != OperationStatus::ok) throw Error(ErrorCode::peer, outcome.cause);
}

void work(Meeting& meeting, const Task& task, int rank, const TlsIdentity& identity) {
  FabricOptions options;
  options.key = "bench";
  if (task.transport == "tls") {
    options.identity = identity;
    options.encryption = Encryption::always;
  }
  Fabric fabric(options);
  std::strncpy(meeting.addresses[rank], fabric.address().c_str(), 63);
  ++meeting.there;
  while (meeting.there < task.ranks) std::this_thread::yield();
  Epoch epoch;
  epoch.group = "bench";
  epoch.number = 1;
  for (int r = 0; r < task.ranks; ++r)
    epoch.members.push_back({.id = task.transport == "tls" ? "bench" : fmt::format("m{}", r),
                             .incarnation = 1,
                             .host = task.transport == "shm" ? "here" : "",
                             .address = meeting.addresses[r]});
  Communicator group(epoch, fabric.connect(epoch, rank, 20));
  for (std::size_t bytes = 1 << 10; bytes <= task.most_bytes; bytes *= 4) {
    const std::size_t unit = sizeof(float) * static_cast<std::size_t>(task.ranks);
    std::vector<std::byte> data(bytes / unit * unit);
    std::vector<double> times;
    const double budget_s = 0.6;
    const double cpu_before_s = cpu_s();
    double spent_s = 0;
    // How often is rank 0's to say.
    for (int i = 0;; ++i) {
      std::int32_t more = spent_s < budget_s && i < 5000 ? 1 : 0;
      if (i % 16 == 0 || bytes > (1 << 22)) {
        if (group.broadcast(std::as_writable_bytes(std::span(&more, 1)), 0, {}).status != OperationStatus::ok) return;
        if (more == 0) break;
      }
      const auto start = Clock::now();
      once(group, task, data);
      const double time_s = std::chrono::duration<double>(Clock::now() - start).count();
      if (i > 0) times.push_back(time_s);
      spent_s += time_s;
    }
    if (rank != 0 || times.empty()) continue;
    std::ranges::sort(times);
    const double median_s = times[times.size() / 2];
    const double rate = static_cast<double>(data.size()) / median_s * 1e-9;
    const double bus = task.operation == "all_reduce" ? rate * 2 * (task.ranks - 1) / task.ranks : rate;
    fmt::print(
        "{:>10} B  median {:>10.1f} us  min {:>10.1f} us  {:>7.3f} GB/s  bus {:>7.3f} GB/s  cpu {:>8.1f} us  ({} "
        "times)\n",
        data.size(), median_s * 1e6, times.front() * 1e6, rate, bus,
        (cpu_s() - cpu_before_s) / static_cast<double>(times.size() + 1) * 1e6, times.size());
    std::fflush(stdout);
    if (task.operation == "barrier") break;
  }
}

}  // namespace

int main(int count, char** arguments) {
  Task task;
  if (count > 1) task.transport = arguments[1];
  if (count > 2) task.ranks = std::clamp(std::atoi(arguments[2]), 1, most_ranks);
  if (count > 3) task.operation = arguments[3];
  if (count > 4) task.most_bytes = std::strtoull(arguments[4], nullptr, 10);
  void* memory = ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 3;
  Meeting& meeting = *new (memory) Meeting{};
  const TlsIdentity identity = Authority::create("bench").issue("bench");
  for (int rank = 0; rank < task.ranks; ++rank) {
    if (::fork() != 0) continue;
    try {
      work(meeting, task, rank, identity);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int worst = 0, status = 0;
  while (::wait(&status) > 0) worst = std::max(worst, status);
  return worst == 0 ? 0 : 1;
}
