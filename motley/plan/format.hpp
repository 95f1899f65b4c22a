// What the tables of several kinds of plans have in common.
#pragma once

#include <string>
#include <utility>

#include "motley/base/version.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/cluster/profile.hpp"
#include "motley/model/model.hpp"
#include "motley/model/offload.hpp"
#include "motley/plan/shared.hpp"
#include "motley/workload/workload.hpp"

namespace motley {

FieldDoc kind_row(const PlanKind& kind);
FieldDoc writer_row();

// A table of motley.plan/1 with the keys that every plan begins with. The kind is a constant of the struct: read_plan()
// has chosen the struct by it. The writer is read where an error needs it.
template <class P>
Schema<P> plan_table(std::string_view name, std::string_view doc) {
  return std::move(Schema<P>(name, doc)
                       .format("motley.plan/1")
                       .key(
                           kind_row(P::kind),
                           [](P&, const Reader& reader) { binding::read_choice(reader, {std::string(P::kind.name)}); },
                           [](const P&) { return Value(P::kind.name); })
                       .key(
                           writer_row(), [](P&, const Reader& reader) { binding::read_string(reader); },
                           [](const P&) { return Value(program_version()); }));
}

// The rows of the descriptions that a plan was made from.
template <class P>
Schema<P> with_descriptions(Schema<P> table, std::string_view model_doc) {
  constexpr std::string_view doc = "The description that the plan was made from, whole.";
  return std::move(table.field("model", &P::model, model_doc, {.required = true})
                       .field("cluster", &P::cluster, doc, {.required = true})
                       .field("workload", &P::workload, doc, {.required = true})
                       .field("profile", &P::profile, doc));
}

// The key `layers`.
FieldDoc layers_row(std::string doc);
LayerRange read_layers(const Reader& reader);
Value write_layers(const LayerRange& range);

// Where the parts of a stage lie.
Schema<TierShares> schema_of(Bound<TierShares>);

}  // namespace motley
