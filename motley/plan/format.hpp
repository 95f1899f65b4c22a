// A serving plan as it stands in its file.
#pragma once

#include "motley/plan/plan.hpp"

namespace motley {

struct ModelDocument {
  std::string name;
  Value config;
  bool operator==(const ModelDocument&) const = default;
};

struct ServeDocument {
  std::string kind;
  ModelDocument model;
  ClusterDescription cluster;
  Workload workload;
  Profile profile;
  StepLimits step;
  std::vector<Stage> stages;
  std::vector<Route> routes;
  ServePrediction predicted;
  std::vector<UnusedDevice> unused;
  SearchRecord search;
  bool operator==(const ServeDocument&) const = default;
};
template <>
const Schema<ServeDocument>& schema<ServeDocument>();

// The key `layers`, and the row of a description that has a reference page of its own.
FieldDoc layers_row(std::string doc);
LayerRange read_layers(const Reader& reader);
Value write_layers(const LayerRange& range);
FieldDoc description_row(const std::string& kind);
FieldDoc optional_description_row(const std::string& kind);

}  // namespace motley
