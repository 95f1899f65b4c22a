// Ranks that agree on an average, step by step: `average RANK ADDRESS,ADDRESS,...`, once per rank, here or on machines
// that reach each other. See README.md.
#include <fmt/format.h>

#include <cstdlib>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/transport/fabric.hpp"

namespace {

// The members of the one epoch of this example, in the order of their ranks.
motley::Epoch epoch_of(const std::string& addresses) {
  motley::Epoch epoch;
  epoch.group = "average";
  epoch.number = 1;
  std::istringstream words(addresses);
  for (std::string address; std::getline(words, address, ',');)
    epoch.members.push_back({.id = std::to_string(epoch.members.size()),
                             .incarnation = 0,
                             .host = address.substr(0, address.find(':')),
                             .address = address});
  return epoch;
}

int run(int rank, const motley::Epoch& epoch) {
  // Members of one host share memory, others connect by TCP. Between hosts it would be under TLS, with certificates of
  // the group's own authority; this example has none.
  motley::FabricOptions options;
  options.listen = epoch.members.at(static_cast<std::size_t>(rank)).address;
  options.encryption = motley::Encryption::never;
  motley::Fabric fabric(options);
  motley::Communicator group(epoch, fabric.connect(epoch, rank, 10));

  std::vector<double> values(1000, rank + 1.0);
  for (int step = 0; step < 3; ++step) {
    const auto outcome = group.all_reduce(std::as_writable_bytes(std::span(values)), motley::CollectiveElement::fp64,
                                          {.reduction = motley::CollectiveReduction::mean, .timeout_s = 10});
    if (outcome.status != motley::OperationStatus::ok) {
      fmt::print(stderr, "rank {}: step {} {}: {}\n", rank, step, motley::name(outcome.status), outcome.cause);
      return 5;
    }
    if (rank == 0) fmt::print("step {}: the average is {}\n", step, values.front());
    for (double& value : values) value += rank;  // until the next step they part
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: average RANK ADDRESS,ADDRESS,...\n");
    return 2;
  }
  try {
    return run(std::atoi(argv[1]), epoch_of(argv[2]));
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", argv[1], error.what());
    return 5;
  }
}
