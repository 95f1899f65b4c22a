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

// ---- what plans of several kinds begin with ----

// Throws an input error where the document says that it is of another kind.
void expect_kind(const Reader& reader, const std::string& kind);

// The rows `kind`, `model`, `cluster`, `workload` and `profile`, in this order.
template <class D>
Schema<D> plan_head(Schema<D> table, const std::string& kind, const std::string& model_doc) {
  return std::move(
      table.format("motley.plan/1")
          .field("kind", &D::kind, "`" + kind + "`.", {.required = true})
          .field("model", &D::model, model_doc, {.required = true})
          .template custom<ClusterDescription>(
              description_row("cluster"), &D::cluster,
              [](const Reader& reader) { return schema<ClusterDescription>().read(reader); },
              binding::write_any<ClusterDescription>)
          .template custom<Workload>(
              description_row("workload"), &D::workload,
              [](const Reader& reader) { return schema<Workload>().read(reader); }, binding::write_any<Workload>)
          .template custom<Profile>(
              optional_description_row("profile"), &D::profile,
              [](const Reader& reader) { return schema<Profile>().read(reader); }, binding::write_any<Profile>));
}

// Model, cluster, workload and profile of a document, made into what plans hold.
template <class Plan, class D>
void take_head(Plan& plan, D& document, const Value& value, const std::string& source) {
  plan.model.name = std::move(document.model.name);
  plan.model.config = std::move(document.model.config);
  plan.model.arch = read_architecture(plan.model.config, source + ": model.config");
  plan.cluster = resolve(std::move(document.cluster), source + ": cluster");
  plan.workload = std::move(document.workload);
  plan.profile = std::move(document.profile);
  check_profile(plan.profile, Reader(value, source + ": profile"));
}

}  // namespace motley
