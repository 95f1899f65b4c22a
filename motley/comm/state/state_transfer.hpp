// Members give their state to joiners while they work; a joiner pulls it from several of them at once.
//
//   StateSource source(StateListener("0.0.0.0:4711"), {.group = "g", .bytes_per_s = 50e6});
//   source.publish(snapshot);                                           // at a boundary
//
//   const auto outcome = pull_state("g", digest, peers, place, {.bytes_per_s = 100e6});
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "motley/comm/net/wakeup.hpp"
#include "motley/comm/state/state_connection.hpp"
#include "motley/comm/state/state_manifest.hpp"
#include "motley/comm/state/state_pull.hpp"

namespace motley {

struct StateSourceOptions {
  std::string group;
  double bytes_per_s = 0;      // to all joiners together; 0: no cap
  int connections = 64;        // at most
  double idle_timeout_s = 60;  // until a silent joiner is left
  int snapshots = 2;           // the latest ones, so that a pull under way can end
};

// Serves from a thread of its own. What joiners send wrongly ends their connection, nothing else.
class StateSource {
 public:
  StateSource(StateListener listener, StateSourceOptions options);
  ~StateSource();
  StateSource(const StateSource&) = delete;
  StateSource& operator=(const StateSource&) = delete;

  // From any thread. The oldest snapshot goes, once nothing is being sent from it any more.
  void publish(StateSnapshot snapshot);
  // Afterwards nothing is read from any snapshot any more, and joiners are gone; for bytes that live no longer. From
  // any thread but one at a time.
  void withdraw();
  // "127.0.0.1:4711"
  std::string address() const { return listener_.address(); }

 private:
  struct Published;
  struct Joiner;
  class Service;

  StateSourceOptions options_;
  StateListener listener_;
  Wakeup wakeup_;
  std::mutex mutex_;
  std::condition_variable withdrawn_;
  bool withdrawing_ = false;
  std::vector<std::shared_ptr<const Published>> published_;  // shared with what is being sent
  std::jthread thread_;
};

struct StatePeer {
  std::string name;  // in faults
  std::function<ByteStream()> connect;
};

struct StateTransferOptions {
  double bytes_per_s = 0;  // from all peers together; 0: no cap
  double timeout_s = 600;  // for all of it
  std::stop_token stop = {};
  StatePullOptions pull = {};
};

struct StateTransferOutcome {
  bool complete = false;  // otherwise what has come stays, and is not pulled again
  std::string cause;      // why it is not complete
  StateRevision revision;
  std::int64_t pulled_bytes = 0;
  std::int64_t kept_bytes = 0;                   // were right from the start
  std::map<std::string, StatePeerReport> peers;  // by name
};

// Where the items of a manifest belong, in its order. Throws an input error where they do not fit this process.
using PlaceState = std::function<std::vector<StateBuffer<std::byte>>(const StateManifest&)>;

// Blocks until all is there and verified, no holder is left to ask, or the timeout ends.
StateTransferOutcome pull_state(const std::string& group, const StateDigest& manifest,
                                const std::vector<StatePeer>& peers, const PlaceState& place,
                                const StateTransferOptions& options);

}  // namespace motley
