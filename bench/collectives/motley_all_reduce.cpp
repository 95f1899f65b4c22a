// motley_all_reduce RANK MEMBERS shm|tcp SAMPLES ROUNDS [PLAN]: motley's all-reduce of floats (measure.hpp), by its own
// program or a plan's. MEMBERS are the addresses of all ranks, comma between.
#include <span>

#include "bench/collectives/measure.hpp"
#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/plan/collective_plan.hpp"

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7)
    return fmt::print(stderr, "usage: motley_all_reduce RANK MEMBERS shm|tcp SAMPLES ROUNDS [PLAN]\n"), 2;
  const int rank = std::atoi(argv[1]);
  const bool shared = std::string(argv[3]) == "shm";
  motley::Epoch epoch;
  epoch.group = "bench";
  std::istringstream words(argv[2]);
  for (std::string address; std::getline(words, address, ',');)
    epoch.members.push_back({std::to_string(epoch.members.size()), 0, address.substr(0, address.rfind(':')), address});
  motley::FabricOptions options;
  options.listen = epoch.members.at(static_cast<std::size_t>(rank)).address;
  options.encryption = motley::Encryption::never;
  options.shared_memory = shared ? motley::SharedMemoryUse::same_host : motley::SharedMemoryUse::never;
  motley::Fabric fabric(options);
  motley::Communicator group(epoch, fabric.connect(epoch, rank, 30));
  if (argc == 7) group.use_plans({motley::read_collective_program(argv[6])});
  motley::bench::measure_all_reduce(
      shared ? "motley-shm" : "motley-tcp", rank, group.size(), motley::bench::parse_samples(argv[4]),
      std::atoi(argv[5]), [&](float* values, std::size_t count) {
        const auto outcome = group.all_reduce(std::as_writable_bytes(std::span(values, count)),
                                              motley::CollectiveElement::fp32, {.timeout_s = 120});
        if (outcome.status != motley::OperationStatus::ok) throw std::runtime_error(outcome.cause);
      });
  group.barrier({});
}
