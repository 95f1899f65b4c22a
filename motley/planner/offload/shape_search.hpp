// All shapes of a pass on one device, and all placements of whole layers for each, by the form `motley`.
#pragma once

#include <cstdint>
#include <optional>

#include "motley/base/clock.hpp"
#include "motley/cost/offload/offload_cost.hpp"
#include "motley/planner/offload/offload_options.hpp"

namespace motley {

class ShapeSearch {
 public:
  ShapeSearch(const Cluster& cluster, const Model& model, const Workload& workload, int device,
              const OffloadOptions& options, Instant deadline);

  // Adds all plans with these types to what is searched.
  void run(DType weight_type, DType kv_type);
  // Writes the best into `plan`; false where none fits.
  bool fill(OffloadPlan& plan) const;
  bool better(const OffloadPrediction& a, const OffloadPrediction& than) const;

 private:
  // Bytes of what is placed, for one shape.
  struct Room {
    std::int64_t device = 0, host = 0, disk = 0;  // for what is counted below
    std::int64_t layer = 0;                       // weights of the largest
    std::int64_t kv_layer = 0, kv_buffers = 0;
    std::int64_t hidden = 0;  // of one micro-batch; 0 where there is but one
  };
  struct Found {
    PassShape shape;
    PlacedCounts counts;
    OffloadPrice price;
    DType weight_type = DType::bf16, kv_type = DType::bf16;
    std::int64_t kv_tokens = 0;
  };
  struct Candidate {
    PassShape shape;
    double tokens_per_s = 0, latency_s = 0;  // no placement is better in either
  };

  void prepare(std::int64_t batch, std::int64_t chunk);
  std::optional<Room> room_of(const OffloadCost& cost, const PassShape& shape) const;
  std::optional<std::int64_t> device_layers(const Room& room, std::int64_t kv_layers, std::int64_t hidden,
                                            bool cpu_attention) const;
  std::optional<Candidate> bound(const OffloadCost& cost, const PassShape& shape) const;
  void consider(const OffloadCost& cost, const PassShape& shape, const PassSeconds& seconds,
                const PlacedCounts& counts);
  void evaluate(const OffloadCost& cost, const PassShape& shape);
  double rank(double tokens_per_s, double latency_s) const;
  // Whose keys and values are on the device.
  std::int64_t fewest_kv_layers() const {
    return options_.weights_only || !alike_heads(model_.arch) ? model_.arch.layers : 0;
  }

  const Cluster& cluster_;
  const Model& model_;
  const Workload& workload_;
  int device_;
  const OffloadOptions& options_;
  Instant deadline_;
  MemoryTiers tiers_;
  Shard shard_;
  DType weight_type_ = DType::bf16, kv_type_ = DType::bf16;
  std::int64_t ends_bytes_ = 0, layer_bytes_ = 0;  // of weights
  std::int64_t activation_bytes_ = 0;              // of the prepared batch
  std::optional<Found> best_;
  double bound_ = 0;  // of what was left out at the deadline
  bool stopped_ = false;
  std::int64_t evaluated_ = 0;
};

}  // namespace motley
