// joining [RANKS] [STATE_MB] [VECTOR_MB] [CAP_MB_PER_S] [STEPS]: how much a joiner that pulls the state, under a cap,
// slows a group that goes on with its steps. Steps alone and steps during a pull take turns; one JSON line.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/median.hpp"
#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/state/state_transfer.hpp"
#include "motley/comm/transport/fabric.hpp"

namespace motley {
namespace {

struct Joining {
  int ranks = 3;
  double state_mb = 200, vector_mb = 8, cap_mb_per_s = 100;
  int steps = 200;
};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One member: steps until told, each timed; rank 0 says during what.
void member(const Joining& joining, Fabric& fabric, const Epoch& epoch, int rank, const std::atomic<bool>& pulling,
            std::vector<double>& alone_s, std::vector<double>& beside_s) {
  Communicator group(epoch, fabric.connect(epoch, rank, 30));
  std::vector<float> vector(static_cast<std::size_t>(joining.vector_mb * 1e6 / 4));
  for (;;) {
    const bool before = pulling;
    const double start_s = now_s();
    const auto outcome =
        group.all_reduce(std::as_writable_bytes(std::span(vector)), CollectiveElement::fp32, {.timeout_s = 60});
    if (outcome.status != OperationStatus::ok) throw Error(ErrorCode::peer, outcome.cause);
    if (rank == 0 && before == pulling) (before ? beside_s : alone_s).push_back(now_s() - start_s);
    const auto enough = static_cast<std::size_t>(joining.steps);
    std::int32_t done = rank == 0 && alone_s.size() >= enough && beside_s.size() >= enough;
    group.broadcast(std::as_writable_bytes(std::span(&done, 1)), 0, {});
    if (done != 0) return;
  }
}

int run(const Joining& joining) {
  std::vector<std::byte> state(static_cast<std::size_t>(joining.state_mb * 1e6)), room(state.size());
  for (std::size_t i = 0; i < state.size(); i += 64) state[i] = static_cast<std::byte>(i / 64 % 251);
  const std::vector<StateBuffer<const std::byte>> buffers{{"state", state}};
  const StateSnapshot snapshot{describe_state({1, 1}, buffers), {state}, {}};
  const StateDigest agreed = digest(snapshot.manifest);

  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::vector<std::unique_ptr<StateSource>> sources;
  std::vector<StatePeer> peers;
  Epoch epoch;
  epoch.group = "joining";
  epoch.number = 1;
  for (int rank = 0; rank < joining.ranks; ++rank) {
    fabrics.push_back(std::make_unique<Fabric>(FabricOptions{}));
    epoch.members.push_back({std::to_string(rank), 0, "here", fabrics.back()->address()});
    sources.push_back(
        std::make_unique<StateSource>(StateListener("127.0.0.1:0"), StateSourceOptions{.group = "joining"}));
    sources.back()->publish(snapshot);
    peers.push_back(
        {std::to_string(rank), [address = sources.back()->address()] { return connect_for_state(address); }});
  }

  std::atomic<bool> pulling = false;
  std::vector<double> alone_s, beside_s, pulls_s;
  std::jthread joiner([&](const std::stop_token& stop) {
    for (int turn = 0; !stop.stop_requested(); ++turn) {
      // As long without a pull as with one.
      const double pause_s = pulls_s.empty() ? 1 : pulls_s.back();
      for (const double until_s = now_s() + pause_s; now_s() < until_s && !stop.stop_requested();)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::fill(room.begin(), room.end(), std::byte{});
      const double start_s = now_s();
      pulling = true;
      pull_state("joining", agreed, peers,
                 [&](const StateManifest&) {
                   return std::vector<StateBuffer<std::byte>>{{"state", room}};
                 },
                 {.bytes_per_s = joining.cap_mb_per_s * 1e6, .stop = stop});
      pulling = false;
      pulls_s.push_back(now_s() - start_s);
    }
  });
  {
    std::vector<std::jthread> members;
    for (int rank = 0; rank < joining.ranks; ++rank)
      members.emplace_back([&, rank] {
        member(joining, *fabrics[static_cast<std::size_t>(rank)], epoch, rank, pulling, alone_s, beside_s);
      });
  }
  joiner.request_stop();
  joiner.join();
  fmt::print(
      "{{\"ranks\": {}, \"vector_mb\": {}, \"cap_mb_per_s\": {}, \"step_alone_s\": {:.6f}, \"step_beside_s\": {:.6f}, "
      "\"ratio\": {:.3f}}}\n",
      joining.ranks, joining.vector_mb, joining.cap_mb_per_s, median(alone_s), median(beside_s),
      median(beside_s) / median(alone_s));
  return 0;
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  motley::Joining joining;
  if (argc > 1) joining.ranks = std::atoi(argv[1]);
  if (argc > 2) joining.state_mb = std::atof(argv[2]);
  if (argc > 3) joining.vector_mb = std::atof(argv[3]);
  if (argc > 4) joining.cap_mb_per_s = std::atof(argv[4]);
  if (argc > 5) joining.steps = std::atoi(argv[5]);
  try {
    return motley::run(joining);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 5;
  }
}
