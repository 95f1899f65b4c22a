#include "motley/engine/cuda/cuda_ops.hpp"

#include <ATen/ops/_flash_attention_forward.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "motley/base/error.hpp"
#include "motley/engine/device/device_errors.hpp"

namespace motley {
namespace {

using at::Tensor;

// From this many rows of a sequence on, gathering its keys for FlashAttention pays.
constexpr std::int64_t flash_rows = 16;
// Blocks of threads that keep a large GPU busy.
constexpr std::int64_t enough_blocks = 512;
constexpr std::int64_t most_splits = 32;
// Heads that the kernels of attention know.
constexpr std::int64_t head_multiple = 8, most_head_dim = 256;
constexpr std::size_t most_records = 128;

cuda::Element element_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return cuda::Element::fp32;
    case at::kBFloat16: return cuda::Element::bf16;
    case at::kChar: return cuda::Element::int8;
    default: break;
  }
  throw Error(ErrorCode::internal, fmt::format("no CUDA kernels for {}", c10::toString(tensor.scalar_type())));
}

const void* data(const Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }
void* mutable_data(const Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr() : nullptr; }

cuda::NormKind kind_of(Norm kind) {
  switch (kind) {
    case Norm::rms: return cuda::NormKind::rms;
    case Norm::rms1p: return cuda::NormKind::rms1p;
    case Norm::layer: break;
  }
  return cuda::NormKind::layer;
}

cuda::ActivationKind kind_of(const Activation& activation) {
  switch (activation.kind) {
    case Activation::silu: return cuda::ActivationKind::silu;
    case Activation::gelu: return cuda::ActivationKind::gelu;
    case Activation::gelu_tanh: return cuda::ActivationKind::gelu_tanh;
    case Activation::swiglu: return cuda::ActivationKind::swiglu;
    case Activation::relu: break;
  }
  return cuda::ActivationKind::relu;
}

cuda::ActivationRule rule_of(const Activation& activation) {
  return {kind_of(activation), static_cast<float>(activation.limit), static_cast<float>(activation.slope)};
}

cuda::WeightKind kind_of(const WeightMatrix& weight) {
  const at::ScalarType held = weight.values.scalar_type();
  if (held == at::kBFloat16) return cuda::WeightKind::bf16;
  if (held == at::kHalf) return cuda::WeightKind::fp16;
  switch (weight.type) {
    case DType::q8_0: return cuda::WeightKind::q8_0;
    case DType::q4_0: return cuda::WeightKind::q4_0;
    case DType::q4_1: return cuda::WeightKind::q4_1;
    case DType::q5_0: return cuda::WeightKind::q5_0;
    case DType::q5_1: return cuda::WeightKind::q5_1;
    case DType::q4_k: return cuda::WeightKind::q4_k;
    case DType::q5_k: return cuda::WeightKind::q5_k;
    case DType::q6_k: return cuda::WeightKind::q6_k;
    case DType::mxfp4: return cuda::WeightKind::mxfp4;
    case DType::iq4_nl: return cuda::WeightKind::iq4_nl;
    case DType::iq4_xs: return cuda::WeightKind::iq4_xs;
    default: return cuda::WeightKind::fp32;
  }
}

// Bytes [first, first + count) of each block, in the order of the planes.
struct Plane {
  std::int64_t first, count;
};
std::vector<Plane> planes_of(DType type) {
  switch (type) {
    case DType::q8_0: return {{2, 32}, {0, 2}};
    case DType::q4_0: return {{2, 16}, {0, 2}};
    case DType::q4_1: return {{4, 16}, {0, 4}};
    case DType::q5_0: return {{6, 16}, {2, 4}, {0, 2}};
    case DType::q5_1: return {{8, 16}, {4, 4}, {0, 4}};
    case DType::q4_k: return {{16, 128}, {0, 16}};
    case DType::q5_k: return {{48, 128}, {16, 32}, {0, 16}};
    case DType::q6_k: return {{0, 128}, {128, 64}, {192, 16}, {208, 2}};
    case DType::mxfp4: return {{1, 16}, {0, 1}};
    case DType::iq4_nl: return {{2, 16}, {0, 2}};
    case DType::iq4_xs: return {{8, 128}, {0, 8}};
    default: break;
  }
  throw Error(ErrorCode::internal, fmt::format("{} has no planes", name_of(type)));
}

cuda::Matrix matrix_of(const WeightMatrix& weight) {
  cuda::Matrix matrix{.kind = kind_of(weight),
                      .values = data(weight.values),
                      .outputs = weight.values.size(0),
                      .inputs = weight.values.size(1),
                      .skipped = 0,
                      .row_blocks = 0};
  if (!is_quantised(weight.type)) return matrix;
  matrix.inputs = weight.inputs;
  matrix.skipped = weight.skipped;
  matrix.row_blocks = weight.values.size(1) / dtype_row(weight.type).block_bytes;
  return matrix;
}

cuda::CacheView view_of(const LayerCache& cache) {
  return {.element = element_of(cache.keys),
          .keys = mutable_data(cache.keys),
          .values = mutable_data(cache.values),
          .key_scales = mutable_data(cache.key_scales),
          .value_scales = mutable_data(cache.value_scales),
          .kv_heads = static_cast<std::int32_t>(cache.values.size(1)),
          .head_dim = static_cast<std::int32_t>(cache.values.size(3)),
          .block_tokens = static_cast<std::int32_t>(cache.values.size(2))};
}

// Whether products with such inputs have kernels or, with more rows, a library.
bool meets(const WeightMatrix& weight, const Tensor& input) {
  const at::ScalarType held = weight.values.scalar_type(), given = input.scalar_type();
  return is_quantised(weight.type) || held == given || (held == at::kHalf && given == at::kFloat);
}

bool alike(const WeightMatrix& a, const WeightMatrix& b) {
  return a.type == b.type && a.skipped == b.skipped && a.values.scalar_type() == b.values.scalar_type() &&
         a.values.size(1) == b.values.size(1);
}

}  // namespace

CudaOps::~CudaOps() { forget_records(); }

void CudaOps::check(int error, const char* doing) const {
  constexpr int no_memory = 2;  // cudaErrorMemoryAllocation, as where a kernel's code is loaded
  TORCH_CHECK_WITH(OutOfMemoryError, error != no_memory, "out of memory while ", doing);
  if (error != 0)
    throw DeviceError(
        error,
        fmt::format("{}: CUDA error {} ({}) while {}", device_.place().str(), error, kernels_.error_text(error), doing),
        "`nvidia-smi` shows whether the GPU works; MOTLEY_CUDA_KERNELS=none computes by LibTorch's kernels");
}

void* CudaOps::scratch(Tensor& buffer, std::int64_t bytes) const {
  if (!buffer.defined() || buffer.size(0) < bytes) {
    forget_records();
    buffer = at::empty({bytes}, device_.options(at::kByte));
  }
  return buffer.mutable_data_ptr();
}

// ---- steps ----

void CudaOps::begin_step(const std::vector<std::vector<SequenceRows>>& tables, const Tensor& positions) const {
  row_count_ = 0;
  std::int64_t entries = 0;
  for (const std::vector<SequenceRows>& table : tables)
    for (const SequenceRows& rows : table) {
      row_count_ = std::max(row_count_, rows.first_row + rows.count);
      entries += std::ssize(rows.blocks);
    }
  table_starts_.assign(tables.size(), {});
  const std::int64_t needed = rows_before_blocks() + entries;
  if (!rows_.defined() || rows_.size(0) < needed) {
    forget_records();
    const std::int64_t size = std::max<std::int64_t>(2 * needed, 4096);
    host_rows_ = at::empty({size}, at::TensorOptions(at::kInt).pinned_memory(device_.has_own_memory()));
    rows_ = at::empty({size}, device_.options(at::kInt));
  }
  auto* to = host_rows_.mutable_data_ptr<std::int32_t>();
  std::int64_t start = 0;
  for (std::size_t table = 0; table < tables.size(); ++table)
    for (const SequenceRows& rows : tables[table]) {
      std::fill_n(to + static_cast<std::int64_t>(table) * row_count_ + rows.first_row, rows.count,
                  static_cast<std::int32_t>(start));
      std::ranges::copy(rows.blocks, to + rows_before_blocks() + start);
      table_starts_[table].push_back(start);
      start += std::ssize(rows.blocks);
    }
  rows_.narrow(0, 0, needed).copy_(host_rows_.narrow(0, 0, needed), /*non_blocking=*/true);
  positions_ = positions;
}

cuda::RowsView CudaOps::rows_view(std::int64_t first, std::int64_t count, std::size_t table) const {
  const auto* rows = rows_.const_data_ptr<std::int32_t>();
  return {.positions = positions_.const_data_ptr<std::int64_t>() + first,
          .row_sequences = rows + static_cast<std::int64_t>(table) * row_count_ + first,
          .table = rows + rows_before_blocks(),
          .table_width = 1,
          .rows = count};
}

void CudaOps::forget_records() const {
  for (const auto& [key, record] : records_)
    if (record.graph != nullptr) kernels_.graph_free(record.graph);
  records_.clear();
}

void CudaOps::replay_or_run(std::int64_t key, const std::function<void()>& work) const {
  if (!records_ok_) return work();
  const auto found = records_.find(key);
  if (found == records_.end()) {  // it may allocate what a record must find there
    kernels_alone_ = true;
    work();
    if (records_.size() >= most_records) forget_records();
    records_[key] = {kernels_alone_};
    return;
  }
  if (!found->second.of_kernels) return work();
  if (found->second.graph == nullptr) {
    if (kernels_.graph_begin(device_.stream()) != 0) {
      records_ok_ = false;
      return work();
    }
    void* graph = nullptr;
    try {
      work();
    } catch (...) {
      kernels_.graph_end(device_.stream(), &graph);
      if (graph != nullptr) kernels_.graph_free(graph);
      throw;
    }
    if (kernels_.graph_end(device_.stream(), &graph) != 0) {
      records_ok_ = false;
      return work();
    }
    records_[key].graph = graph;
  }
  check(kernels_.graph_launch(records_.at(key).graph, device_.stream()), "replaying a step");
}

// ---- products ----

void CudaOps::prepare(WeightMatrix& weight) const {
  if (weight.values.scalar_type() != at::kByte) return;
  MOTLEY_CHECK(weight.values.is_contiguous());
  const std::int64_t block_bytes = dtype_row(weight.type).block_bytes;
  const Tensor blocks = weight.values.view({-1, block_bytes});
  std::vector<Tensor> planes;
  for (const Plane& plane : planes_of(weight.type))
    planes.push_back(blocks.narrow(1, plane.first, plane.count).flatten());
  weight.values = at::cat(planes).view(weight.values.sizes());
}

// Whether there are kernels for products of this kind of weights with this many rows.
bool CudaOps::takes(const WeightMatrix& weight, const Tensor& input, std::int64_t most_quantised_rows) const {
  if (weight.scaled() || input.stride(1) != 1 || !meets(weight, input)) return false;
  return input.size(0) <= (is_quantised(weight.type) ? most_quantised_rows : kernels_.most_rows);
}

bool CudaOps::takes(const WeightMatrix& weight, const Tensor& input) const {
  return takes(weight, input, kernels_.most_quantised_rows);
}

void CudaOps::take_input(cuda::ProductTask& task, const Tensor& input, const WeightMatrix& first) const {
  task.element = element_of(input);
  task.input = data(input);
  task.input_stride = input.stride(0);
  task.rows = input.size(0);
  for (int i = 0; i < task.matrices; ++i) MOTLEY_CHECK(task.matrix[i].inputs == input.size(1));
  if (is_quantised(first.type))
    task.scratch = scratch(product_scratch_, kernels_.product_scratch_bytes(task.rows, input.size(1)));
}

void CudaOps::multiply(cuda::ProductTask& task, const Tensor& input, const WeightMatrix& first) const {
  take_input(task, input, first);
  check(kernels_.product(task, device_.stream()), "multiplying");
}

// Without a bias.
void CudaOps::multiply_many(Tensor& out, const Tensor& input, const WeightMatrix& weight) const {
  Tensor values = weight.values, rows = input;
  if (is_quantised(weight.type)) {
    const std::int64_t outputs = weight.values.size(0), elements = outputs * weight.inputs;
    const cuda::ExpandTask task{.matrix = matrix_of(weight),
                                .out_element = cuda::Element::bf16,
                                .out = scratch(expanded_, elements * 2),
                                .count = outputs,
                                .rows = nullptr,
                                .first = 0};
    check(kernels_.expand(task, device_.stream()), "expanding weights");
    values = expanded_.narrow(0, 0, elements * 2).view(at::kBFloat16).view({outputs, weight.inputs});
    rows = input.to(at::kBFloat16);
  } else if (values.scalar_type() == at::kHalf) {
    kernels_alone_ = false;  // it allocates
    values = values.to(at::kFloat);
  }
  if (rows.scalar_type() == out.scalar_type())
    at::mm_out(out, rows, values.t());
  else if (device_.place().is_cpu())
    out.copy_(at::mm(rows.to(at::kFloat), values.to(at::kFloat).t()));
  else
    at::mm_out(out, rows, values.t(), out.scalar_type());
}

void CudaOps::linear(Tensor& out, const Tensor& input, const WeightMatrix& weight, const Tensor& bias) const {
  if (input.size(0) == 0) return;
  if (weight.scaled() || !meets(weight, input)) return generic_ops().linear(out, input, weight, bias);
  if (takes(weight, input)) {
    const LinearWeights linear{weight, bias};
    return linears({{out, linear}}, input);
  }
  multiply_many(out, input, weight);
  if (bias.defined()) out.add_(bias);
}

void CudaOps::linears(std::initializer_list<LinearCall> calls, const Tensor& input) const {
  const LinearCall& first = *calls.begin();
  const bool together = calls.size() <= 3 && input.size(0) > 0 && takes(first.linear.weight, input) &&
                        std::ranges::all_of(calls, [&](const LinearCall& call) {
                          return alike(call.linear.weight, first.linear.weight) && call.out.stride(1) == 1 &&
                                 call.out.scalar_type() == first.out.scalar_type();
                        });
  if (!together) {
    MOTLEY_CHECK(calls.size() > 1 || !takes(first.linear.weight, input));
    return Ops::linears(calls, input);
  }
  cuda::ProductTask task{};
  task.then = cuda::Then::store;
  task.out_element = element_of(first.out);
  for (const LinearCall& call : calls) {
    const int i = task.matrices++;
    task.matrix[i] = matrix_of(call.linear.weight);
    task.bias[i] = data(call.linear.bias);
    task.out[i] = mutable_data(call.out);
    task.out_stride[i] = call.out.stride(0);
  }
  multiply(task, input, first.linear.weight);
}

void CudaOps::gated(Activation kind, Tensor& out, Tensor& other, const Tensor& input, const LinearWeights& gate,
                    const LinearWeights& up) const {
  if (!takes(gate.weight, input) || !alike(gate.weight, up.weight))
    return Ops::gated(kind, out, other, input, gate, up);
  cuda::ProductTask task{};
  task.then = cuda::Then::gate;
  task.activation = rule_of(kind);
  task.out_element = element_of(out);
  task.matrices = 2;
  task.matrix[0] = matrix_of(gate.weight);
  task.matrix[1] = matrix_of(up.weight);
  task.bias[0] = data(gate.bias);
  task.bias[1] = data(up.bias);
  task.out[0] = mutable_data(out);
  task.out_stride[0] = out.stride(0);
  multiply(task, input, gate.weight);
}

void CudaOps::add_linear(Tensor& sum, Tensor& product, const Tensor& input, const LinearWeights& linear_weights) const {
  const WeightMatrix& weight = linear_weights.weight;
  if (takes(weight, input)) {
    cuda::ProductTask task{};
    task.then = cuda::Then::add;
    task.out_element = element_of(sum);
    task.matrices = 1;
    task.matrix[0] = matrix_of(weight);
    task.bias[0] = data(linear_weights.bias);
    task.out[0] = mutable_data(sum);
    task.out_stride[0] = sum.stride(0);
    return multiply(task, input, weight);
  }
  if (weight.scaled() || is_quantised(weight.type) || linear_weights.bias.defined() ||
      weight.values.scalar_type() != input.scalar_type())
    return Ops::add_linear(sum, product, input, linear_weights);
  sum.addmm_(input, weight.values.t());
}

// ---- experts ----

void CudaOps::score(RouterScore kind, Tensor& logits) const {
  if (kind == RouterScore::softmax_of_chosen) return;
  MOTLEY_CHECK(logits.scalar_type() == at::kFloat && logits.is_contiguous());
  check(kernels_.score({.kind = kind == RouterScore::softmax ? cuda::ScoreKind::softmax : cuda::ScoreKind::sigmoid,
                        .values = logits.mutable_data_ptr<float>(),
                        .rows = logits.size(0),
                        .columns = static_cast<std::int32_t>(logits.size(1))},
                       device_.stream()),
        "scoring experts");
}

void CudaOps::route(Tensor& ids, Tensor& shares, const Tensor& scores, const Tensor& selection_bias,
                    const Experts& experts) const {
  if (scores.scalar_type() != at::kFloat || experts.active > cuda::most_active) {
    kernels_alone_ = false;
    return Ops::route(ids, shares, scores, selection_bias, experts);
  }
  MOTLEY_CHECK(scores.is_contiguous() && ids.is_contiguous() && shares.is_contiguous());
  const RouterRule& rule = experts.router;
  check(kernels_.route({.scores = scores.const_data_ptr<float>(),
                        .selection_bias = selection_bias.defined() ? selection_bias.const_data_ptr<float>() : nullptr,
                        .rows = scores.size(0),
                        .experts = static_cast<std::int32_t>(scores.size(1)),
                        .active = static_cast<std::int32_t>(experts.active),
                        .softmax = rule.score == RouterScore::softmax_of_chosen ? 1 : 0,
                        .epsilon = rule.normalise ? static_cast<float>(rule.epsilon) : -1.0F,
                        .factor = static_cast<float>(rule.factor),
                        .ids = ids.mutable_data_ptr<std::int64_t>(),
                        .shares = shares.mutable_data_ptr<float>()},
                       device_.stream()),
        "choosing experts");
}

// Whether there are kernels for the products of these experts with the rows of a step, each by its own.
bool CudaOps::takes(const ExpertWeights& experts, const Tensor& input, const Tensor& gates) const {
  const auto alike_all = [](const std::vector<LinearWeights>& all, const WeightMatrix& weight) {
    return std::ranges::all_of(all, [&](const LinearWeights& one) { return alike(one.weight, weight); });
  };
  const WeightMatrix &gate = experts.gate.front().weight, &down = experts.down.front().weight;
  return std::ssize(experts.down) <= cuda::most_experts && alike_all(experts.gate, gate) &&
         alike_all(experts.up, gate) && alike_all(experts.down, down) &&
         takes(gate, input, kernels_.most_quantised_tokens) &&
         takes(down, gates.narrow(0, 0, input.size(0)), kernels_.most_quantised_tokens);
}

void CudaOps::mix_experts(Activation kind, Tensor& out, Tensor& gates, Tensor& others, const Tensor& input,
                          const Tensor& ids, const Tensor& shares, const ExpertWeights& experts) const {
  if (!takes(experts, input, gates)) {
    kernels_alone_ = false;  // the host reads the choice
    return Ops::mix_experts(kind, out, gates, others, input, ids, shares, experts);
  }
  MOTLEY_CHECK(ids.is_contiguous() && shares.is_contiguous() && out.stride(1) == 1);
  const auto multiply_chosen = [&](std::initializer_list<const std::vector<LinearWeights>*> matrices, cuda::Then then,
                                   const Tensor& from, Tensor& to) {
    cuda::ExpertsTask task{.product = {},
                           .values = {},
                           .biases = {},
                           .first = static_cast<std::int32_t>(experts.first),
                           .experts = static_cast<std::int32_t>(experts.down.size()),
                           .active = static_cast<std::int32_t>(ids.size(1)),
                           .ids = ids.const_data_ptr<std::int64_t>(),
                           .shares = shares.const_data_ptr<float>()};
    cuda::ProductTask& product = task.product;
    product.then = then;
    product.activation = rule_of(kind);
    product.out_element = element_of(to);
    product.out[0] = mutable_data(to);
    product.out_stride[0] = to.stride(0);
    for (const std::vector<LinearWeights>* of_experts : matrices) {
      const int i = product.matrices++;
      product.matrix[i] = matrix_of(of_experts->front().weight);
      std::ranges::transform(*of_experts, task.values[i],
                             [](const LinearWeights& one) { return data(one.weight.values); });
      std::ranges::transform(*of_experts, task.biases[i], [](const LinearWeights& one) { return data(one.bias); });
    }
    take_input(product, from, (*matrices.begin())->front().weight);
    check(kernels_.experts(task, device_.stream()), "multiplying by experts");
  };
  multiply_chosen({&experts.gate, &experts.up}, cuda::Then::gate, input, gates);
  multiply_chosen({&experts.down}, cuda::Then::store, gates, out);
}

// ---- rows ----

void CudaOps::norm(Norm kind, Tensor& out, const Tensor& input, const NormWeights& weights, double epsilon) const {
  MOTLEY_CHECK(input.is_contiguous() && out.is_contiguous());
  const std::int64_t columns = input.size(-1);
  if (input.numel() == 0) return;
  check(kernels_.norm({.kind = kind_of(kind),
                       .element = element_of(input),
                       .input = data(input),
                       .out = mutable_data(out),
                       .weight = data(weights.weight),
                       .bias = data(weights.bias),
                       .rows = input.numel() / columns,
                       .columns = columns,
                       .epsilon = static_cast<float>(epsilon)},
                      device_.stream()),
        "normalising");
}

const float* CudaOps::on_device(const RotaryFrequencies& frequencies) const {
  Tensor& there = frequencies_[frequencies.inverse_frequencies];
  if (!there.defined()) there = at::tensor(frequencies.inverse_frequencies, at::kFloat).to(device_.place());
  return there.const_data_ptr<float>();
}

void CudaOps::rotate_heads(Tensor& query, Tensor& key, const HeadRotation& turn) const {
  MOTLEY_CHECK(query.is_contiguous() && key.is_contiguous());
  if (query.size(0) == 0 || (turn.frequencies == nullptr && !turn.query_norm.weight.defined())) return;
  const bool rotates = turn.frequencies != nullptr;
  check(kernels_.heads({.kind = kind_of(turn.norm),
                        .element = element_of(query),
                        .query = mutable_data(query),
                        .key = mutable_data(key),
                        .query_norm = data(turn.query_norm.weight),
                        .key_norm = data(turn.key_norm.weight),
                        .epsilon = static_cast<float>(turn.epsilon),
                        .rows = query.size(0),
                        .heads = static_cast<std::int32_t>(query.size(1)),
                        .kv_heads = static_cast<std::int32_t>(key.size(1)),
                        .head_dim = static_cast<std::int32_t>(query.size(2)),
                        .pairs = rotates ? static_cast<std::int32_t>(turn.frequencies->inverse_frequencies.size()) : 0,
                        .inverse_frequencies = rotates ? on_device(*turn.frequencies) : nullptr,
                        .amplitude = rotates ? turn.frequencies->amplitude : 1,
                        .positions = turn.positions.const_data_ptr<std::int64_t>()},
                       device_.stream()),
        "turning heads");
}

void CudaOps::rotate(Tensor& heads, const Tensor& positions, const RotaryFrequencies& frequencies) const {
  Tensor none = heads.narrow(1, 0, 0);
  rotate_heads(heads, none, {.query_norm = {}, .key_norm = {}, .positions = positions, .frequencies = &frequencies});
}

void CudaOps::activate(Activation kind, Tensor& values, const Tensor& factors) const {
  MOTLEY_CHECK(values.is_contiguous());
  if (values.numel() == 0) return;
  check(kernels_.activate({.rule = rule_of(kind),
                           .element = element_of(values),
                           .values = mutable_data(values),
                           .factors = data(factors),
                           .count = values.numel()},
                          device_.stream()),
        "activating");
}

void CudaOps::add(Tensor& sum, const Tensor& terms, const Tensor& bias) const {
  MOTLEY_CHECK(sum.is_contiguous() && terms.is_contiguous());
  if (sum.numel() == 0) return;
  check(kernels_.add({.element = element_of(sum),
                      .sum = mutable_data(sum),
                      .terms = data(terms),
                      .bias = data(bias),
                      .rows = sum.numel() / sum.size(-1),
                      .columns = sum.size(-1)},
                     device_.stream()),
        "adding");
}

void CudaOps::embedding(Tensor& out, const Tensor& tokens, const WeightMatrix& table, const Span& rows) const {
  const bool quantised = is_quantised(table.type);
  if (table.scaled() || !out.is_contiguous() || (!quantised && table.values.scalar_type() != out.scalar_type()))
    return generic_ops().embedding(out, tokens, table, rows);
  if (tokens.size(0) == 0) return;
  if (quantised) {
    const cuda::ExpandTask task{.matrix = matrix_of(table),
                                .out_element = element_of(out),
                                .out = mutable_data(out),
                                .count = tokens.size(0),
                                .rows = tokens.const_data_ptr<std::int64_t>(),
                                .first = rows.first};
    return check(kernels_.expand(task, device_.stream()), "looking tokens up");
  }
  check(kernels_.embedding({.element = element_of(out),
                            .out = mutable_data(out),
                            .tokens = tokens.const_data_ptr<std::int64_t>(),
                            .table = data(table.values),
                            .rows = tokens.size(0),
                            .columns = out.size(1),
                            .first = rows.first,
                            .table_rows = rows.size()},
                           device_.stream()),
        "looking tokens up");
}

// ---- attention ----

bool CudaOps::flashes(const Tensor& query, const SequenceRows& rows) const {
  return rows.count >= flash_rows && device_.place().is_cuda() && query.scalar_type() == at::kBFloat16 &&
         query.size(2) % 8 == 0 && query.size(2) <= 256;
}

void CudaOps::attend_by_flash(Tensor& out, const Tensor& query, const cuda::CacheView& cache, const SequenceRows& rows,
                              std::int64_t table_offset, const AttentionShape& shape) const {
  const std::int64_t end = rows.position + rows.count;
  const Tensor keys = at::empty({1, end, cache.kv_heads, cache.head_dim}, query.options()),
               values = at::empty_like(keys);
  check(kernels_.gather({.cache = cache,
                         .blocks = rows_.const_data_ptr<std::int32_t>() + rows_before_blocks() + table_offset,
                         .tokens = end,
                         .keys = mutable_data(keys),
                         .values = mutable_data(values)},
                        device_.stream()),
        "gathering keys");
  std::optional<std::int64_t> before, after;
  if (shape.window > 0) before = shape.window - 1, after = 0;
  // Rows stand at the end of the keys, as causal attention of unlike lengths has it here.
  const auto results = at::_flash_attention_forward(
      query.narrow(0, rows.first_row, rows.count).unsqueeze(0), keys, values, {}, {}, rows.count, end,
      /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, shape.scale, before, after);
  Tensor attended = std::get<0>(results).squeeze(0);
  if (shape.sinks.defined()) {  // what is left of the weights where the sink has its part: of sums, their logarithms
    const Tensor left = at::sigmoid(std::get<1>(results).squeeze(0) - shape.sinks.to(at::kFloat).unsqueeze(1));
    attended = attended * left.t().unsqueeze(2);
  }
  out.narrow(0, rows.first_row, rows.count).copy_(attended);
}

void CudaOps::attend_rows(Tensor& out, const Tensor& query, const cuda::CacheView& cache, std::int64_t first,
                          std::int64_t count, const AttentionShape& shape) const {
  const std::int64_t heads = query.size(1), dim = query.size(2);
  const std::int64_t splits = std::clamp<std::int64_t>(enough_blocks / (count * cache.kv_heads), 1, most_splits);
  void* partial = splits == 1 ? nullptr : scratch(partial_scratch_, count * heads * splits * (dim + 2) * 4);
  const std::int64_t offset = first * heads * dim * query.element_size();
  check(kernels_.attend({.element = element_of(query),
                         .query = static_cast<const std::byte*>(data(query)) + offset,
                         .out = static_cast<std::byte*>(mutable_data(out)) + offset,
                         .heads = static_cast<std::int32_t>(heads),
                         .cache = cache,
                         .at = rows_view(first, count, shape.table),
                         .window = static_cast<std::int32_t>(shape.window),
                         .scale = static_cast<float>(shape.scale),
                         .sinks = data(shape.sinks),
                         .splits = static_cast<std::int32_t>(splits),
                         .partial = static_cast<float*>(partial)},
                        device_.stream()),
        "attending");
}

void CudaOps::attend(Tensor& out, const Tensor& query, const Tensor& key, const Tensor& value, const LayerCache& cache,
                     const std::vector<SequenceRows>& sequences, const AttentionShape& shape) const {
  MOTLEY_CHECK(out.is_contiguous() && query.is_contiguous() && key.is_contiguous() && value.is_contiguous());
  MOTLEY_CHECK(query.size(0) == row_count_ && sequences.size() == table_starts_.at(shape.table).size());
  if (query.size(2) % head_multiple != 0 || query.size(2) > most_head_dim) {
    kernels_alone_ = false;  // it allocates
    return generic_ops().attend(out, query, key, value, cache, sequences, shape);
  }
  const cuda::CacheView view = view_of(cache);
  check(kernels_.write({.element = element_of(key),
                        .key = data(key),
                        .value = data(value),
                        .cache = view,
                        .at = rows_view(0, row_count_, shape.table)},
                       device_.stream()),
        "writing keys and values");
  std::int64_t first = 0;  // of the rows that wait for attend_rows()
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& rows = sequences[s];
    if (!flashes(query, rows)) continue;
    if (rows.first_row > first) attend_rows(out, query, view, first, rows.first_row - first, shape);
    attend_by_flash(out, query, view, rows, table_starts_[shape.table][s], shape);
    first = rows.first_row + rows.count;
  }
  if (first < row_count_) attend_rows(out, query, view, first, row_count_ - first, shape);
}

// ---- draws ----

std::optional<std::vector<std::int32_t>> CudaOps::draw(const Tensor& logits, std::span<const PlainDraw> draws) const {
  const std::int64_t rows = logits.size(0);
  MOTLEY_CHECK(logits.is_contiguous() && std::ssize(draws) == rows);
  // What the kernel reads of each row, and behind it what it writes: doubles first.
  const std::int64_t count = 5 * rows;
  if (!draws_.defined() || draws_.size(0) < count) {
    host_draws_ = at::empty({2 * count}, at::TensorOptions(at::kInt).pinned_memory(device_.has_own_memory()));
    draws_ = at::empty({2 * count}, device_.options(at::kInt));
  }
  auto* host = host_draws_.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < draws.size(); ++i) {
    std::memcpy(host + 2 * i, &draws[i].uniform, sizeof(double));
    std::memcpy(host + 2 * draws.size() + i, &draws[i].temperature, sizeof(float));
    std::memcpy(host + 3 * draws.size() + i, &draws[i].min_p, sizeof(float));
  }
  draws_.narrow(0, 0, 4 * rows).copy_(host_draws_.narrow(0, 0, 4 * rows), /*non_blocking=*/true);
  auto* numbers = draws_.mutable_data_ptr<std::int32_t>();
  check(kernels_.draw({.logits = logits.const_data_ptr<float>(),
                       .rows = rows,
                       .columns = logits.size(1),
                       .temperatures = reinterpret_cast<const float*>(numbers + 2 * rows),
                       .min_p = reinterpret_cast<const float*>(numbers + 3 * rows),
                       .uniform = reinterpret_cast<const double*>(numbers),
                       .tokens = numbers + 4 * rows},
                      device_.stream()),
        "drawing tokens");
  host_draws_.narrow(0, 4 * rows, rows).copy_(draws_.narrow(0, 4 * rows, rows), /*non_blocking=*/true);
  device_.wait_for_thread();
  return std::vector<std::int32_t>(host + 4 * rows, host + 5 * rows);
}

}  // namespace motley
