// Training steps that MosaicML published, as plans: data/training/foundry.csv, whose README says what the columns mean.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "motley/plan/train_plan.hpp"

namespace motley {

struct PublishedRun {
  std::string name;         // "7b 2048 x 8 a100_80gb"
  std::string device_type;  // of the catalogue
  double iteration_s = 0;
  TrainPlan plan;  // one stage of all devices, sharded by PyTorch's FSDP
};

// In the order of the file. Throws an input error that names file and line.
std::vector<PublishedRun> read_published_runs(const std::filesystem::path& file);

}  // namespace motley
