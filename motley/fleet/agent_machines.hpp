// The driver's side of a deployment on several machines: which of them are there, what they offer, and workers on them.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "motley/deployment/machines.hpp"
#include "motley/fleet/machine_status.hpp"
#include "motley/workers/fleet.hpp"

namespace motley {

struct MachinesState;

// Those that a device's worker reads.
using ChunksOf = std::function<std::vector<ChunkId>(const std::string& device)>;

class AgentMachines final : public Machines, public Fleet {
 public:
  // Throws an environment error where the address cannot be listened on.
  explicit AgentMachines(AgentMachinesOptions options);
  ~AgentMachines() override;  // as end()
  AgentMachines(const AgentMachines&) = delete;
  AgentMachines& operator=(const AgentMachines&) = delete;

  const std::string& address() const;  // of the listener

  // Those that are connected and do not want to leave, by name.
  std::vector<MachineStatus> list() const;
  Cluster offered(const std::set<std::string>& without) const override;  // as list() and links()
  std::set<std::string> leaving() const override;
  std::map<std::string, std::string> out_of_service() const override;
  // As if this member had asked to leave; it stays connected. Throws an input error where there is no such member.
  void drain(const std::string& name);
  // Ends the connection to this member, if there is one, as if it were lost. `objection` keeps it out.
  void remove(const std::string& name, const std::string& why);
  int changed() const override;
  void clear_changed() override;

  // `among`: empty for all that are there.
  std::vector<MachineLink> measure_links(double seconds, int stop, const std::set<std::string>& among = {}) override;
  std::vector<MachineLink> links() const override;

  // What agents fetch: `model`, a folder or a GGUF file, of this manifest.
  void offer_weights(ModelManifest manifest, const std::filesystem::path& model);

  // Of the model that was offered.
  std::unique_ptr<WorkerStart> begin(const std::vector<std::string>& starting, const std::vector<std::string>& running,
                                     const WorkerReads& reads) override;
  std::unique_ptr<WorkerStart> begin(const std::vector<std::string>& starting, const std::vector<std::string>& running,
                                     const ChunksOf& chunks);
  bool is_here() const override { return false; }

  // Without a word to the agents, which then go on looking for a driver that takes the deployment up again.
  void leave();
  // The deployment has ended: tells every agent, and gives them `grace_s` to end their workers.
  void end(double grace_s);

 private:
  std::unique_ptr<MachinesState> state_;
};

}  // namespace motley
