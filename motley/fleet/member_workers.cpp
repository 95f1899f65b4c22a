// Workers on the members' machines, for a plan that is to be served now or later.
#include <thread>

#include "motley/fleet/members.hpp"
#include "motley/fleet/members_state.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley {
namespace {

// What agents do not say themselves.
const LaunchOptions launch_options{.model_folder = {}, .program = {}, .transport = {}, .backend = "cpu"};

}  // namespace

Workers Members::start_workers(const ServePlan& plan, std::uint64_t epoch, const CacheHandover& handover,
                               const std::function<std::vector<ChunkId>(const std::string& device)>& chunks,
                               Workers& earlier) {
  MembersState& state = *state_;
  const std::vector<std::string> devices = worker_devices(plan);
  std::erase_if(earlier, [&](const Worker& worker) {
    return worker.link->exit() || std::ranges::count(devices, worker.device) == 0;
  });
  std::vector<std::string> starting;
  for (const std::string& device : devices)
    if (std::ranges::find(earlier, device, &Worker::device) == earlier.end()) starting.push_back(device);

  const std::uint64_t start = state.begin_start(devices, starting, chunks);
  const auto check = [&] { state.check_starting(devices, start, starting, earlier); };
  try {
    auto called = state.calls.wait(starting, no_deadline, check);
    constexpr std::chrono::milliseconds look_every(10);
    for (; !state.all_fetched(); std::this_thread::sleep_for(look_every)) check();
    return launch_remote_workers(
        plan, epoch, std::move(called), launch_options, handover,
        [&](const std::string& device, ByteStream control) { return state.link_of(device, start, std::move(control)); },
        earlier);
  } catch (const Error&) {
    for (const std::string& device : starting) state.tell_end(device, start);
    throw;
  }
}

Workers Members::start_workers(const std::vector<std::string>& devices,
                               const std::function<std::vector<ChunkId>(const std::string& device)>& chunks,
                               const std::function<bool()>& stopped) {
  MembersState& state = *state_;
  const std::uint64_t start = state.begin_start(devices, devices, chunks);
  try {
    auto called = state.calls.wait(devices, no_deadline, [&] {
      state.check_starting(devices, start, devices, {});
      if (stopped && stopped()) throw Error(ErrorCode::interrupted, "stopped");
    });
    Workers workers;
    for (const std::string& device : devices) {
      CalledWorker& caller = called.at(device);
      Worker& worker = workers.emplace_back(Worker{device, {}, 0, nullptr});
      worker.link = state.link_of(device, start, std::move(caller.control));
      worker.fabric_address = std::move(caller.fabric_address);
    }
    return workers;
  } catch (const Error&) {
    for (const std::string& device : devices) state.tell_end(device, start);
    throw;
  }
}

// ---- the workers of another plan ----

namespace {

class MemberPreparation final : public WorkerPreparation {
 public:
  MemberPreparation(MembersState& state, const ServePlan& plan, const std::set<std::string>& running,
                    const std::function<std::vector<ChunkId>(const std::string& device)>& chunks)
      : state_(state), plan_(plan), devices_(worker_devices(plan)) {
    for (const std::string& device : devices_)
      if (!running.contains(device)) starting_.push_back(device);
    start_ = state_.begin_start(devices_, starting_, chunks);
  }
  ~MemberPreparation() override { end_missing(); }

  bool done() override {
    state_.check_starting(devices_, start_, starting_, workers_);
    for (const std::string& device : std::vector(starting_)) take_call(device);
    for (const Worker& worker : workers_) take_messages(worker);
    return starting_.empty() && loaded_.size() == workers_.size() && state_.all_fetched();
  }

  Workers take() override {
    end_missing();
    return std::exchange(workers_, {});
  }

 private:
  void take_call(const std::string& device) {
    std::optional<CalledWorker> call = state_.calls.take(device);
    if (!call) return;
    std::erase(starting_, device);
    Worker& worker = workers_.emplace_back(Worker{device, {}, 0, nullptr});  // the launch says where it stands
    worker.link = state_.link_of(device, start_, std::move(call->control));
    worker.fabric_address = std::move(call->fabric_address);
    worker.link->send(encode(Preload{
        .plan_json = to_json(write(plan_)), .model_folder = {}, .device = device, .backend = launch_options.backend}));
  }

  void take_messages(const Worker& worker) {
    worker.link->flush();
    for (const Message& message : worker.link->receive()) {
      state_.stir();
      if (std::holds_alternative<Preloaded>(message)) loaded_.insert(worker.device);
      if (const auto* failure = std::get_if<Failure>(&message))
        throw Error(ErrorCode::peer, fmt::format("{} cannot load: {}", worker.device, failure->message), failure->hint);
    }
    if (worker.link->ended()) throw Error(ErrorCode::peer, fmt::format("the worker of {} has ended", worker.device));
  }

  void end_missing() {
    for (const std::string& device : starting_) state_.tell_end(device, start_);
    starting_.clear();
  }

  MembersState& state_;
  const ServePlan plan_;
  const std::vector<std::string> devices_;
  std::uint64_t start_ = 0;
  std::vector<std::string> starting_;  // have not called
  Workers workers_;
  std::set<std::string> loaded_;
};

}  // namespace

std::unique_ptr<WorkerPreparation> Members::prepare_workers(
    const ServePlan& plan, const std::set<std::string>& running,
    const std::function<std::vector<ChunkId>(const std::string& device)>& chunks) {
  return std::make_unique<MemberPreparation>(*state_, plan, running, chunks);
}

}  // namespace motley
