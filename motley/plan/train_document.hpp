// A training plan as it stands in its file.
#pragma once

#include "motley/plan/format.hpp"
#include "motley/plan/train.hpp"

namespace motley {

struct TrainDocument {
  std::string kind;
  ModelDocument model;
  ClusterDescription cluster;
  Workload workload;
  Profile profile;
  std::vector<TrainReplica> replicas;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  GradientSync sync;
  TrainPrediction predicted;
  std::vector<UnusedDevice> unused;
  SearchRecord search;
  bool operator==(const TrainDocument&) const = default;
};
template <>
const Schema<TrainDocument>& schema<TrainDocument>();

}  // namespace motley
