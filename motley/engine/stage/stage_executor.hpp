// One device's part of a plan, loaded and connected, and the steps that it computes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/engine/device/rank_sums.hpp"
#include "motley/engine/stage/assignment.hpp"
#include "motley/engine/stage/crossing.hpp"
#include "motley/engine/stage/load_ahead.hpp"
#include "motley/engine/stage/peer_rows.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/workers/activity_log.hpp"
#include "motley/workers/block_tables.hpp"
#include "motley/workers/control_connection.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

// A part of a plan to be run, until `stop`.
struct LaunchedPart {
  Launch launch;
  std::stop_token stop;
};

ServePlan read_sent_plan(const std::string& json);

// Tells the driver of each twentieth of the weights. `control` outlives it.
std::function<void(double)> weights_progress(ControlConnection& control);

// Sends Progress, and Preloaded at the end. `self` is what the worker is told that it is, here and below.
std::unique_ptr<StageModel> preload(const Preload& asked, const CallDriver& self, const ComputeDevice& device,
                                    ControlConnection& control);

class StageExecutor {
 public:
  // Sends Progress, and Ready at the end. `held` may be null; it is taken, and the new part keeps of it what it can.
  // Where GroupBroken is thrown it is as before, or what was made of it.
  StageExecutor(const LaunchedPart& part, ServePlan plan, const CallDriver& self, const ComputeDevice& device,
                ControlConnection& control, Fabric& fabric, std::unique_ptr<StageModel>& held, ActivityLog& activity);
  ~StageExecutor() { retire(); }
  // By any thread, in the order of their execution: steps that will be executed. Their rows may come before.
  void expect(const Step& step);
  StepResult execute(Step step);
  std::unique_ptr<StageModel>& model() { return model_; }
  // Nothing is added up with them from now on: before another executor meets ranks.
  void leave_ranks() { sums_.reset(); }
  // No step follows, the launch has ended: whatever is under way is given up, and what is left is the model.
  std::unique_ptr<StageModel>& retire();
  // What a later launch will need is read from now on, if there is room for it; `done` is called in any case.
  void load_ahead(const Preload& asked, LoadAhead& ahead, std::function<void()> done) const;
  // The copies of other stages' layers are read from now on; `done` is told how much is held of them.
  void load_standby(LoadAhead& ahead, std::function<void(std::int64_t bytes)> done) const;

 private:
  std::unique_ptr<WorkerGroup> group_of(const Launch& launch, Fabric& fabric, const std::string& name,
                                        const std::vector<std::string>& members, std::int64_t window_bytes) const;
  void connect(const Launch& launch, Fabric& fabric);
  void meet_peers();
  void connect_rows(const Launch& launch, Fabric& fabric);
  std::set<std::pair<int, int>> crossings_of_peers() const;
  bool receives(const RoutePlace& place) const { return receiver_ && place.previous != nullptr; }
  int sender_of(const RoutePlace& place) const;
  const RoutePlace& place_on_route(const Step& step) const;
  at::Tensor receive(const RoutePlace& place);
  void send(const RoutePlace& place, const at::Tensor& hidden);
  void use_logits(const Step& step, const at::Tensor& hidden, StepResult& result);
  std::int64_t most_tokens() const { return plan_.step.max_tokens * assignment_.stage->batches(); }
  // Of a micro-batch.
  std::int64_t largest_rows_bytes() const {
    return bytes_of(DType::fp32, plan_.step.max_tokens * plan_.model.arch.hidden);
  }
  double waited_s() const;
  double stage_waited_s() const { return group_ ? group_->waited_s() : 0; }

  const CallDriver& self_;
  ActivityLog& activity_;
  const std::uint64_t epoch_;
  std::stop_source ended_;  // with this part of a plan
  std::stop_callback<std::function<void()>> with_launch_;
  std::uint64_t step_ = 0;
  ServePlan plan_;
  Assignment assignment_;
  const ComputeDevice& device_;
  std::map<std::string, int> rank_of_;    // devices in workers_
  std::unique_ptr<WorkerGroup> workers_;  // of the whole plan
  std::unique_ptr<WorkerGroup> group_;    // of the stage; null: a single rank
  std::unique_ptr<RankSums> sums_;        // of its ranks; null: by way of the host
  std::unique_ptr<StageModel> model_;
  BlockTables tables_;
  std::map<std::pair<int, int>, std::unique_ptr<WorkerGroup>> rows_;  // by sender and receiver, ranks in workers_
  std::unique_ptr<CrossingReceiver> receiver_;
  std::unique_ptr<CrossingSender> sender_;
  std::map<int, std::unique_ptr<PeerSender>> to_peers_;  // by rank in workers_: of those that agreed
  std::map<int, std::unique_ptr<PeerReceiver>> from_peers_;
};

}  // namespace motley
