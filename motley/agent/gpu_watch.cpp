#include "motley/agent/gpu_watch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>

#include "motley/agent/gpu_signs.hpp"
#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/nvml.hpp"

namespace motley {

// What the owner and the thread tell each other.
struct GpuWatchState {
  GpuWatchState(GpuWatchOptions given, const Wakeup& to_wake) : options(std::move(given)), wake(&to_wake) {}

  // A wait that was asked for, told from an earlier one of the same device.
  struct Pending {
    std::uint64_t number = 0;
    GpuRelease wait;
  };

  const GpuWatchOptions options;
  std::mutex mutex;  // for all below
  std::condition_variable changed;
  const Wakeup* wake;  // null: the owner is gone
  bool stop = false, ended = false, looks_soon = false;
  std::vector<std::pair<std::string, std::string>> changes;
  std::vector<std::string> objections;
  std::map<std::string, Pending> pending;       // by device
  std::uint64_t asked = 0;                      // waits, so far
  std::map<std::string, std::string> given_up;  // what has not come

  // Under the mutex.
  void tell() const {
    if (wake != nullptr) wake->notify();
  }
  void object(std::string why) {
    const std::lock_guard lock(mutex);
    objections.push_back(std::move(why));
    tell();
  }
};

namespace {

constexpr double leave_behind_s = 2;  // for a call of the library to return, at the end
// In one call: what is asked of the thread waits as long.
constexpr unsigned event_wait_ms = 100, event_wait_while_releasing_ms = 25;
constexpr double release_look_s = 0.025;  // between two looks at memory that is waited for

constexpr unsigned long long critical_error_event = 0x8, unavailable_event = 0x4000, recovery_action_event = 0x8000;
constexpr unsigned recovery_action_field = 230;

struct KnownGpu {
  std::string device;
  NvmlDevice handle = nullptr;
  GpuSigns signs = {};
  GpuVerdict verdict = {};
};

// The thread's side.
class GpuWatcher {
 public:
  // Throws an environment error where the library is missing or does not start.
  explicit GpuWatcher(GpuWatchState& state) : state_(state), nvml_(state.options.library) {
    for (const WatchedGpu& watched : state_.options.gpus) {
      KnownGpu gpu{.device = watched.device};
      const NvmlAnswer answer = nvml_.ask("nvmlDeviceGetHandleByUUID", watched.uuid.c_str(), &gpu.handle);
      if (answer == NvmlAnswer::done)
        gpus_.push_back(std::move(gpu));
      else
        state_.object(fmt::format("{} is not watched: NVIDIA's management library does not find {} (error {})",
                                  watched.device, watched.uuid, static_cast<int>(answer)));
    }
    register_events();
  }
  ~GpuWatcher() {
    if (events_ != nullptr) nvml_.ask("nvmlEventSetFree", events_);
  }
  GpuWatcher(const GpuWatcher&) = delete;
  GpuWatcher& operator=(const GpuWatcher&) = delete;

  void run() {
    look_at_gpus();
    while (wait()) {
      look_at_releases();
      if (due_) look_at_gpus();
    }
  }

 private:
  void register_events() {
    if (nvml_.ask("nvmlEventSetCreate", &events_) != NvmlAnswer::done) return;
    for (const KnownGpu& gpu : gpus_) {
      unsigned long long types = 0;
      if (nvml_.ask("nvmlDeviceGetSupportedEventTypes", gpu.handle, &types) != NvmlAnswer::done) continue;
      types &= critical_error_event | unavailable_event | recovery_action_event;
      has_events_ =
          (types != 0 && nvml_.ask("nvmlDeviceRegisterEvents", gpu.handle, types, events_) == NvmlAnswer::done) ||
          has_events_;
    }
  }

  // Until there is something to do, or a moment has passed. False: it is time to stop.
  bool wait() {
    std::unique_lock lock(state_.mutex);
    const bool idle = state_.pending.empty();
    const auto is_asked = [&] { return state_.stop || state_.looks_soon || (idle && !state_.pending.empty()); };
    if (!has_events_)
      state_.changed.wait_for(lock, duration_of(idle ? state_.options.poll_s : release_look_s), is_asked);
    if (state_.stop) return false;
    due_ = std::exchange(state_.looks_soon, false) || seconds_since(looked_) >= state_.options.poll_s;
    pending_ = state_.pending;
    lock.unlock();
    if (has_events_ && !due_) wait_for_event(idle ? event_wait_ms : event_wait_while_releasing_ms);
    return true;
  }

  void wait_for_event(unsigned most_ms) {
    NvmlEvent event;
    const NvmlAnswer answer = nvml_.ask("nvmlEventSetWait_v2", events_, &event, most_ms);
    if (answer == NvmlAnswer::timed_out) return;
    due_ = true;
    // For a GPU that is lost the call may fail each time, at once.
    if (answer != NvmlAnswer::done) return std::this_thread::sleep_for(std::chrono::milliseconds(most_ms));
    const auto gpu = std::ranges::find(gpus_, event.device, &KnownGpu::handle);
    if (gpu != gpus_.end() && event.type == critical_error_event) gpu->signs.critical_errors.insert(event.data);
  }

  void look_at_gpus() {
    looked_ = Clock::now();
    for (KnownGpu& gpu : gpus_) {
      look_at_signs(gpu);
      GpuVerdict verdict = verdict_on(gpu.signs);
      if (gpu.verdict.state == GpuState::gone || verdict.cause == gpu.verdict.cause) continue;
      gpu.verdict = std::move(verdict);
      const std::lock_guard lock(state_.mutex);
      state_.changes.emplace_back(gpu.device, gpu.verdict.cause);
      state_.tell();
    }
  }

  void look_at_signs(KnownGpu& gpu) const {
    NvmlMemory memory;
    gpu.signs.answer = nvml_.ask("nvmlDeviceGetMemoryInfo", gpu.handle, &memory);
    NvmlField field{.field = recovery_action_field};
    const bool names_action =
        nvml_.ask("nvmlDeviceGetFieldValues", gpu.handle, 1, &field) == NvmlAnswer::done && field.answer == 0;
    gpu.signs.recovery_action = names_action ? std::optional(static_cast<unsigned>(field.value)) : std::nullopt;
    unsigned correctable = 0, uncorrectable = 0, remapped_next = 0, failed = 0;
    gpu.signs.remap_pending = nvml_.ask("nvmlDeviceGetRemappedRows", gpu.handle, &correctable, &uncorrectable,
                                        &remapped_next, &failed) == NvmlAnswer::done &&
                              remapped_next != 0;
  }

  void look_at_releases() {
    for (auto& [device, pending] : pending_) {
      const GpuRelease::Step step = look_at_release(device, pending.wait);
      const std::lock_guard lock(state_.mutex);
      const auto asked = state_.pending.find(device);
      if (asked == state_.pending.end() || asked->second.number != pending.number) continue;
      if (step == GpuRelease::Step::waits) {
        asked->second = pending;
        continue;
      }
      state_.pending.erase(asked);
      if (step == GpuRelease::Step::given_up) state_.given_up[device] = what_has_not_come(pending.wait);
      state_.tell();
    }
  }

  GpuRelease::Step look_at_release(const std::string& device, GpuRelease& wait) const {
    const auto gpu = std::ranges::find(gpus_, device, &KnownGpu::device);
    NvmlMemory memory;
    if (gpu == gpus_.end() || nvml_.ask("nvmlDeviceGetMemoryInfo", gpu->handle, &memory) != NvmlAnswer::done)
      return GpuRelease::Step::released;
    return wait.look(processes_on(*gpu), static_cast<std::int64_t>(memory.free), Clock::now());
  }

  static std::string what_has_not_come(const GpuRelease& wait) {
    if (wait.left().empty())
      return fmt::format("what is free of its memory still changes after {:.0f} s", GpuRelease::most_s);
    return fmt::format("process {} still holds its memory after {:.0f} s", fmt::join(wait.left(), ", "),
                       GpuRelease::most_s);
  }

  // Empty where the driver does not tell, as in some containers.
  std::vector<unsigned> processes_on(const KnownGpu& gpu) const {
    constexpr unsigned most_processes = 1024;
    std::vector<NvmlProcess> listed(most_processes);
    unsigned count = most_processes;
    std::vector<unsigned> processes;
    if (nvml_.ask("nvmlDeviceGetComputeRunningProcesses_v3", gpu.handle, &count, listed.data()) != NvmlAnswer::done)
      return processes;
    for (unsigned i = 0; i < std::min(count, most_processes); ++i) processes.push_back(listed[i].process);
    return processes;
  }

  GpuWatchState& state_;
  const Nvml nvml_;
  std::vector<KnownGpu> gpus_;
  void* events_ = nullptr;
  bool has_events_ = false;
  bool due_ = false;  // a look at the GPUs
  Instant looked_;
  std::map<std::string, GpuWatchState::Pending> pending_;  // as of the last wait
};

}  // namespace

GpuWatch::GpuWatch(GpuWatchOptions options, const Wakeup& wake)
    : state_(std::make_shared<GpuWatchState>(std::move(options), wake)) {
  if (state_->options.gpus.empty()) {
    state_->ended = true;
    return;
  }
  thread_ = std::thread([state = state_] {
    try {
      GpuWatcher(*state).run();
    } catch (const Error& error) {
      state->object(fmt::format("GPUs are not watched: {}", error.what()));
    }
    const std::lock_guard lock(state->mutex);
    state->ended = true;
    state->pending.clear();
    state->changed.notify_all();
    state->tell();
  });
}

GpuWatch::~GpuWatch() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->wake = nullptr;
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, duration_of(leave_behind_s), [&] { return state_->ended; });
  lock.unlock();
  if (ended)
    thread_.join();
  else
    thread_.detach();
}

std::vector<std::pair<std::string, std::string>> GpuWatch::changes() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->changes, {});
}

std::vector<std::string> GpuWatch::objections() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->objections, {});
}

void GpuWatch::look_soon() {
  const std::lock_guard lock(state_->mutex);
  state_->looks_soon = true;
  state_->changed.notify_all();
}

void GpuWatch::await_release(const std::string& device, std::set<unsigned> processes) {
  const std::lock_guard lock(state_->mutex);
  state_->given_up.erase(device);
  const bool watched =
      std::ranges::find(state_->options.gpus, device, &WatchedGpu::device) != state_->options.gpus.end();
  if (!watched || state_->ended) return;
  state_->pending.insert_or_assign(
      device, GpuWatchState::Pending{++state_->asked, GpuRelease(std::move(processes), Clock::now())});
  state_->changed.notify_all();
}

std::optional<std::string> GpuWatch::released(const std::string& device) {
  const std::lock_guard lock(state_->mutex);
  if (state_->pending.contains(device)) return std::nullopt;
  const auto given_up = state_->given_up.find(device);
  return given_up == state_->given_up.end() ? std::string() : given_up->second;
}

}  // namespace motley
