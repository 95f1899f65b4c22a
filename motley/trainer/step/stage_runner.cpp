#include "motley/trainer/step/stage_runner.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "motley/engine/device/collectives.hpp"
#include "motley/engine/device/scalar_type.hpp"
#include "motley/engine/stage/model_ends.hpp"
#include "motley/engine/weights/weights.hpp"
#include "motley/trainer/step/train_ops.hpp"

namespace motley {
namespace {

using at::Tensor;

// Bytes of every data-parallel rank's parts of a unit's whole tensors, by rank.
std::vector<std::int64_t> part_bounds(const TrainUnit& unit, std::int64_t element_bytes) {
  const std::int64_t dp = unit.ranks.strategy->dp;
  std::vector<std::int64_t> bounds = {0};
  for (std::int64_t d = 0; d < dp; ++d) {
    std::int64_t elements = 0;
    for (const auto& tensor : unit.whole) elements += data_part(tensor->spec, tensor->slice, d, dp).elements();
    bounds.push_back(bounds.back() + elements * element_bytes);
  }
  return bounds;
}

// Visits the parts of all ranks in the order in which they lie: visit(rank, tensor, part, first element).
template <class Visit>
void for_each_part(const TrainUnit& unit, const Visit& visit) {
  const std::int64_t dp = unit.ranks.strategy->dp;
  std::int64_t at = 0;
  for (std::int64_t d = 0; d < dp; ++d)
    for (const auto& tensor : unit.whole) {
      const Slice part = data_part(tensor->spec, tensor->slice, d, dp);
      visit(d, *tensor, part, at);
      at += part.elements();
    }
}

std::map<std::string, WeightMatrix> weights_of(const TrainUnit& unit) {
  std::map<std::string, WeightMatrix> tensors;
  for (const auto& [role, tensor] : unit.tensors) tensors.emplace(role, WeightMatrix{.values = tensor->weight});
  return tensors;
}

Tensor leaf_of(const Tensor& values) { return values.detach().requires_grad_(); }

}  // namespace

void gather_parts(const TrainUnit& unit, WorkerGroup& data_group, const ComputeDevice& compute, Tensor& buffer) {
  const at::NoGradGuard values_alone;
  const at::TensorOptions options = unit.whole.front()->kept.options();
  const auto bounds = part_bounds(unit, static_cast<std::int64_t>(options.dtype().itemsize()));
  const Tensor all = at::empty({bounds.back() / static_cast<std::int64_t>(options.dtype().itemsize())}, options);
  const auto of = [&](const Slice& part, std::int64_t first, const Tensor& like) {
    return all.narrow(0, first, part.elements()).view(like.sizes());
  };
  for_each_part(unit, [&](std::int64_t d, TrainTensor& tensor, const Slice& part, std::int64_t first) {
    if (d == unit.dp_rank) of(part, first, tensor.kept).copy_(tensor.kept);
  });
  through_host(compute, all, buffer, [&](auto bytes) { data_group.all_gather(bytes, bounds); });
  for_each_part(unit, [&](std::int64_t d, TrainTensor& tensor, const Slice& part, std::int64_t first) {
    if (d == unit.dp_rank && unit.shard != Sharding::zero3) return;  // it is there
    // Without counting as a change: what autograd has kept of the weight is the same.
    Tensor to = part_of(tensor.weight.variable_data(), tensor.slice, part);
    to.copy_(of(part, first, to));
  });
}

StageRunner::StageRunner(const TrainPlan& plan, const std::string& device, TrainTensors& tensors,
                         const TrainConnections& connections, ActivityLog& activity, const ComputeDevice& compute)
    : arch_(plan.model.arch),
      training_(training_of(plan.workload)),
      compute_(compute),
      type_(scalar_type(training_.precision)),
      ops_(compute.differentiable_ops()),
      rows_(connections, place_of(plan, device).first_worker + place_of(plan, device).rank, compute),
      activity_(activity),
      late_(compute) {
  const TrainPlace place = place_of(plan, device);
  frequencies_ = rotary_frequencies(arch_, training_.sequence_length);
  strategies_ = strategies_of(plan, place.replica);
  const TrainStage* stage = &plan.replicas[place.replica].stages[place.stage];
  for (std::size_t s = 0; s < strategies_.size(); ++s) {
    if (strategies_[s].stage != stage) continue;
    if (ranges_.empty()) first_strategy_ = s;
    Range& range = ranges_.emplace_back();
    range.ranks = strategies_[s];
    range.units = &tensors.units(ranges_.size() - 1);
    range.dp_rank = place.rank / range.ranks.strategy->tp;
    range.tp_rank = static_cast<int>(place.rank % range.ranks.strategy->tp);
    range.tensor_group = connections.group(GroupKind::tensor, range.ranks.tensor_group(range.dp_rank));
    if (range.ranks.strategy->shard != Sharding::none)
      range.data_group = connections.group(GroupKind::data, range.ranks.data_group(range.tp_rank));
    range.tensor_ranks = std::make_unique<TrainRanks>(range.tensor_group, compute_);
    for (const TrainUnit& unit : *range.units) {
      if (!unit.sliced.empty())
        range.slices.emplace(unit.layer, std::make_unique<WeightSlices>(unit, *range.data_group, compute_));
      lags_ = lags_ || (weight_lag(plan.schedule, place.stage) > 0 && is_late(unit));
    }
  }
}

void StageRunner::begin(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets,
                        std::int64_t sequences, std::int64_t micro_batches, bool training) {
  inputs_.assign(inputs.begin(), inputs.end());
  targets_.assign(targets.begin(), targets.end());
  micro_batch_bounds_ = micro_batch_bounds(sequences, micro_batches);
  training_step_ = training;
  loss_ = 0;
}

std::int64_t StageRunner::sequences_of(std::int64_t micro_batch) const {
  const auto i = static_cast<std::size_t>(micro_batch);
  return micro_batch_bounds_.at(i + 1) - micro_batch_bounds_[i];
}

Span StageRunner::rows_of(const Range& range, std::int64_t micro_batch) const {
  const auto bounds = data_bounds(range.ranks, sequences_of(micro_batch));
  const auto d = static_cast<std::size_t>(range.dp_rank);
  return {bounds[d] * training_.sequence_length, bounds[d + 1] * training_.sequence_length};
}

Tensor StageRunner::tokens_of(const std::vector<std::int32_t>& of, const Range& range, std::int64_t micro_batch) const {
  const Span rows = rows_of(range, micro_batch);
  const std::int64_t first =
      micro_batch_bounds_.at(static_cast<std::size_t>(micro_batch)) * training_.sequence_length + rows.first;
  MOTLEY_CHECK(first + rows.size() <= std::ssize(of));
  return at::from_blob(const_cast<std::int32_t*>(of.data()) + first, {rows.size()}, at::kInt)
      .to(compute_.options(at::kLong));
}

Tensor StageRunner::positions_of(std::int64_t rows) const {
  const std::int64_t length = training_.sequence_length;
  return at::arange(length, compute_.options(at::kLong)).repeat({rows / length});
}

Tensor StageRunner::take_rows(const StrategyRanks& from, Range& to, std::int64_t micro_batch) {
  const Span rows = rows_of(to, micro_batch);
  Tensor hidden = at::empty({rows.size(), arch_.hidden}, compute_.options(type_));
  rows_.receive(crossing(from, to.ranks, sequences_of(micro_batch), training_.sequence_length), to.dp_rank,
                to.tensor_group, to.tp_rank, hidden, rows.first);
  return hidden;
}

void StageRunner::send_rows(const Range& from, const StrategyRanks& to, std::int64_t micro_batch, const Tensor& rows) {
  rows_.send(crossing(from.ranks, to, sequences_of(micro_batch), training_.sequence_length), rows.contiguous(),
             rows_of(from, micro_batch).first);
}

void StageRunner::forward(std::int64_t micro_batch) {
  Tensor hidden;
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    Range& range = ranges_[r];
    const std::size_t s = first_strategy_ + r;
    if (s > 0 && !stays(strategies_[s - 1], range.ranks)) hidden = take_rows(strategies_[s - 1], range, micro_batch);
    if (r == 0) input_arrived_ = Clock::now();
    for (TrainUnit& unit : *range.units) {
      activity_.set(Doing::computing);
      gather_weights(range, unit);
      if (unit.layer < 0) {
        hidden = embed(range, unit, micro_batch);
      } else if (unit.layer == arch_.layers) {
        head(range, unit, micro_batch, hidden);
      } else if (!training_step_ || unit.recompute) {
        const at::NoGradGuard values_alone;
        if (training_step_) range.records[micro_batch].push_back({hidden, {}});
        hidden = run(range, unit, hidden);
      } else {
        const Tensor input = leaf_of(hidden);
        const Tensor output = run(range, unit, input);
        range.records[micro_batch].push_back({input, output});
        hidden = output.detach();
      }
      drop_weights(range, unit);
    }
    if (s + 1 < strategies_.size() && !stays(range.ranks, strategies_[s + 1]))
      send_rows(range, strategies_[s + 1], micro_batch, hidden);
  }
}

void StageRunner::backward(std::int64_t micro_batch, const Finished& finished) {
  std::vector<Unfinished> unfinished;
  Tensor gradient;
  for (std::size_t r = ranges_.size(); r-- > 0;) {
    Range& range = ranges_[r];
    const std::size_t s = first_strategy_ + r;
    if (s + 1 < strategies_.size() && !stays(range.ranks, strategies_[s + 1]))
      gradient = take_rows(strategies_[s + 1], range, micro_batch);
    if (r + 1 == ranges_.size()) input_arrived_ = Clock::now();
    auto records = range.records.extract(micro_batch);
    std::size_t left = records.empty() ? 0 : records.mapped().size();
    for (std::size_t u = range.units->size(); u-- > 0;) {
      TrainUnit& unit = (*range.units)[u];
      activity_.set(Doing::computing);
      if (unit.layer == arch_.layers) {
        gradient = range.head_gradients.extract(micro_batch).mapped();
      } else {
        gather_weights(range, unit);
        if (unit.layer < 0)
          embed_backward(range, unit, micro_batch, gradient);
        else
          gradient = block_backward(range, unit, records.mapped().at(--left), gradient);
        drop_weights(range, unit);
        settle(range, unit);
      }
      unfinished.push_back({&range, &unit, late_.take()});
      if (first_strategy_ == 0) finish(std::exchange(unfinished, {}), micro_batch, finished);
    }
    if (s > 0 && !stays(strategies_[s - 1], range.ranks)) send_rows(range, strategies_[s - 1], micro_batch, gradient);
  }
  if (lags_)
    waiting_.emplace(micro_batch, std::move(unfinished));
  else
    finish(std::move(unfinished), micro_batch, finished);
}

void StageRunner::weight_gradients(std::int64_t micro_batch, const Finished& finished) {
  if (lags_) finish(waiting_.extract(micro_batch).mapped(), micro_batch, finished);
}

void StageRunner::finish(std::vector<Unfinished> units, std::int64_t micro_batch, const Finished& finished) {
  const bool is_last = micro_batch + 2 == std::ssize(micro_batch_bounds_);
  for (Unfinished& one : units) {
    if (is_late(*one.unit)) {
      activity_.set(Doing::computing);
      add_gradients(std::move(one.products));
      settle(*one.range, *one.unit);
    }
    if (finished && is_last) finished(one.unit->layer);
  }
}

// The look-up's gradient goes to the table's rows (embed_backward()); what follows, but for a factor alone, is left to
// autograd.
Tensor StageRunner::embed(Range& range, TrainUnit& unit, std::int64_t micro_batch) {
  const Tensor tokens = tokens_of(inputs_, range, micro_batch);
  const EndWeights ends = ends_of(weights_of(unit));
  const EndCall pass{arch_, ops_, ends};
  Tensor looked_up;
  {
    const at::NoGradGuard values_alone;
    look_up(pass, *range.tensor_ranks, tokens, unit.at("embedding.weight").slice.rows, looked_up);
    if (!ends.projection_in.defined() && !ends.position.defined()) {
      Tensor none, hidden;
      enter_blocks(pass, none, looked_up, none, hidden);
      return hidden;
    }
  }
  const bool kept = training_step_;
  const at::AutoGradMode history(kept);
  if (kept) range.looked_up[micro_batch] = looked_up = leaf_of(looked_up);
  Tensor learned, hidden;
  enter_blocks(pass, positions_of(tokens.size(0)), looked_up, learned, hidden);
  if (kept) range.embedded[micro_batch] = hidden;
  return hidden.detach();
}

void StageRunner::embed_backward(Range& range, TrainUnit& unit, std::int64_t micro_batch, const Tensor& gradient) {
  Tensor rows = gradient;
  if (auto embedded = range.embedded.extract(micro_batch); !embedded.empty()) {
    embedded.mapped().backward(gradient);
    rows = range.looked_up.extract(micro_batch).mapped().grad();
  } else if (arch_.embedding_factor != 1) {
    rows = rows * rounded(arch_.embedding_factor, rows.scalar_type());
  }
  const at::NoGradGuard values_alone;
  TrainTensor& table = *unit.tensors.at("embedding.weight");
  const Tensor tokens = tokens_of(inputs_, range, micro_batch);
  Tensor own = at::logical_and(tokens >= table.slice.rows.first, tokens < table.slice.rows.end);
  if (arch_.pad_token) own.logical_and_(tokens != *arch_.pad_token);  // as torch.nn.Embedding's padding_idx
  const Tensor index = own.nonzero().flatten();
  table.accumulator().index_add_(0, tokens.index_select(0, index) - table.slice.rows.first,
                                 rows.index_select(0, index).to(at::kFloat));
}

bool StageRunner::is_late(const TrainUnit& unit) const {
  return first_strategy_ > 0 && unit.layer >= 0 && unit.layer < arch_.layers &&
         weights_wait(training_, *unit.ranks.strategy);
}

Tensor StageRunner::run(Range& range, TrainUnit& unit, const Tensor& hidden) {
  const std::int64_t length = training_.sequence_length, sequences = hidden.size(0) / length;
  WeightSlices* slices = unit.sliced.empty() ? nullptr : range.slices.at(unit.layer).get();
  if (sequences == 0) {
    if (slices != nullptr) slices->forward_without_rows();
    return hidden;
  }
  const Tensor positions = positions_of(hidden.size(0));
  std::vector<SequenceRows> rows;
  for (std::int64_t i = 0; i < sequences; ++i) rows.push_back({i * length, length, 0, {}});
  const Ops& ops = slices != nullptr ? slices->ops() : is_late(unit) ? late_.ops() : ops_;
  const BlockCall pass{arch_, ops, *range.tensor_ranks, frequencies_, positions, rows};
  Tensor output = hidden;
  run_block(pass, block_of(weights_of(unit), range.tp_rank), unit.layer, {}, {}, output);
  return output;
}

Tensor StageRunner::block_backward(Range& range, TrainUnit& unit, BlockRecord& record, const Tensor& gradient) {
  if (!record.output.defined()) {
    record.input = leaf_of(record.input);
    record.output = run(range, unit, record.input);
  }
  if (gradient.size(0) == 0) {
    if (!unit.sliced.empty()) range.slices.at(unit.layer)->backward_without_rows();
    return gradient;
  }
  record.output.backward(gradient);
  Tensor back = record.input.grad();
  record = {};
  return back;
}

// Each rank has the logits of its part of the vocabulary; what a token's loss needs of each are three numbers.
void StageRunner::head(Range& range, TrainUnit& unit, std::int64_t micro_batch, const Tensor& hidden) {
  const Tensor targets = tokens_of(targets_, range, micro_batch);
  TrainTensor& table = *unit.tensors.at("head.weight");
  const bool kept = training_step_;
  const at::AutoGradMode history(kept);
  const Tensor input = kept ? leaf_of(hidden) : hidden;
  const EndWeights ends = ends_of(weights_of(unit));
  Tensor normed = leave_blocks({arch_, ops_, ends}, input, {});
  range.tensor_ranks->copy_to_ranks(normed);

  Tensor back;
  {
    const at::NoGradGuard values_alone;
    const Tensor rows = normed.detach();
    Tensor logits;
    ops_.linear(logits, rows, ends.head, {});
    logits = logits.to(at::kFloat);
    const Tensor counted = targets >= 0;
    const Tensor own = at::logical_and(targets >= table.slice.rows.first, targets < table.slice.rows.end);
    const Tensor column = at::where(own, targets - table.slice.rows.first, at::zeros_like(targets)).unsqueeze(1);
    const Tensor highest = std::get<0>(logits.max(1, true));
    const Tensor of_target = logits.gather(1, column) * own.unsqueeze(1);
    logits.sub_(highest).exp_();
    const Tensor figures = range.tensor_ranks->gather(at::cat({highest, logits.sum(1, true), of_target}, 1));
    const Tensor highest_of_all = std::get<0>(figures.select(2, 0).max(0));  // [rows]
    const Tensor sum = (figures.select(2, 1) * (figures.select(2, 0) - highest_of_all).exp()).sum(0);
    const Tensor losses = highest_of_all + sum.log() - figures.select(2, 2).sum(0);
    if (range.tp_rank == 0)
      loss_ += at::where(counted, losses, at::zeros_like(losses)).to(at::kDouble).sum().item<double>();
    if (!kept) return;
    // The gradient of the logits: probabilities, less 1 at the target.
    const Tensor factors = (highest.squeeze(1) - highest_of_all).exp() / sum * counted;
    logits.mul_(factors.unsqueeze(1));
    logits.scatter_add_(1, column, -(own.to(at::kFloat).unsqueeze(1)));
    const Tensor gradient = logits.to(rows.scalar_type());
    if (rows.scalar_type() == at::kFloat && !table.is_divided())
      table.gradient.addmm_(gradient.t(), rows);
    else
      table.add_gradient(at::mm(gradient.t(), rows));
    back = at::mm(gradient, table.weight);
  }
  if (normed.requires_grad() && normed.size(0) > 0) normed.backward(back);
  range.head_gradients[micro_batch] = input.grad().defined() ? input.grad() : at::zeros_like(hidden);
  settle(range, unit);
}

void StageRunner::gather_weights(const Range& range, TrainUnit& unit) {
  if (unit.shard != Sharding::zero3) return;
  for (const auto& tensor : unit.whole) tensor->allocate_weight();
  gather_parts(unit, *range.data_group, compute_, buffer_);
}

void StageRunner::drop_weights(const Range& range, TrainUnit& unit) const {
  if (unit.shard != Sharding::zero3) return;
  for (const auto& tensor : unit.whole) tensor->free_weight();
  if (!unit.sliced.empty()) range.slices.at(unit.layer)->drop();
}

// What autograd left in the weights' type goes to where gradients are kept; of sharded ones the ranks' sum does.
void StageRunner::settle(const Range& range, TrainUnit& unit) {
  const at::NoGradGuard values_alone;
  const bool divided = unit.shard >= Sharding::zero2;
  for (const auto& tensor : unit.whole) {
    Tensor grad = tensor->weight.mutable_grad();
    if (!grad.defined() || grad.is_same(tensor->gradient)) continue;
    tensor->add_gradient(grad);
    tensor->weight.mutable_grad() = Tensor();
  }
  if (!divided) return;
  const auto bounds = part_bounds(unit, static_cast<std::int64_t>(sizeof(float)));
  const Tensor all =
      at::empty({bounds.back() / static_cast<std::int64_t>(sizeof(float))}, compute_.options(at::kFloat));
  for_each_part(unit, [&](std::int64_t, TrainTensor& tensor, const Slice& part, std::int64_t first) {
    Tensor to = all.narrow(0, first, part.elements());
    if (!tensor.pending.defined()) {
      to.zero_();
      return;
    }
    const Tensor from = part_of(tensor.pending, tensor.slice, part);
    to.view(from.sizes()).copy_(from);
  });
  for (const auto& tensor : unit.whole) tensor->pending = Tensor();
  through_host(compute_, all, buffer_,
               [&](auto bytes) { range.data_group->reduce_scatter(bytes, bounds, CollectiveElement::fp32); });
  for_each_part(unit, [&](std::int64_t d, TrainTensor& tensor, const Slice& part, std::int64_t first) {
    if (d == unit.dp_rank) tensor.gradient.add_(all.narrow(0, first, part.elements()).view(tensor.gradient.sizes()));
  });
}

}  // namespace motley
