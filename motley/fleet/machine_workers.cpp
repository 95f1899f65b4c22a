// Workers on the members' machines.
#include "motley/fleet/agent_machines.hpp"
#include "motley/fleet/machines_state.hpp"

namespace motley {
namespace {

class MachineStart final : public WorkerStart {
 public:
  MachineStart(MachinesState& state, const std::vector<std::string>& starting, const std::vector<std::string>& running,
               const ChunksOf& chunks)
      : state_(state), devices_(starting), starting_(starting) {
    devices_.insert(devices_.end(), running.begin(), running.end());
    start_ = state_.begin_start(starting, running, chunks);
  }
  ~MachineStart() override {
    for (const std::string& device : starting_) state_.tell_end(device, start_);
  }
  MachineStart(const MachineStart&) = delete;
  MachineStart& operator=(const MachineStart&) = delete;

  bool take(Workers& come) override {
    std::erase_if(starting_, [&](const std::string& device) {
      std::optional<CalledWorker> call = state_.calls.take(device);
      if (!call) return false;
      come.push_back({.device = device,
                      .stage = {},
                      .handle = state_.handle_of(device, start_, std::move(call->control)),
                      .at = {std::move(call->fabric_address), machine_of(device)}});
      return true;
    });
    if (starting_.empty() && state_.all_fetched()) return true;
    state_.check_starting(devices_, start_, starting_);
    return false;
  }

 private:
  MachinesState& state_;
  std::vector<std::string> devices_;
  std::vector<std::string> starting_;  // have not called
  std::uint64_t start_ = 0;
};

}  // namespace

std::unique_ptr<WorkerStart> AgentMachines::begin(const std::vector<std::string>& starting,
                                                  const std::vector<std::string>& running, const WorkerReads& reads) {
  return begin(starting, running, [&](const std::string& device) {
    return state_->needed ? state_->needed->of(reads.rows(device)) : std::vector<ChunkId>();
  });
}

std::unique_ptr<WorkerStart> AgentMachines::begin(const std::vector<std::string>& starting,
                                                  const std::vector<std::string>& running, const ChunksOf& chunks) {
  return std::make_unique<MachineStart>(*state_, starting, running, chunks);
}

}  // namespace motley
