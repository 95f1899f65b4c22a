// learning [RANKS] [STATE_MB] [VECTOR_MB] [COMPUTE_MS] [TURNS]: what a joiner costs a group with state: its steps
// before, while and after one joins, given the state in slices, and at once. A step is COMPUTE_MS of arithmetic in each
// member and an all_reduce; the joiner computes nothing, as if its processor were another. One JSON line for each way.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/comm/membership/coordinator_server.hpp"
#include "motley/comm/session/session.hpp"
#include "motley/comm/session/state_slices.hpp"
#include "motley/comm/session/state_sync.hpp"

namespace motley {
namespace {

struct Learning {
  int ranks = 2;
  double state_mb = 200, vector_mb = 4, compute_ms = 20;
  int turns = 3;
  bool sliced = true;
};

constexpr std::size_t item_floats = 250'000, steps_between = 100;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Arithmetic without memory.
double compute(double seconds) {
  double value = 1;
  for (const double until_s = now_s() + seconds; now_s() < until_s;)
    for (int i = 0; i < 1000; ++i) value = value * 0.999999 + 1e-6;
  return value;
}

struct Times {
  std::vector<double> before_s, joining_s, after_s;
};

class Trainee {
 public:
  Trainee(const Learning& learning, const std::string& coordinator, const std::string& id, float value)
      : learning_(learning),
        items_(std::max<std::size_t>(1, static_cast<std::size_t>(learning.state_mb * 1e6 / 4 / item_floats)),
               std::vector<float>(item_floats, value)),
        vector_(static_cast<std::size_t>(learning.vector_mb * 1e6 / 4) + 1) {
    SessionOptions options;
    options.member.coordinators = {coordinator};
    options.member.group = "learning";
    options.member.token = "token";
    options.member.member.id = id;
    if (learning.sliced) {
      slices_.emplace(SlicedStateOptions{},
                      StateItems{.count = items_.size(),
                                 .save = [this](std::size_t i) { return bytes(i); },
                                 .place = [this](std::size_t i, std::size_t) { return bytes(i); }});
      options.share_state = std::ref(*slices_);
    } else {
      whole_.emplace(StateSyncOptions{.group = "learning"},
                     StateAccess{.save = [this] { return buffers<const std::byte>(); },
                                 .place = [this](const StateManifest&) { return buffers<std::byte>(); },
                                 .load = [] {}});
      options.fetch_state = std::ref(*whole_);
    }
    session_ = std::make_unique<Session>(std::move(options));
  }

  // One step, in which `busy` members compute; `word` is added to those of the others. Returns the sum.
  float step(bool busy, float word) {
    const SessionOutcome outcome = session_->run([&](SessionStep& step) {
      if (busy) compute(learning_.compute_ms / 1e3);
      std::fill(vector_.begin(), vector_.end(), step.contributes() ? 1e-3F : 0.0F);
      vector_.back() = word;
      members_ = step.communicator.size();
      contributors_ = step.contributors;
      return step.communicator.all_reduce(std::as_writable_bytes(std::span(vector_)), CollectiveElement::fp32,
                                          {.timeout_s = 60});
    });
    if (outcome.status != SessionStatus::committed) throw Error(ErrorCode::peer, outcome.cause);
    // Every item changes, but little of it: what an optimizer costs is not the question.
    for (auto& item : items_)
      for (std::size_t i = 0; i < 16; ++i) item[i] += vector_.front() / static_cast<float>(contributors_);
    return vector_.back();
  }
  int members() const { return members_; }
  int contributors() const { return contributors_; }
  const std::optional<SlicedStateSync>& slices() const { return slices_; }
  void leave() { session_->leave(10); }

 private:
  std::span<std::byte> bytes(std::size_t item) { return std::as_writable_bytes(std::span(items_[item])); }
  template <class Byte>
  std::vector<StateBuffer<Byte>> buffers() {
    std::vector<StateBuffer<Byte>> result;
    for (std::size_t i = 0; i < items_.size(); ++i) result.push_back({std::to_string(i), bytes(i)});
    return result;
  }

  Learning learning_;
  std::vector<std::vector<float>> items_;
  std::vector<float> vector_;
  int members_ = 0, contributors_ = 0;
  std::optional<SlicedStateSync> slices_;
  std::optional<StateSync> whole_;
  std::unique_ptr<Session> session_;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}
double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }
double largest(const std::vector<double>& values) { return values.empty() ? 0 : *std::ranges::max_element(values); }

void measure(const Learning& learning) {
  const auto log = std::filesystem::temp_directory_path() / fmt::format("motley-learning-{}.log", ::getpid());
  std::filesystem::remove(log);
  CoordinatorServerOptions served;
  served.group = "learning";
  served.token = "token";
  served.policy.minimum_size = static_cast<std::uint32_t>(learning.ranks);
  CoordinatorServer coordinator(served, open_sqlite_store(log.string()));
  std::jthread serving([&](const std::stop_token& stop) { coordinator.run(stop); });

  Times times;
  std::atomic<bool> done = false;
  double longest_slice_s = 0;
  // All that are in the group when all is done hear it in the same step.
  const auto member = [&](int rank) {
    Trainee trainee(learning, coordinator.address(), fmt::format("member {}", rank), 1);
    std::size_t joined_steps = 0;
    for (float end = 0; end == 0;) {
      const double start_s = now_s();
      end = trainee.step(true, rank == 0 && done ? 1 : 0);
      if (rank != 0) continue;
      const double step_s = now_s() - start_s;
      if (trainee.members() == learning.ranks) {
        joined_steps = 0;
        times.before_s.push_back(step_s);
      } else {
        // At once: it is the first step that waits for the state.
        const bool joins = trainee.contributors() == learning.ranks || joined_steps == 0;
        ++joined_steps;
        (joins ? times.joining_s : times.after_s).push_back(step_s);
      }
    }
  };
  std::vector<std::jthread> members;
  for (int rank = 0; rank < learning.ranks; ++rank) members.emplace_back(member, rank);
  for (int turn = 0; turn < learning.turns; ++turn) {
    std::this_thread::sleep_for(std::chrono::duration<double>(steps_between * learning.compute_ms / 1e3 * 1.5 + 0.5));
    Trainee joiner(learning, coordinator.address(), "joiner", 0);
    do joiner.step(false, 0);
    while (joiner.contributors() == learning.ranks);
    if (joiner.slices()) longest_slice_s = std::max(longest_slice_s, joiner.slices()->report().longest_s);
    for (std::size_t i = 0; i < steps_between; ++i) joiner.step(false, 0);
    joiner.leave();
  }
  done = true;
  members.clear();
  std::filesystem::remove(log);
  const double after_s = median(times.after_s);
  fmt::print(
      "{{\"way\": \"{}\", \"ranks\": {}, \"state_mb\": {}, \"vector_mb\": {}, \"compute_ms\": {}, \"joins\": {}, "
      "\"step_before_s\": {:.6f}, \"step_joining_s\": {:.6f}, \"mean_joining_s\": {:.6f}, \"longest_joining_s\": "
      "{:.6f}, "
      "\"step_after_s\": {:.6f}, \"longest_after_s\": {:.6f}, \"steps_per_join\": {:.1f}, \"lost_per_join_s\": {:.3f}, "
      "\"longest_slice_s\": {:.6f}, \"median_ratio\": {:.3f}, \"mean_ratio\": {:.3f}}}\n",
      learning.sliced ? "slices" : "at once", learning.ranks, learning.state_mb, learning.vector_mb,
      learning.compute_ms, learning.turns, median(times.before_s), median(times.joining_s),
      sum(times.joining_s) / static_cast<double>(times.joining_s.size()), largest(times.joining_s), after_s,
      largest(times.after_s), static_cast<double>(times.joining_s.size()) / learning.turns,
      (sum(times.joining_s) - after_s * static_cast<double>(times.joining_s.size())) / learning.turns, longest_slice_s,
      median(times.joining_s) / after_s, sum(times.joining_s) / static_cast<double>(times.joining_s.size()) / after_s);
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  motley::Learning learning;
  if (argc > 1) learning.ranks = std::atoi(argv[1]);
  if (argc > 2) learning.state_mb = std::atof(argv[2]);
  if (argc > 3) learning.vector_mb = std::atof(argv[3]);
  if (argc > 4) learning.compute_ms = std::atof(argv[4]);
  if (argc > 5) learning.turns = std::atoi(argv[5]);
  try {
    for (const bool sliced : {true, false}) {
      learning.sliced = sliced;
      motley::measure(learning);
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 5;
  }
}
