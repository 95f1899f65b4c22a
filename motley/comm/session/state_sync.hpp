// The state of a session's members: at the beginning of an epoch, those who lack it pull it from all who hold it.
//
//   StateSync sync({.group = "run"}, {.save = ..., .place = ..., .load = ...});
//   Session session({..., .fetch_state = std::ref(sync)});
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/comm/session/session.hpp"
#include "motley/comm/state/state_transfer.hpp"

namespace motley {

struct StateSyncOptions {
  std::string group = "group";
  std::string listen = "127.0.0.1:0";       // where this process gives its state to others
  std::optional<TlsContext> identity = {};  // TLS 1.3 in both directions; all members alike
  std::string key = {};                     // the group's secret, which a relay is shown
  double give_bytes_per_s = 0;              // to all joiners together; 0: no cap
  double take_bytes_per_s = 0;              // from all members together; 0: no cap
  double timeout_s = 600;                   // of one member's pull
};

// How a process gives and takes its state.
struct StateAccess {
  // Where the state of this moment lies; it stays as it is until every member has what it lacks.
  std::function<std::vector<StateBuffer<const std::byte>>()> save;
  // Room for the items of a manifest, in its order. Throws an input error where they do not fit.
  PlaceState place;
  // All has arrived where place() said.
  std::function<void()> load;
};

class StateSync {
 public:
  StateSync(StateSyncOptions options, StateAccess access);

  // A StateHook.
  OperationOutcome operator()(SessionStep& step);

  // Of the latest pull by this process.
  const StateTransferOutcome& last_pull() const { return last_pull_; }

 private:
  struct Word;  // what a member says to all others
  OperationOutcome give_and_take(SessionStep& step, bool holds);

  StateSyncOptions options_;
  StateAccess access_;
  StateSource source_;
  StateTransferOutcome last_pull_;
};

}  // namespace motley
