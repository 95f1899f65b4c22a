#include "motley/trainer/step/train_executor.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/memory_meter.hpp"
#include "motley/engine/weights/weights.hpp"
#include "motley/trainer/layout/stage_passes.hpp"
#include "motley/trainer/layout/state_writer.hpp"

namespace motley {
namespace {

// A small part of the period over which processor quotas are counted.
constexpr std::size_t written_at_once_bytes = std::size_t{256} << 10;

std::vector<int> all_workers(const TrainPlan& plan) {
  std::vector<int> workers(train_devices(plan).size());
  std::iota(workers.begin(), workers.end(), 0);
  return workers;
}

}  // namespace

TrainExecutor::TrainExecutor(TrainPlan plan, const TrainLaunch& launch, const CallDriver& self,
                             const ComputeDevice& compute, Fabric& fabric, const std::function<void(double)>& progress,
                             ActivityLog& activity)
    : plan_(std::move(plan)),
      training_(training_of(plan_.workload)),
      device_(self.device),
      place_(place_of(plan_, device_)),
      worker_(place_.first_worker + place_.rank),
      compute_(compute),
      activity_(activity),
      connections_(plan_, worker_, launch.workers, fabric, activity),
      tensors_(plan_, device_, compute_, self.model_folder, launch.updates, progress),
      runner_(plan_, device_, tensors_, connections_, activity, compute_),
      sums_(plan_, worker_, tensors_, connections_, activity, compute_),
      all_(connections_.group(GroupKind::all, all_workers(plan_))),
      updates_(launch.updates) {
  for (StateSlice& part : state_slices(plan_)) {
    if (part.device != device_) continue;
    const auto& all = tensors_.all();
    const auto found = std::ranges::find_if(all, [&](const auto& tensor) {
      return tensor->spec.name == part.tensor.name && contains(tensor->state_slice, part.slice);
    });
    MOTLEY_CHECK(found != all.end());
    own_parts_.push_back({std::move(part), found->get()});
  }
}

// What a driver of another plan would send.
void TrainExecutor::check(const TrainStep& step) const {
  const std::size_t stages = plan_.replicas[place_.replica].stages.size();
  const auto wants = [&](const std::vector<std::int32_t>& tokens, bool here, std::int32_t least, const char* what) {
    const std::int64_t count = here ? step.sequences * training_.sequence_length : 0;
    const auto is_known = [&](std::int32_t id) { return id >= least && id < plan_.model.arch.vocabulary; };
    const bool known = std::ranges::all_of(tokens, is_known);
    if (std::ssize(tokens) != count || !known)
      throw Error(ErrorCode::peer, fmt::format("step {}: {} {} for {} sequences, or one outside the vocabulary",
                                               step.step, tokens.size(), what, step.sequences));
  };
  const std::int64_t most = training_.global_batch;
  if (step.sequences < 0 || step.sequences > most || step.tokens < 1)
    throw Error(ErrorCode::peer, fmt::format("step {}: {} sequences with {} tokens that count, of at most {}",
                                             step.step, step.sequences, step.tokens, most));
  wants(step.inputs, place_.stage == 0, 0, "inputs");
  wants(step.targets, place_.stage + 1 == stages, -1, "targets");
}

TrainStepDone TrainExecutor::execute(const TrainStep& step) {
  check(step);
  constexpr std::uint64_t epoch = 1;
  activity_.set(epoch, step.step, Doing::computing);
  const double computed_before_s = activity_.computed_s();
  const Instant start = Clock::now();
  const bool training = step.wanted == TrainStep::Wanted::update;
  TrainStepDone done{.step = step.step};
  zero_gradients();
  compute_.meter().reset_peak();
  const std::int64_t held_bytes = compute_.meter().bytes();
  done.passes = run_passes(step, start);
  const Instant passed = Clock::now();
  done.activation_bytes = compute_.meter().peak_bytes() - held_bytes;
  if (training) sums_.finish();
  const Instant exchanged = Clock::now();
  const Figures figures = sum_figures(training);
  const auto tokens = static_cast<double>(step.tokens);
  done.loss = figures.loss / tokens;
  done.grad_norm = std::sqrt(figures.squares) / tokens;
  if (training && std::isfinite(done.loss) && std::isfinite(done.grad_norm)) {
    const double clipped = training_.clip_norm > 0 ? std::min(1.0, training_.clip_norm / (done.grad_norm + 1e-6)) : 1.0;
    update(step.learning_rate, tokens / clipped);
    done.update = TrainStepDone::Update::done;
  }
  done.busy_s = seconds_between(start, passed);
  done.exchange_s = seconds_between(passed, exchanged);
  done.update_s = seconds_since(exchanged);
  activity_.set(Doing::waiting_for_steps);
  done.compute_s = activity_.computed_s() - computed_before_s;
  return done;
}

void TrainExecutor::zero_gradients() {
  const at::NoGradGuard values_alone;
  for (const auto& tensor : tensors_.all()) tensor->gradient.zero_();
}

std::vector<TrainPass> TrainExecutor::run_passes(const TrainStep& step, Instant start) {
  const TrainReplica& replica = plan_.replicas[place_.replica];
  const bool training = step.wanted == TrainStep::Wanted::update;
  const std::int64_t micro_batches = std::min(replica.micro_batches, step.sequences);
  runner_.begin(step.inputs, step.targets, step.sequences, micro_batches, training);
  std::vector<TrainPass> passes;
  if (step.sequences == 0) return passes;
  const auto finished = [&](std::int64_t layer) {
    if (plan_.sync.overlap) sums_.finished(layer);
  };
  for (const StagePass& pass : stage_passes(plan_.schedule, place_.stage, replica.stages.size(), micro_batches)) {
    if (pass.kind != PassKind::forward && !training) continue;
    switch (pass.kind) {
      case PassKind::forward: runner_.forward(pass.micro_batch); break;
      case PassKind::backward: runner_.backward(pass.micro_batch, finished); break;
      case PassKind::weights: runner_.weight_gradients(pass.micro_batch, finished); break;
    }
    if (passes.size() == max_passes) continue;
    passes.push_back({.micro_batch = pass.micro_batch,
                      .way = pass.kind == PassKind::forward ? TrainPass::Way::forward : TrainPass::Way::backward,
                      .start_s = seconds_between(start, runner_.input_arrived()),
                      .end_s = seconds_since(start)});
  }
  return passes;
}

// Every part of a gradient counts once, and every token's loss.
TrainExecutor::Figures TrainExecutor::sum_figures(bool with_gradients) {
  const at::NoGradGuard values_alone;
  std::array<double, 2> figures = {runner_.loss(), 0};
  if (with_gradients)
    for (const OwnSlice& own : own_parts_) {
      const at::Tensor part = part_of(own.tensor->gradient, own.tensor->gradient_slice, own.part.slice);
      const double norm = at::linalg_vector_norm(part, 2, std::nullopt, false, at::kDouble).item<double>();
      figures[1] += norm * norm;
    }
  if (all_ != nullptr) all_->all_reduce(std::as_writable_bytes(std::span(figures)), CollectiveElement::fp64);
  return {figures[0], figures[1]};
}

// `divisor`: of the gradients, which are sums.
void TrainExecutor::update(double learning_rate, double divisor) {
  const at::NoGradGuard values_alone;
  ++updates_;
  const at::Tensor count = at::scalar_tensor(static_cast<double>(updates_), compute_.options(at::kFloat));
  const at::Tensor scale = at::scalar_tensor(divisor, compute_.options(at::kFloat));
  for (const auto& tensor : tensors_.all()) {
    const at::Tensor values = tensor->updated();
    at::Tensor to = values.is_contiguous() ? values : values.contiguous();
    at::Tensor gradient = part_of(tensor->gradient, tensor->gradient_slice, tensor->state_slice).contiguous();
    const double decay = tensor->spec.shape.size() > 1 ? training_.weight_decay : 0;
    if (training_.optimizer == "sgd") {
      const bool momentum = tensor->exp_avg.defined();
      const std::vector<at::Tensor> buffers =
          momentum ? std::vector<at::Tensor>{tensor->exp_avg} : std::vector<at::Tensor>{};
      at::_fused_sgd_({to}, {gradient}, buffers, decay, training_.momentum, learning_rate, 0, false, false, false,
                      scale);
    } else {
      at::_fused_adamw_({to}, {gradient}, {tensor->exp_avg}, {tensor->exp_avg_sq}, {}, {count}, learning_rate,
                        training_.betas[0], training_.betas[1], decay, training_.eps, false, false, scale);
    }
    if (!to.is_same(values)) at::Tensor(values).copy_(to);
    if (tensor->master.defined()) at::Tensor(tensor->kept).copy_(tensor->master);
  }
  for (std::size_t s = 0; s < plan_.replicas[place_.replica].stages[place_.stage].strategies.size(); ++s)
    for (TrainUnit& unit : tensors_.units(s))
      if (unit.shard == Sharding::zero1 || unit.shard == Sharding::zero2)
        gather_parts(unit,
                     *connections_.group(GroupKind::data, unit.ranks.data_group(place_.rank % unit.ranks.strategy->tp)),
                     compute_, buffer_);
}

std::vector<SavedSlice> TrainExecutor::saved_parts(Copies copies) const {
  const at::NoGradGuard values_alone;
  std::vector<SavedSlice> parts;
  const auto copy_of = [](const at::Tensor& part) {
    const at::Tensor copy = at::empty(part.sizes(), part.scalar_type());
    advise_large_pages(copy);
    return copy.copy_(part);
  };
  for (const OwnSlice& own : own_parts_)
    for (const StateKind kind : state_kinds(training_)) {
      const at::Tensor part = part_of(own.tensor->state(kind), own.tensor->state_slice, own.part.slice);
      parts.push_back({state_name(own.part.tensor.name, kind), own.part.slice,
                       copies == Copies::all ? copy_of(part) : part.contiguous().cpu()});
    }
  return parts;
}

void write_parts(const std::filesystem::path& folder, const StateFiles& files, const std::vector<SavedSlice>& parts,
                 WritingPace pace) {
  const StateWriter writer(folder, files);
  for (const SavedSlice& part : parts)
    for_each_block(part.slice, bytes_of(part.values), written_at_once_bytes, [&](const Slice& slice, auto bytes) {
      const Instant start = Clock::now();
      writer.write(part.name, slice, bytes);
      if (pace == WritingPace::half_a_processor) std::this_thread::sleep_for(Clock::now() - start);
    });
  writer.sync();
}

}  // namespace motley
