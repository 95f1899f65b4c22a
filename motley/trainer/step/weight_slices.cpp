#include "motley/trainer/step/weight_slices.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "motley/engine/device/collectives.hpp"
#include "motley/trainer/step/train_ops.hpp"

namespace motley {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<std::int64_t> in_bytes(const std::vector<std::int64_t>& bounds, std::int64_t element_bytes) {
  std::vector<std::int64_t> bytes;
  for (const std::int64_t bound : bounds) bytes.push_back(bound * element_bytes);
  return bytes;
}

Tensor columns(const Tensor& rows, const Span& of, const Span& part) {
  return rows.narrow(1, part.first - of.first, part.size());
}

}  // namespace

// A product keeps its input, as at::linear does, and no weight.
struct WeightSlices::Product : torch::autograd::Function<Product> {
  static Tensor forward(AutogradContext* context, const Tensor& input, WeightSlices* slices, const Uses* uses) {
    context->save_for_backward({input});
    context->saved_data["slices"] = reinterpret_cast<std::int64_t>(slices);
    context->saved_data["uses"] = reinterpret_cast<std::int64_t>(uses);
    return slices->multiply(*uses, input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto* slices = reinterpret_cast<WeightSlices*>(context->saved_data["slices"].toInt());
    const auto* uses = reinterpret_cast<const Uses*>(context->saved_data["uses"].toInt());
    return {slices->multiply_back(*uses, context->get_saved_variables()[0], gradients[0]), Tensor(), Tensor()};
  }
};

class WeightSlices::SlicedOps final : public TrainOps {
 public:
  explicit SlicedOps(WeightSlices& slices) : TrainOps(slices.device_.differentiable_ops()), slices_(slices) {}

  void linear(Tensor& out, const Tensor& input, const WeightMatrix& weight, const Tensor& bias) const override {
    const auto uses =
        std::ranges::find_if(slices_.uses_, [&](const Uses& of) { return of.tensor->weight.is_same(weight.values); });
    if (uses == slices_.uses_.end()) return TrainOps::linear(out, input, weight, bias);  // a router's, or an expert's
    out = Product::apply(input, &slices_, &*uses);
    if (bias.defined()) out.add_(bias);
  }

 private:
  WeightSlices& slices_;
};

WeightSlices::WeightSlices(const TrainUnit& unit, WorkerGroup& data_group, const ComputeDevice& device)
    : group_(data_group), device_(device), ops_(std::make_unique<SlicedOps>(*this)) {
  const std::int64_t count = unit.ranks.strategy->split, ranks = unit.ranks.strategy->dp;
  std::int64_t all = 0;
  for (const auto& tensor : unit.sliced) {
    all += tensor->slice.elements();
    uses_.push_back({.tensor = tensor.get()});
  }
  for (std::int64_t i = 0; i < count; ++i) {
    Part part{.segments = {}, .bounds = {0}};
    std::int64_t elements = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      if (rank == unit.dp_rank) part.own_begin = part.segments.size();
      std::int64_t before = 0;
      for (std::size_t t = 0; t < uses_.size(); ++t) {
        TrainTensor& tensor = *unit.sliced[t];
        const std::int64_t size = tensor.slice.elements();
        const Slice whole = data_part(tensor.spec, tensor.slice, rank, ranks);
        // Where the slice of all matrices together begins and ends, in rows of this rank's part of this one.
        const auto row = [&](std::int64_t of) {
          const std::int64_t element = std::clamp<std::int64_t>(all * of / count - before, 0, size);
          return size > 0 ? whole.rows.first + whole.rows.size() * element / size : whole.rows.first;
        };
        Segment segment{&tensor, {{row(i), row(i + 1)}, whole.columns}, elements};
        before += size;
        if (segment.slice.elements() == 0) continue;
        elements += segment.slice.elements();
        part.segments.push_back(segment);
      }
      part.bounds.push_back(elements);
      if (rank == unit.dp_rank) part.own_end = part.segments.size();
    }
    if (elements == 0) continue;
    for (Uses& uses : uses_) {
      const bool used = std::ranges::any_of(part.segments, [&](const Segment& s) { return s.tensor == uses.tensor; });
      if (!used) continue;
      if (uses.end == 0) uses.begin = slices_.size();
      uses.end = slices_.size() + 1;
    }
    slices_.push_back(std::move(part));
  }
}

void WeightSlices::bring(std::size_t slice) {
  if (weights_.defined() && current_ == slice) return;
  drop();
  const Part& part = slices_[slice];
  const Tensor& like = uses_.front().tensor->kept;
  const Tensor weights = at::empty({part.bounds.back()}, like.options());
  for (std::size_t s = part.own_begin; s < part.own_end; ++s) {
    const Segment& own = part.segments[s];
    const Tensor from = part_of(own.tensor->kept, own.tensor->state_slice, own.slice);
    weights.narrow(0, own.first, own.slice.elements()).view(from.sizes()).copy_(from);
  }
  const auto bounds = in_bytes(part.bounds, static_cast<std::int64_t>(like.element_size()));
  through_host(device_, weights, buffer_, [&](auto bytes) { group_.all_gather(bytes, bounds); });
  weights_ = weights;
  current_ = slice;
}

void WeightSlices::drop() {
  weights_ = Tensor();
  if (!gradients_.defined()) return;
  const Part& part = slices_[current_];
  through_host(device_, gradients_, buffer_, [&](auto bytes) {
    group_.reduce_scatter(bytes, in_bytes(part.bounds, sizeof(float)), CollectiveElement::fp32);
  });
  for (std::size_t s = part.own_begin; s < part.own_end; ++s) {
    const Segment& own = part.segments[s];
    Tensor to = part_of(own.tensor->gradient, own.tensor->gradient_slice, own.slice);
    to.add_(gradients_.narrow(0, own.first, own.slice.elements()).view(to.sizes()));
  }
  gradients_ = Tensor();
}

Tensor WeightSlices::multiply(const Uses& uses, const Tensor& input) {
  const at::NoGradGuard values_alone;
  const Slice& whole = uses.tensor->slice;
  Tensor product = at::zeros({input.size(0), whole.rows.size()}, input.options());
  for (std::size_t slice = uses.begin; slice < uses.end; ++slice) {
    bring(slice);
    for (const Segment& segment : slices_[slice].segments) {
      if (segment.tensor != uses.tensor) continue;
      const Tensor weight = weights_.narrow(0, segment.first, segment.slice.elements())
                                .view({segment.slice.rows.size(), segment.slice.columns.size()});
      columns(product, whole.rows, segment.slice.rows)
          .addmm_(columns(input, whole.columns, segment.slice.columns), weight.t());
    }
  }
  return product;
}

Tensor WeightSlices::multiply_back(const Uses& uses, const Tensor& input, const Tensor& gradient) {
  const at::NoGradGuard values_alone;
  const Slice& whole = uses.tensor->slice;
  Tensor back = at::zeros({input.size(0), whole.columns.size()}, input.options());
  for (std::size_t slice = uses.end; slice-- > uses.begin;) {
    bring(slice);
    if (!gradients_.defined()) gradients_ = at::zeros({slices_[slice].bounds.back()}, device_.options(at::kFloat));
    for (const Segment& segment : slices_[slice].segments) {
      if (segment.tensor != uses.tensor) continue;
      const auto matrix = [&](const Tensor& values) {
        return values.narrow(0, segment.first, segment.slice.elements())
            .view({segment.slice.rows.size(), segment.slice.columns.size()});
      };
      const Tensor own = columns(gradient, whole.rows, segment.slice.rows);
      const Tensor read = columns(input, whole.columns, segment.slice.columns);
      columns(back, whole.columns, segment.slice.columns).addmm_(own, matrix(weights_));
      Tensor of_weight = matrix(gradients_);
      if (own.scalar_type() == at::kFloat)
        at::mm_out(of_weight, own.t(), read);
      else
        of_weight.copy_(at::mm(own.t(), read));
    }
  }
  return back;
}

void WeightSlices::forward_without_rows() {
  for (std::size_t slice = 0; slice < slices_.size(); ++slice) bring(slice);
}

void WeightSlices::backward_without_rows() {
  for (std::size_t slice = slices_.size(); slice-- > 0;) {
    bring(slice);
    gradients_ = at::zeros({slices_[slice].bounds.back()}, device_.options(at::kFloat));
  }
}

}  // namespace motley
