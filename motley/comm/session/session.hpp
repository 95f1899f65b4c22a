// Steps of a group whose members come and go: one call per step, whatever happens to others meanwhile.
//
//   Session session({.member = {.coordinators = {"127.0.0.1:4700"}, .group = "run", .token = token}});
//   while (...) {
//     const SessionOutcome outcome = session.run([&](SessionStep& step) {
//       sum = mine;
//       return step.communicator.all_reduce(bytes_of(sum), CollectiveElement::fp32, {.timeout_s = 10});
//     });
//     if (outcome.status == SessionStatus::committed) apply(sum);
//   }
//
// A session belongs to one thread; stop tokens and leave() of another apart.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/membership/member_client.hpp"
#include "motley/comm/transport/fabric.hpp"

namespace motley {

// What a step, or the fetching of state at the beginning of an epoch, has to work with.
struct SessionStep {
  Communicator& communicator;
  const EpochStart& start;  // the epoch: its members, and where it began
  std::uint64_t step = 0;   // that is tried; of a state hook: whose state all must hold afterwards
  std::uint64_t held = 0;   // the step whose state this process holds
  std::string id = {};      // this process's name in the group

  // Whose part of the step counts: all members, but for those that are still learning the state. These take part in
  // the operations, and add nothing.
  int contributors = 0;
  int place = 0;  // among them; negative: this process does not contribute
  bool contributes() const { return place >= 0; }

  std::uint64_t followed = 0;  // the latest step that run() has returned as committed here
  bool leaving = false;        // this process takes no part in the step but for sharing the state
};

// Returns how it went: of several operations, the first that did not end ok. May be called several times for one step:
// nothing that an earlier call has computed counts.
using StepBody = std::function<OperationOutcome(SessionStep&)>;
// Called by all members at the beginning of every epoch, whether or not they lack anything, before its first step:
// those who are not among start.holders receive the state of `step` from those who are.
using StateHook = std::function<OperationOutcome(SessionStep&)>;
// Called by all members at the beginning of every step, so that those who lack the state learn it while steps go on.
// Sets who contributes, and `held` once this process has all: until then its votes make it no holder.
using ShareHook = std::function<OperationOutcome(SessionStep&)>;

enum class SessionStatus {
  committed,  // by all members of the epoch
  timed_out,  // nothing was committed, and this process is out of the step
  undecided,  // its part was done, but whether the step is committed will only be known later: run() again
  stopped,
  invalid  // the calls are wrong, or members disagree about them
};

struct SessionOutcome {
  SessionStatus status = SessionStatus::committed;
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;
  int members = 0;
  int attempts = 0;   // of the step, by this call
  std::string cause;  // empty where committed
};

struct SessionRunOptions {
  double timeout_s = 60;
  std::stop_token stop = {};
};

struct SessionOptions {
  MemberClientOptions member;    // id and addresses are filled in where they are empty
  FabricOptions fabric;          // key and identity are the member's token and identity where there is none
  StateHook fetch_state = {};    // empty, and share_state too: steps need no state
  ShareHook share_state = {};    // in place of fetch_state
  double connect_timeout_s = 5;  // for an epoch's connections
};

class Session {
 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Takes part in the group's next step: waits for an epoch, brings the state up to date, calls `body`, votes, and
  // tries again in the next epoch until the step is committed. Where an earlier call ended as undecided and that step
  // turns out to be committed, returns so without calling `body`.
  SessionOutcome run(const StepBody& body, const SessionRunOptions& options = {});
  // Waits until the others can go on without this process, or the time passes; true where they do. Goes on serving
  // state meanwhile.
  bool leave(double timeout_s);

  const std::string& id() const;
  std::uint64_t next_step() const;
  MemberState state() const;
  // Why nothing goes on, in words; empty where all is well.
  std::string waiting_for() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace motley
