// The checkpoints of a run: folders RUN/step-N that transformers and `motley serve` read as models, with the
// optimizer's states with the weights. A checkpoint is there whole or not at all; docs/reference/checkpoint.md has
// the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/plan/train_plan.hpp"
#include "motley/trainer/layout/state_files.hpp"

namespace motley {

struct CheckpointFile {
  std::string name;
  std::int64_t bytes = 0;
  std::vector<std::string> digests;  // SHA-256 of each 64 MiB
  bool operator==(const CheckpointFile&) const = default;
};

// RUN/step-N/motley.json
struct CheckpointRecord {
  std::int64_t step = 0;
  std::int64_t updates = 0;    // of the weights: steps that were not skipped
  std::int64_t sequences = 0;  // of the data, taken so far
  std::int64_t seed = 0;
  double loss = 0;  // of the step
  std::vector<CheckpointFile> files;
  Value plan;  // that it was trained by
  bool operator==(const CheckpointRecord&) const = default;
};
Schema<CheckpointRecord> schema_of(Bound<CheckpointRecord>);

std::string checkpoint_name(std::int64_t step);  // "step-120"

// A folder RUN/step-N.partial with files of their whole length, for workers to fill; what was left of an earlier one is
// removed. `model` is the folder whose configuration and tokenizer it gets. Throws an environment error where the disk
// is too small, and leaves nothing.
std::filesystem::path begin_checkpoint(const std::filesystem::path& run, std::int64_t step, const TrainPlan& plan,
                                       const std::filesystem::path& model);
// Writes the record, whose `files` it fills in, and gives the folder its name.
void commit_checkpoint(const std::filesystem::path& partial, CheckpointRecord record);
// Keeps the newest `keep` checkpoints, of which the newest was read when it was committed: older ones go once the
// others have proved whole.
void prune_checkpoints(const std::filesystem::path& run, std::size_t keep);

// Steps of the checkpoints that a run has, ascending.
std::vector<std::int64_t> checkpoints_of(const std::filesystem::path& run);
// Reads record and files of a checkpoint, and holds them against their digests. Throws an input error that names the
// file that is damaged.
CheckpointRecord verify_checkpoint(const std::filesystem::path& folder);

}  // namespace motley
