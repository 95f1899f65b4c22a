// Ranks that agree on an average, step by step: `average RANK ADDRESS,ADDRESS,...`, once per rank, here or on machines
// that reach each other. See README.md.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "motley/comm/c_api.h"

namespace {

// A member of the example's one epoch. The C functions take pointers into it.
struct Member {
  std::string id, host, address;
};

std::vector<Member> members_at(const std::string& addresses) {
  std::vector<Member> members;
  std::istringstream words(addresses);
  for (std::string address; std::getline(words, address, ',');)
    members.push_back({std::to_string(members.size()), address.substr(0, address.find(':')), address});
  return members;
}

int fail(int rank, const std::string& what, const char* cause) {
  std::fprintf(stderr, "rank %d: %s: %s\n", rank, what.c_str(), cause);
  return 5;
}

int run_steps(int rank, motley_group* group) {
  std::vector<double> values(1000, rank + 1.0);
  for (int step = 0; step < 3; ++step) {
    motley_call call{};
    call.reduction = MOTLEY_MEAN;
    call.timeout_s = 10;
    motley_outcome outcome;
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(double));
    motley_all_reduce(group, values.data(), bytes, MOTLEY_FP64, &call, &outcome);
    if (outcome.status != MOTLEY_OK) return fail(rank, "step " + std::to_string(step), outcome.cause);
    if (rank == 0) std::printf("step %d: the average is %g\n", step, values.front());
    for (double& value : values) value += rank;  // until the next step they part
  }
  return 0;
}

int run(int rank, const std::vector<Member>& members) {
  // Members of one host share memory, others connect by TCP. Between hosts it would be under TLS, with certificates of
  // the group's own authority; this example has none.
  char error[512];
  motley_open_options open{};
  open.listen = members.at(static_cast<std::size_t>(rank)).address.c_str();
  open.encryption = MOTLEY_PLAIN;
  motley_fabric* fabric = motley_open(&open, error, sizeof error);
  if (fabric == nullptr) return fail(rank, "cannot listen", error);

  std::vector<motley_member> epoch;
  for (const Member& member : members)
    epoch.push_back({member.id.c_str(), member.host.c_str(), member.address.c_str(), 0});
  motley_connect_options connect{};
  connect.group = "average";
  connect.epoch = 1;
  connect.members = epoch.data();
  connect.size = static_cast<std::int32_t>(epoch.size());
  connect.rank = rank;
  connect.timeout_s = 10;
  motley_group* group = motley_connect(fabric, &connect, error, sizeof error);
  const int status = group != nullptr ? run_steps(rank, group) : fail(rank, "cannot connect", error);
  if (group != nullptr) motley_disconnect(group);
  motley_close(fabric);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Member> members = members_at(argc == 3 ? argv[2] : "");
  const int rank = argc == 3 ? std::atoi(argv[1]) : -1;
  if (rank < 0 || rank >= static_cast<int>(members.size())) {
    std::fprintf(stderr, "usage: average RANK ADDRESS,ADDRESS,...\n");
    return 2;
  }
  return run(rank, members);
}
