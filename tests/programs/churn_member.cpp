// A process of a group under churn, for tests and benchmarks: takes part in one all_reduce after the other and checks
// every committed sum; or the group's coordinator.
//
//   churn-member member COORDINATOR ID ELEMENTS PAUSE_MS
//   churn-member coordinator ADDRESS LOG_FILE
//
// A member writes a line per committed step: "commit STEP EPOCH MEMBERS CHAIN SECONDS", or "wrong ..." where the sum is
// not that of the epoch's members; CHAIN is the state: a digest of all sums so far, which joiners fetch.
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/membership/coordinator_server.hpp"
#include "motley/comm/session/session.hpp"

namespace motley {
namespace {

// In one piece: other processes may write to the same pipe.
void say(const std::string& line) {
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, line.data(), line.size());
}

// Small integers: sums in fp32 are exact.
float contribution(const Member& member, std::uint64_t step, std::size_t element) {
  return static_cast<float>((member.incarnation * 31 + step * 7 + element) % 1000);
}

struct ChurnState {
  std::uint64_t step = 0, chain = 0;
};

OperationOutcome fetch_state(SessionStep& step, ChurnState& state) {
  ChurnState sent = state;
  const OperationOutcome outcome = step.communicator.broadcast(
      std::as_writable_bytes(std::span(&sent, 1)), static_cast<int>(step.start.holders.front()), {.timeout_s = 5});
  if (outcome.status == OperationStatus::ok && state.step != step.step) state = sent;
  return outcome;
}

int take_part(const std::string& coordinator, const std::string& id, std::size_t elements, int pause_ms) {
  ChurnState state;
  SessionOptions options;
  options.member.coordinators = {coordinator};
  options.member.group = "churn";
  options.member.token = "churn";
  options.member.member.id = id;
  options.fetch_state = [&](SessionStep& step) { return fetch_state(step, state); };
  Session session(std::move(options));
  std::vector<float> sum(elements);
  std::vector<Member> members;
  for (;;) {
    const SessionOutcome outcome = session.run([&](SessionStep& step) {
      members = step.start.epoch.members;
      const Member& self = members[static_cast<std::size_t>(step.communicator.rank())];
      for (std::size_t i = 0; i < elements; ++i) sum[i] = contribution(self, step.step, i);
      return step.communicator.all_reduce(std::as_writable_bytes(std::span(sum)), CollectiveElement::fp32,
                                          {.timeout_s = 10});
    });
    if (outcome.status != SessionStatus::committed) {
      say(fmt::format("stuck {} {:.6f} {}\n", outcome.step, now_s(), outcome.cause));
      continue;
    }
    bool right = outcome.step == state.step + 1;
    for (std::size_t i = 0; i < elements; i += 1 + elements / 1000) {
      float expected = 0;
      for (const Member& member : members) expected += contribution(member, outcome.step, i);
      right = right && sum[i] == expected;
    }
    std::uint32_t bits = 0;
    std::memcpy(&bits, sum.data(), sizeof bits);
    state = {outcome.step, (state.chain ^ bits) * 0x9e3779b97f4a7c15U + outcome.epoch};
    say(fmt::format("{} {} {} {} {:x} {:.6f}\n", right ? "commit" : "wrong", outcome.step, outcome.epoch,
                    members.size(), state.chain, now_s()));
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
}

int coordinate(const std::string& address, const std::string& file) {
  CoordinatorServerOptions options;
  options.group = "churn";
  options.token = "churn";
  options.listen = address;
  options.log = [](const std::string& line) { fmt::print(stderr, "{:.6f} {}\n", now_s(), line); };
  CoordinatorServer server(std::move(options), open_sqlite_store(file));
  say(fmt::format("serving {}\n", server.address()));
  server.run({});
  return 0;
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 5 && words[0] == "member")
      return motley::take_part(words[1], words[2], std::stoull(words[3]), std::stoi(words[4]));
    if (words.size() == 3 && words[0] == "coordinator") return motley::coordinate(words[1], words[2]);
    fmt::print(stderr, "usage: churn-member member COORDINATOR ID ELEMENTS PAUSE_MS | coordinator ADDRESS LOG_FILE\n");
    return 2;
  } catch (const motley::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
