#include "motley/fleet/agent_machines.hpp"

#include "motley/base/survive.hpp"
#include "motley/fleet/cluster_of.hpp"
#include "motley/fleet/machines_state.hpp"

namespace motley {
namespace {

constexpr double probe_patience_s = 20;  // beyond the seconds of traffic,
constexpr double pair_patience_s = 6;    // and for each pair and direction: long round trips take longer

}  // namespace

AgentMachines::AgentMachines(AgentMachinesOptions options)
    : state_(std::make_unique<MachinesState>(std::move(options))) {
  state_->listener = std::make_unique<ControlListener>(state_->options.listen, state_->options.access,
                                                       state_->services(), state_->options.strangers);
  state_->thread = std::jthread([state = state_.get()](const std::stop_token& stop) {
    while (!stop.stop_requested())
      survive([&] { state->run(stop); }, [&](const std::exception& error) { state->say("members", error.what()); });
  });
}

AgentMachines::~AgentMachines() {
  end(0);
  state_->listener.reset();
}

const std::string& AgentMachines::address() const { return state_->listener->address(); }

std::vector<MachineStatus> AgentMachines::list() const {
  std::vector<MachineStatus> all;
  {
    const std::lock_guard lock(state_->mutex);
    for (const MachinesState::Agent& agent : state_->agents)
      if (agent.report && !agent.leaving && !agent.gone)
        all.push_back({agent.name, agent.address, agent.report->devices, agent.out_of_service});
  }
  std::ranges::sort(all, {}, &MachineStatus::name);
  return all;
}

Cluster AgentMachines::offered(const std::set<std::string>& without) const {
  std::vector<MachineStatus> there = list();
  std::erase_if(there, [&](const MachineStatus& member) { return without.contains(member.name); });
  return there.empty() ? Cluster() : cluster_of(there, links(), assumed_network());
}

std::set<std::string> AgentMachines::leaving() const {
  const std::lock_guard lock(state_->mutex);
  std::set<std::string> names;
  for (const MachinesState::Agent& agent : state_->agents)
    if (agent.leaving && !agent.gone) names.insert(agent.name);
  return names;
}

std::map<std::string, std::string> AgentMachines::out_of_service() const {
  const std::lock_guard lock(state_->mutex);
  return state_->out_of_service();
}

void AgentMachines::drain(const std::string& name) {
  const std::lock_guard lock(state_->mutex);
  MachinesState::Agent* agent = state_->find(name);
  if (agent == nullptr)
    throw input_error(fmt::format("there is no machine called \"{}\"", name),
                      "`motley deployment status` lists those there are");
  agent->leaving = true;
  state_->say("leaving", fmt::format("{}, as asked", name));
  state_->changed.notify();
}

void AgentMachines::remove(const std::string& name, const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  if (MachinesState::Agent* agent = state_->find(name)) state_->lose(*agent, why);
}

int AgentMachines::changed() const { return state_->changed.descriptor(); }
void AgentMachines::clear_changed() { state_->changed.clear(); }

std::vector<MachineLink> AgentMachines::links() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<MachineLink> all;
  for (const auto& [ends, link] : state_->links) all.push_back(link);
  return all;
}

std::vector<MachineLink> AgentMachines::measure_links(double seconds, int stop, const std::set<std::string>& among) {
  MachinesState& state = *state_;
  double pairs = 0;
  {
    const std::lock_guard lock(state.mutex);
    ProbeLinks asked{.number = ++state.probe_number, .seconds = seconds, .members = {}};
    state.probed.clear();
    for (const MachinesState::Agent& agent : state.agents)
      if (!agent.gone && !agent.leaving && agent.report && !agent.report->fabric_address.empty() &&
          (among.empty() || among.contains(agent.name))) {
        asked.members.push_back({agent.name, agent.report->fabric_address});
        state.probed.push_back(agent.name);
      }
    if (asked.members.size() < 2) return {};
    pairs = static_cast<double>(asked.members.size() * (asked.members.size() - 1));
    state.probes_awaited = {state.probed.begin(), state.probed.end()};
    state.probe_failure.clear();
    for (const ProbeMember& member : asked.members) state.queue(*state.find(member.name), asked);
  }
  const Instant until = deadline_in(seconds + probe_patience_s + pairs * pair_patience_s);
  std::string failure;
  for (bool done = false; !done;) {
    pollfd waiting{stop, POLLIN, 0};
    constexpr int look_every_ms = 50;
    if (::poll(&waiting, 1, look_every_ms) == 1) break;
    const std::lock_guard lock(state.mutex);
    failure = state.probe_failure;
    if (seconds_until(until) <= 0) failure = "not all have answered in time";
    done = state.probes_awaited.empty() || !failure.empty();
  }
  if (!failure.empty()) state.say("links", fmt::format("were not measured: {}", failure));
  return links();
}

void AgentMachines::offer_weights(ModelManifest manifest, const std::filesystem::path& model) {
  const std::lock_guard lock(state_->mutex);
  MOTLEY_CHECK(!state_->manifest);  // who streams reads it without the mutex
  state_->manifest = std::move(manifest);
  state_->folder = state_->manifest->opens.empty() ? model : model.parent_path();
  state_->needed.emplace(*state_->manifest, model);
  state_->sources_changed = true;
  for (MachinesState::Agent& agent : state_->agents)
    if (!agent.gone) state_->queue(agent, Weights{*state_->manifest});
}

void AgentMachines::leave() {
  state_->thread.request_stop();
  state_->wake.notify();
  if (state_->thread.joinable()) state_->thread.join();
}

void AgentMachines::end(double grace_s) {
  MachinesState& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    state.ending = true;
    for (MachinesState::Agent& agent : state.agents)
      if (!agent.gone) state.queue(agent, End{});
    state.chunk_service.close();
  }
  const Instant until = deadline_in(grace_s);
  const auto left = [&] {
    const std::lock_guard lock(state.mutex);
    return !state.agents.empty();
  };
  while (left() && seconds_until(until) > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  leave();
}

}  // namespace motley
