#include "motley/trainer/step/train_tensors.hpp"

#include <algorithm>

#include "motley/checkpoint/manifest.hpp"
#include "motley/engine/device/scalar_type.hpp"
#include "motley/engine/weights/read_weights.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

// Of a block, in the order in which run_block() uses them.
constexpr auto matrices = {"q.weight", "k.weight", "v.weight", "o.weight", "gate.weight", "up.weight", "down.weight"};

// Which tensors of a unit are whole in a pass, and which come in slices.
void divide(TrainUnit& unit) {
  if (unit.shard == Sharding::zero3 && unit.ranks.strategy->split > 1)
    for (const char* role : matrices)
      if (const auto found = unit.tensors.find(role); found != unit.tensors.end()) unit.sliced.push_back(found->second);
  for (const auto& [role, tensor] : unit.tensors)
    if (std::ranges::find(unit.sliced, tensor) == unit.sliced.end()) unit.whole.push_back(tensor);
}

std::vector<std::int64_t> shape_of(const TensorSpec& spec, const Slice& slice) {
  if (spec.shape.size() == 1) return {slice.rows.size()};
  return {slice.rows.size(), slice.columns.size()};
}

std::int64_t bytes_in(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * tensor.element_size() : 0;
}

}  // namespace

const at::Tensor& TrainTensor::state(StateKind kind) const {
  switch (kind) {
    case StateKind::weight: return kept;
    case StateKind::exp_avg: return exp_avg;
    case StateKind::exp_avg_sq: return exp_avg_sq;
    case StateKind::master: return master;
  }
  MOTLEY_CHECK(false);
}

namespace {

void resize(const at::Tensor& tensor, std::size_t bytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

}  // namespace

void TrainTensor::allocate_weight() const {
  if (gathered) resize(weight, static_cast<std::size_t>(weight.numel()) * weight.element_size());
}

void TrainTensor::free_weight() const {
  if (gathered) resize(weight, 0);
}

at::Tensor& TrainTensor::accumulator() {
  if (!is_divided()) return gradient;
  if (!pending.defined()) pending = at::zeros(shape_of(spec, slice), gradient.options());
  return pending;
}

void TrainTensor::add_gradient(const at::Tensor& values) {
  if (is_divided() && !pending.defined())
    pending = values.to(at::kFloat);
  else
    accumulator().add_(values);
}

at::Tensor part_of(const at::Tensor& tensor, const Slice& of, const Slice& slice) {
  const at::Tensor rows = tensor.narrow(0, slice.rows.first - of.rows.first, slice.rows.size());
  return rows.dim() == 1 ? rows : rows.narrow(1, slice.columns.first - of.columns.first, slice.columns.size());
}

bool contains(const Slice& whole, const Slice& part) {
  return whole.rows.first <= part.rows.first && part.rows.end <= whole.rows.end &&
         whole.columns.first <= part.columns.first && part.columns.end <= whole.columns.end;
}

Slice data_part(const TensorSpec& spec, const Slice& slice, std::int64_t rank, std::int64_t ranks) {
  Slice part = slice;
  Span& span = cuts_columns(spec.cut) ? part.columns : part.rows;
  const Span whole = span;
  span = {whole.first + whole.size() * rank / ranks, whole.first + whole.size() * (rank + 1) / ranks};
  return part;
}

TrainTensors::TrainTensors(const TrainPlan& plan, const std::string& device, const ComputeDevice& compute,
                           const std::filesystem::path& folder, std::int64_t updates,
                           const std::function<void(double)>& progress) {
  const Architecture& arch = plan.model.arch;
  const TrainPlace place = place_of(plan, device);
  const TrainStage& stage = plan.replicas[place.replica].stages[place.stage];
  for (const StrategyRanks& ranks : strategies_of(plan, place.replica)) {
    if (ranks.stage != &stage) continue;
    const LayerStrategy& strategy = *ranks.strategy;
    std::vector<TrainUnit>& units = units_.emplace_back();
    for (const ModelUnit& held : part_units(arch, with_ends(arch, strategy.layers))) {
      TrainUnit& unit = units.emplace_back();
      unit.layer = held.layer;
      unit.ranks = ranks;
      unit.shard = strategy.dp > 1 ? strategy.shard : Sharding::none;
      unit.dp_rank = place.rank / strategy.tp;
      unit.recompute = strategy.recompute;
      add(plan, unit, held.tensors, place.rank % strategy.tp);
      divide(unit);
    }
  }
  load(plan, compute, folder, updates, progress);
}

void TrainTensors::add(const TrainPlan& plan, TrainUnit& unit, const std::vector<TensorSpec>& specs,
                       std::int64_t tp_rank) {
  const Architecture& arch = plan.model.arch;
  const std::int64_t dp = unit.ranks.strategy->dp;
  const Shard shard = unit.ranks.shards(arch).at(static_cast<std::size_t>(tp_rank));
  for (const TensorSpec& spec : specs) {
    const Slice slice = slice_of(arch, spec, shard);
    const Slice part = data_part(spec, slice, unit.dp_rank, dp);
    const Slice gradient_slice = unit.shard >= Sharding::zero2 ? part : slice;
    // A tied table that is cut alike at both ends is one tensor.
    const auto same = std::ranges::find_if(all_, [&](const auto& other) {
      return other->spec.name == spec.name && other->slice == slice && other->gradient_slice == gradient_slice;
    });
    if (same != all_.end()) {
      unit.tensors.emplace(spec.role, *same);
      continue;
    }
    auto tensor = std::make_shared<TrainTensor>();
    tensor->spec = spec;
    tensor->slice = slice;
    tensor->gradient_slice = gradient_slice;
    tensor->state_slice = unit.shard >= Sharding::zero1 ? part : slice;
    all_.push_back(tensor);
    unit.tensors.emplace(spec.role, std::move(tensor));
  }
}

void TrainTensors::load(const TrainPlan& plan, const ComputeDevice& compute, const std::filesystem::path& folder,
                        std::int64_t updates, const std::function<void(double)>& progress) {
  const Training& training = training_of(plan.workload);
  const at::ScalarType type = scalar_type(training.precision);
  const Checkpoint weights(folder);
  const StateFiles files = state_files(plan.model.arch, training);
  PinnedPieces pieces(compute);
  for (const auto& tensor : all_) tensor->gathered = true;
  for (const auto& units : units_)
    for (const TrainUnit& unit : units)
      for (const auto& [role, tensor] : unit.tensors) tensor->gathered &= unit.shard == Sharding::zero3;

  std::unique_ptr<Checkpoint> states;
  std::vector<StateKind> kinds = state_kinds(training);
  kinds.erase(kinds.begin());
  if (updates > 0 && !kinds.empty()) states = std::make_unique<Checkpoint>(folder, states_stem);
  for (std::size_t i = 0; i < all_.size(); ++i) {
    TrainTensor& tensor = *all_[i];
    const auto state_shape = shape_of(tensor.spec, tensor.state_slice);
    const auto read = [&](const Checkpoint& from, const std::string& name, const Slice& slice, at::ScalarType as) {
      TensorSpec named = tensor.spec;
      named.name = name;
      const at::Tensor values = compute.empty(shape_of(tensor.spec, slice), as);
      read_tensor(from, named, slice, values, &pieces);
      return values;
    };
    if (tensor.gathered) {
      tensor.kept = read(weights, tensor.spec.name, tensor.state_slice, type);
      tensor.weight = compute.empty(shape_of(tensor.spec, tensor.slice), type).requires_grad_();
      tensor.free_weight();
    } else {
      tensor.weight = read(weights, tensor.spec.name, tensor.slice, type);
      tensor.kept = part_of(tensor.weight, tensor.slice, tensor.state_slice);
      tensor.weight.requires_grad_();
    }
    tensor.gradient = at::zeros(shape_of(tensor.spec, tensor.gradient_slice), compute.options(at::kFloat));
    // Then autograd adds to it by itself.
    if (type == at::kFloat && !tensor.is_divided()) tensor.weight.mutable_grad() = tensor.gradient;
    for (const StateKind kind : kinds) {
      at::Tensor& state = kind == StateKind::exp_avg      ? tensor.exp_avg
                          : kind == StateKind::exp_avg_sq ? tensor.exp_avg_sq
                                                          : tensor.master;
      if (states)
        state = read(*states, state_name(tensor.spec.name, kind), tensor.state_slice, at::kFloat);
      else if (kind == StateKind::master)
        state = read(weights, tensor.spec.name, tensor.state_slice, at::kFloat);
      else
        state = at::zeros(state_shape, compute.options(at::kFloat));
    }
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(all_.size()));
  }
}

std::vector<TrainTensor*> TrainTensors::holders(const std::string& name, const Slice& part) const {
  std::vector<TrainTensor*> found;
  for (const auto& tensor : all_)
    if (tensor->spec.name == name && contains(tensor->gradient_slice, part)) found.push_back(tensor.get());
  return found;
}

TrainBytes TrainTensors::bytes() const {
  TrainBytes bytes;
  for (const auto& tensor : all_) {
    bytes.weights += std::max(static_cast<std::int64_t>(tensor->weight.storage().nbytes()), bytes_in(tensor->kept));
    bytes.gradients += bytes_in(tensor->gradient);
    bytes.optimizer += bytes_in(tensor->master) + bytes_in(tensor->exp_avg) + bytes_in(tensor->exp_avg_sq);
  }
  return bytes;
}

}  // namespace motley
