// The driver's side of a deployment on several machines: which of them are there, what they offer, and workers on them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "motley/deployment/machines.hpp"
#include "motley/fleet/member_status.hpp"
#include "motley/plan/serve.hpp"
#include "motley/workers/worker_set.hpp"

namespace motley {

struct MembersState;

class Members : public Machines {
 public:
  // Throws an environment error where the address cannot be listened on.
  explicit Members(MembersOptions options);
  ~Members() override;  // as end()
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  const std::string& address() const;  // of the listener

  // Those that are connected and do not want to leave, by name.
  std::vector<MemberStatus> list() const;
  Cluster offered(const std::set<std::string>& without) const override;  // as list() and links()
  std::set<std::string> leaving() const override;
  // As if this member had asked to leave; it stays connected. Throws an input error where there is no such member.
  void drain(const std::string& name);
  // Ends the connection to this member, if there is one, as if it were lost. `objection` keeps it out.
  void remove(const std::string& name, const std::string& why);
  int changed() const override;
  void clear_changed() override;

  // `among`: empty for all that are there.
  std::vector<MachineLink> measure_links(double seconds, int stop, const std::set<std::string>& among = {}) override;
  std::vector<MachineLink> links() const override;

  // What agents fetch: a model of this manifest, whose files are in `folder`.
  void offer_weights(ModelManifest manifest, std::filesystem::path folder);

  // Workers of these devices, which wait to be told what to do, in this order. `chunks` of a device are those that its
  // worker reads. Throws as the start below; `stopped` is asked often, and ends the wait with an interrupted error.
  Workers start_workers(const std::vector<std::string>& devices,
                        const std::function<std::vector<ChunkId>(const std::string& device)>& chunks,
                        const std::function<bool()>& stopped);

  // The workers of a plan, launched and in the order of worker_devices(). Those of `earlier` that run and have a part
  // in it stay and are taken out, the others end first; the rest is started. `chunks` of a device are those that its
  // worker reads. Throws WorkersNotStarted where a member is not there, is lost meanwhile, or cannot start a worker,
  // and where a worker has not called in time; what `earlier` has then is as it was.
  Workers start_workers(const ServePlan& plan, std::uint64_t epoch, const CacheHandover& handover,
                        const std::function<std::vector<ChunkId>(const std::string& device)>& chunks, Workers& earlier);

  // Begins to start the workers of a plan, but for those of devices whose workers run: for these it has the weights
  // fetched that they lack. Each worker loads its part. One at a time, and none is left when start_workers() is called.
  std::unique_ptr<WorkerPreparation> prepare_workers(
      const ServePlan& plan, const std::set<std::string>& running,
      const std::function<std::vector<ChunkId>(const std::string& device)>& chunks);

  // Without a word to the agents, which then go on looking for a driver that takes the deployment up again.
  void leave();
  // The deployment has ended: tells every agent, and gives them `grace_s` to end their workers.
  void end(double grace_s);

 private:
  std::unique_ptr<MembersState> state_;
};

}  // namespace motley
