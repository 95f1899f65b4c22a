// A collective plan as it stands in its file.
#pragma once

#include "motley/plan/collective_plan.hpp"
#include "motley/plan/format.hpp"

namespace motley {

struct ByteRange {
  std::int64_t first = 0, last = 0;
  bool operator==(const ByteRange&) const = default;
};

struct WrittenStep {
  CollectiveStepKind op = CollectiveStepKind::send;
  int peer = -1;
  int chunk = 0;
  ByteRange range;
  std::vector<int> after;
  bool operator==(const WrittenStep&) const = default;
};
template <>
const Schema<WrittenStep>& schema<WrittenStep>();

using WrittenProgram = std::vector<std::vector<WrittenStep>>;  // by rank

struct CollectiveDocument {
  std::string kind;
  ClusterDescription cluster;
  CollectiveOperation operation = CollectiveOperation::all_reduce;
  int ranks = 0;
  int root = 0;
  std::int64_t bytes = 0;
  int chunks = 1;
  std::string layout;
  WrittenProgram program;
  CollectivePrediction predicted;
  SearchRecord search;
  bool operator==(const CollectiveDocument&) const = default;
};
template <>
const Schema<CollectiveDocument>& schema<CollectiveDocument>();

}  // namespace motley
