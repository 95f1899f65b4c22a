// The files of a checkpoint of training: every tensor of the model whole, by its Hugging Face name, and its states of
// the optimizer. What is in which file follows from model and job alone, so that workers write their parts of the same
// files side by side, and any plan reads them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "motley/checkpoint/safetensors_writer.hpp"
#include "motley/plan/gradients.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

enum class StateKind : std::uint8_t {
  weight,      // in the run's type, under the tensor's name
  exp_avg,     // fp32, as all states: the first moment, or the momentum
  exp_avg_sq,  // the second moment
  master       // the fp32 copy of a 16-bit weight
};
// "model.norm.weight.exp_avg"
std::string state_name(const std::string& tensor, StateKind kind);
// Those that a job's optimizer has, weights first.
std::vector<StateKind> state_kinds(const Training& training);

struct StateFile {
  std::string name;  // "model-00001-of-00002.safetensors"
  std::vector<SafetensorsEntry> entries;
};

struct StatePlace {
  std::size_t file = 0, entry = 0;
};

struct StateFiles {
  std::vector<StateFile> files;              // those of weights first, none larger than 4 GB but for a tensor that is
  std::map<std::string, StatePlace> places;  // by state_name()
  std::size_t weight_files = 0;
};
StateFiles state_files(const Architecture& arch, const Training& training);

// What a device's worker reads when a run begins, and where the optimizer's states are there already: of the tensors of
// its layers the rows of its tensor-parallel rank, all columns. A rank that keeps only a part of the states reads no
// more than these.
struct StateRows {
  std::string name;  // state_name()
  StateKind kind;
  Span rows;
};
std::vector<StateRows> state_rows(const TrainPlan& plan, const std::string& device, bool with_states);

// Every element of every tensor once, with a device that has its states: who writes it, and counts it in a norm. Parts
// are those of gradient_slices(), cut where states are sharded, too.
struct StateSlice {
  TensorSpec tensor;
  Slice slice;
  std::string device;
};
std::vector<StateSlice> state_slices(const TrainPlan& plan);

}  // namespace motley
