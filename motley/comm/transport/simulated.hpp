// Ranks in virtual time, for tests: real blocking code on a thread per rank, of which exactly one runs at a time; time
// passes only when all of them wait. What happens depends on the seed alone, and is over as fast as it can be computed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "motley/comm/transport/transport.hpp"

namespace motley {

// Of every directed pair of ranks; all probabilities are per frame.
struct SimulatedNetwork {
  double latency_s = 1e-3;
  double jitter_s = 1e-3;  // uniform in [0, jitter): frames overtake each other
  double bytes_per_s = 1e9;
  double duplicated = 0;  // arrives twice
  double reset = 0;       // is lost, and with it the connection: both sides lose each other
};

class SimulatedFabric {
 public:
  SimulatedFabric(int ranks, const SimulatedNetwork& network, std::uint64_t seed);
  ~SimulatedFabric();

  // Runs body(rank) for every rank until all have returned or crashed. Once. An exception other than the crash's own
  // ends the run and is thrown on.
  void run(const std::function<void(int rank)>& body);

  // A rank's transport in an epoch, from within its body. Frames of an epoch that the rank has left reach the
  // transport it has now: it must tell them apart.
  std::unique_ptr<Transport> transport(int rank, std::uint64_t epoch);

  double now_s() const;
  // Lets virtual time pass for the rank that calls.
  void sleep(int rank, double seconds);

  // From the given time on: the rank's process is gone, its peers lose it; its body is left by an exception.
  void crash_at(int rank, double time_s);
  // The rank's process stops between the two times, and nobody is told.
  void freeze_at(int rank, double from_s, double until_s);
  // What `from` sends to `to` between the two times disappears, and nobody is told.
  void black_hole(int from, int to, double from_s, double until_s);
  bool crashed(int rank) const;

 private:
  struct State;
  class Link;
  std::unique_ptr<State> state_;
};

}  // namespace motley
