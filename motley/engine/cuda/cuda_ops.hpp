// The operations by a library of CUDA kernels, and by LibTorch's where these are good: products of many rows (cuBLAS)
// and attention of many rows to contiguous keys (FlashAttention).
#pragma once

#include <map>

#include "motley/engine/cuda/kernels.hpp"
#include "motley/engine/ops/ops.hpp"

namespace motley {

// For one stage, in one thread and on its current stream. The device is a GPU; or the processor in tests, where
// `kernels` are those of a library that runs there.
class CudaOps final : public Ops {
 public:
  CudaOps(const cuda::Kernels& kernels, const ComputeDevice& device) : kernels_(kernels), device_(device) {}
  ~CudaOps() override;
  CudaOps(const CudaOps&) = delete;
  CudaOps& operator=(const CudaOps&) = delete;

  void begin_step(const std::vector<std::vector<SequenceRows>>& tables, const at::Tensor& positions) const override;
  // Runs `work` as it is the first time, records it the second, and replays the record from then on; unless there was
  // more in it the first time than kernels.
  void replay_or_run(std::int64_t key, const std::function<void()>& work) const override;
  // Quantised matrices are laid in planes (cuda/kernels.hpp).
  void prepare(WeightMatrix& weight) const override;
  void linear(at::Tensor& out, const at::Tensor& input, const WeightMatrix& weight,
              const at::Tensor& bias) const override;
  void linears(std::initializer_list<LinearCall> calls, const at::Tensor& input) const override;
  void gated(Activation kind, at::Tensor& out, at::Tensor& other, const at::Tensor& input, const LinearWeights& gate,
             const LinearWeights& up) const override;
  void add_linear(at::Tensor& sum, at::Tensor& product, const at::Tensor& input,
                  const LinearWeights& linear_weights) const override;
  void score(RouterScore kind, at::Tensor& logits) const override;
  void route(at::Tensor& ids, at::Tensor& shares, const at::Tensor& scores, const at::Tensor& selection_bias,
             const Experts& experts) const override;
  void mix_experts(Activation kind, at::Tensor& out, at::Tensor& gates, at::Tensor& others, const at::Tensor& input,
                   const at::Tensor& ids, const at::Tensor& shares, const ExpertWeights& experts) const override;
  void norm(Norm kind, at::Tensor& out, const at::Tensor& input, const NormWeights& weights,
            double epsilon) const override;
  void rotate(at::Tensor& heads, const at::Tensor& positions, const RotaryFrequencies& frequencies) const override;
  void rotate_heads(at::Tensor& query, at::Tensor& key, const HeadRotation& turn) const override;
  void activate(Activation kind, at::Tensor& values, const at::Tensor& factors) const override;
  void add(at::Tensor& sum, const at::Tensor& terms, const at::Tensor& bias) const override;
  void embedding(at::Tensor& out, const at::Tensor& tokens, const WeightMatrix& table, const Span& rows) const override;
  void attend(at::Tensor& out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
              const LayerCache& cache, const std::vector<SequenceRows>& sequences,
              const AttentionShape& shape) const override;
  std::optional<std::vector<std::int32_t>> draw(const at::Tensor& logits,
                                                std::span<const PlainDraw> draws) const override;

 private:
  // Where kernels put what they hold for the length of a call. Its address changes only where it grows, and records are
  // void then.
  void* scratch(at::Tensor& buffer, std::int64_t bytes) const;
  void forget_records() const;
  void check(int error, const char* doing) const;
  bool takes(const WeightMatrix& weight, const at::Tensor& input, std::int64_t most_quantised_rows) const;
  bool takes(const WeightMatrix& weight, const at::Tensor& input) const;
  bool takes(const ExpertWeights& experts, const at::Tensor& input, const at::Tensor& gates) const;
  void take_input(cuda::ProductTask& task, const at::Tensor& input, const WeightMatrix& first) const;
  void multiply(cuda::ProductTask& task, const at::Tensor& input, const WeightMatrix& first) const;
  void multiply_many(at::Tensor& out, const at::Tensor& input, const WeightMatrix& weight) const;
  const float* on_device(const RotaryFrequencies& frequencies) const;
  bool flashes(const at::Tensor& query, const SequenceRows& rows) const;
  void attend_by_flash(at::Tensor& out, const at::Tensor& query, const cuda::CacheView& cache, const SequenceRows& rows,
                       std::int64_t table_offset, const AttentionShape& shape) const;
  void attend_rows(at::Tensor& out, const at::Tensor& query, const cuda::CacheView& cache, std::int64_t first,
                   std::int64_t count, const AttentionShape& shape) const;
  cuda::RowsView rows_view(std::int64_t first, std::int64_t count, std::size_t table) const;
  // What rows_ has behind the rows of each table: their blocks, those of one behind those of another.
  std::int64_t rows_before_blocks() const { return row_count_ * std::ssize(table_starts_); }

  struct Record {
    bool of_kernels = true;  // alone
    void* graph = nullptr;   // null: seen once
  };

  const cuda::Kernels& kernels_;
  const ComputeDevice& device_;
  // All that follows is scratch space and what a step is about; none of it changes results.
  mutable at::Tensor host_rows_, rows_;  // int32: where in the table each row's sequence begins, and the table
  mutable std::int64_t row_count_ = 0;   // T of the step
  mutable std::vector<std::vector<std::int64_t>> table_starts_;  // of each table: of the sequences
  mutable at::Tensor positions_;
  mutable at::Tensor host_draws_, draws_;  // int32
  mutable at::Tensor product_scratch_, partial_scratch_, expanded_;
  mutable std::map<std::vector<float>, at::Tensor> frequencies_;  // of each of the model's rotary rules, on the device
  mutable std::map<std::int64_t, Record> records_;
  mutable bool kernels_alone_ = true;  // of what runs for the first time
  mutable bool records_ok_ = true;
};

}  // namespace motley
