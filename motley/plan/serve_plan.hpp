// Serving: the plan of kind "serve". Stages, each a group of devices with a range of layers; routes of requests through
// them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/cluster/profile.hpp"
#include "motley/model/caches.hpp"
#include "motley/model/model.hpp"
#include "motley/model/offload.hpp"
#include "motley/plan/shared.hpp"
#include "motley/workload/workload.hpp"

namespace motley {

enum class StageRole { any, prefill, decode };
EnumNames<StageRole> names_of(Bound<StageRole>);

// Where such copies lie: in the device's own memory, or in its host's, from which they are copied to the device that
// takes them over. Of a processor both are one.
enum class StandbyTier { device, host };
EnumNames<StandbyTier> names_of(Bound<StandbyTier>);

// Layers of other stages of which a stage holds copies, cut as its own, so that it need not load them after a loss.
// With the model's first layer come the embedding, with its last the final norm and the head.
struct StandbyWeights {
  LayerRange layers;
  StandbyTier tier = StandbyTier::device;
  bool operator==(const StandbyWeights&) const = default;
};

// A contiguous range of layers held by a tensor-parallel group of devices.
struct Stage {
  std::string id;  // "r0/s1"
  StageRole role = StageRole::any;
  LayerRange layers;
  std::vector<std::string> devices;              // one tensor-parallel rank each, in order
  std::vector<double> shares;                    // fractions that sum to 1; empty: equal
  std::vector<std::int64_t> expert_shares = {};  // whole experts of each rank; empty: columns of every one
  bool embedding = false;
  bool head = false;
  std::int64_t kv_tokens = 0;     // room in the KV cache, tokens per layer
  std::int64_t kv_sequences = 0;  // that have a slot there; 0: none has
  DType weight_type = DType::bf16;
  DType kv_type = DType::bf16;
  std::optional<Offload> offload = {};  // none: all in the devices' own memory
  std::vector<StandbyWeights> standby_weights = {};
  // Micro-batches that share one pass over the weights.
  std::int64_t batches() const { return offload ? offload->batches : 1; }
  bool operator==(const Stage&) const = default;
};

struct Hop {
  std::string stage;
  LayerRange layers;
  std::optional<DType> activation_type = {};  // of what goes to the next stage; none: what that computes in
  bool operator==(const Hop&) const = default;
};

// A chain of stages that covers all layers. A replica is a route whose stages are its own.
struct Route {
  std::string id;  // "r0"
  std::vector<Hop> path;
  double weight = 1;               // share of the requests, relative to the other routes
  std::int64_t batch = 1;          // requests in flight that its prediction counts with
  std::int64_t micro_batches = 0;  // most under way at once; 0: by the times of stages and links
  bool operator==(const Route&) const = default;
};

// Bytes in one tier of memory, by cause.
struct TierMemory {
  std::int64_t weights = 0;
  std::int64_t kv = 0;
  std::int64_t activations = 0;
  std::int64_t reserve = 0;
  std::int64_t limit = 0;    // the tier's memory
  std::int64_t standby = 0;  // copies of other stages' weights
  std::int64_t total() const { return weights + kv + activations + reserve + standby; }
  bool operator==(const TierMemory&) const = default;
};

// What one device holds: in its own memory, and where its stage offloads in its host's and on its host's disk.
struct DeviceMemory {
  TierMemory device = {}, host = {}, disk = {};
  bool operator==(const DeviceMemory&) const = default;
};
Schema<DeviceMemory> schema_of(Bound<DeviceMemory>);
constexpr std::array<std::pair<std::string_view, TierMemory DeviceMemory::*>, 3> memory_tiers = {
    {{"device", &DeviceMemory::device}, {"host", &DeviceMemory::host}, {"disk", &DeviceMemory::disk}}};

// What the planner expects of the plan under its workload.
struct ServePrediction {
  double tokens_per_s = 0;  // output tokens, all routes together, each at its batch
  double requests_per_s = 0;
  double latency_s = 0;     // of one request of mean lengths, at those batches
  double bottleneck_s = 0;  // busy time per request of the busiest stage
  std::optional<double> slo_attainment;
  std::optional<double> kl;  // mean divergence to the unquantised model, where types were chosen under a bound on it
  // Where device types rest on the measurements of others.
  std::optional<FigureRange> tokens_per_s_range, latency_s_range;
  std::map<std::string, DeviceMemory> memory_bytes;
  bool operator==(const ServePrediction&) const = default;
};

struct ServePlan {
  static constexpr PlanKind kind{"serve", "motley plan serve"};

  Model model;
  Cluster cluster;
  Workload workload;
  Profile profile;  // what was measured; empty where nothing was
  StepLimits step;  // sizes of the engine's buffers and KV blocks
  std::vector<Stage> stages;
  std::vector<Route> routes;
  ServePrediction predicted;
  std::vector<UnusedDevice> unused;
  SearchRecord search;

  const Stage& stage(const std::string& id) const;  // throws an input error
  bool operator==(const ServePlan&) const = default;
};
Schema<ServePlan> schema_of(Bound<ServePlan>);

// Layers that stay in the device's memory: those of a stage that offloads are held whole, windows or not.
CacheRoom cache_room(const Stage& stage);
// The most tokens, in whole blocks and no more than `most`, of which a rank of such a stage keeps at most this
// many bytes.
std::int64_t tokens_in(const ServePlan& plan, const Stage& stage, std::size_t rank, std::int64_t bytes,
                       std::int64_t most);
// Windows of layers that keep these alone, with the blocks of each slot, every pair once.
struct SlotWindow {
  std::int64_t window = 0, blocks = 0;
  bool operator==(const SlotWindow&) const = default;
};
std::vector<SlotWindow> slot_windows(const ServePlan& plan);

// Those of these layers that the stage holds, standby weights included.
std::vector<LayerRange> held_layers(const Stage& stage, const LayerRange& layers);

// The first hop that decodes of a route that begins with prefill stages; none where all its hops do both.
std::optional<std::size_t> hand_over_hop(const ServePlan& plan, const Route& route);

// What each of its devices holds. Throws an input error where the stage's shares cannot be.
std::vector<Shard> stage_shards(const Architecture& arch, const Stage& stage);

// Bytes on every device of a stage, in the order of its devices: the arithmetic of model/ applied to a stage of a plan.
// Of one that offloads, shares must be whole layers. The limits of host and disk are the machine's, which its devices
// share.
std::vector<DeviceMemory> stage_memory(const ServePlan& plan, const Stage& stage);

// Bytes of the largest payload that one worker of the plan sends another: a micro-batch's hidden states or logits, in
// fp32. Driver and workers size their channels by it.
std::int64_t largest_frame_bytes(const ServePlan& plan);

// Checks a plan without knowing any planner. Empty: nothing wrong.
std::vector<Violation> verify(const ServePlan& plan);

}  // namespace motley
