// Tensors of a checkpoint, sliced and converted.
#include "motley/engine/weights/read_weights.hpp"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "motley/checkpoint/safetensors_test.hpp"
#include "motley/engine/device/apart_device_test.hpp"

namespace motley {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using ReadTensorTest = SafetensorsTest;

TEST_F(ReadTensorTest, ReadsSlicesAndConverts) {
  write(file_of(small_header, small_data));
  const Checkpoint checkpoint(folder);
  const TensorSpec a{"a", "a", {2, 3}, TensorCut::replicated};
  at::Tensor whole = at::empty({2, 3}, at::kFloat);
  read_tensor(checkpoint, a, {{0, 2}, {0, 3}}, whole);
  EXPECT_TRUE(whole.equal(at::arange(1, 7, at::kFloat).view({2, 3})));
  at::Tensor row = at::empty({1, 3}, at::kBFloat16);
  read_tensor(checkpoint, a, {{1, 2}, {0, 3}}, row);
  EXPECT_TRUE(row.equal(at::arange(4, 7, at::kFloat).view({1, 3}).to(at::kBFloat16)));
  at::Tensor columns = at::empty({2, 2}, at::kFloat);
  read_tensor(checkpoint, a, {{0, 2}, {1, 3}}, columns);
  EXPECT_TRUE(columns.equal(at::tensor({2.f, 3.f, 5.f, 6.f}).view({2, 2})));
  at::Tensor vector = at::empty({2}, at::kFloat);
  read_tensor(checkpoint, {"b", "b", {2}, TensorCut::replicated}, {{0, 2}, {0, 1}}, vector);
  EXPECT_TRUE(vector.equal(at::tensor({1.f, -2.f})));
}

TEST_F(ReadTensorTest, ConvertsHalves) {
  const at::Tensor values = at::randn({64}).to(at::kHalf);
  write(file_of(R"({"h": {"dtype": "F16", "shape": [64], "data_offsets": [0, 128]}})",
                {static_cast<const char*>(values.const_data_ptr()), 128}));
  at::Tensor out = at::empty({64}, at::kFloat);
  read_tensor(Checkpoint(folder), {"h", "h", {64}, TensorCut::replicated}, {{0, 64}, {0, 1}}, out);
  EXPECT_TRUE(out.equal(values.to(at::kFloat)));
}

// Through pieces that are filled again, of rows, of spans of columns that stand side by side, and of spans of rows.
TEST_F(ReadTensorTest, BringsRowsToADeviceThatIsLate) {
  const c10::InferenceMode guard;
  const std::int64_t rows = 2500, columns = 1024;
  const at::Tensor values = at::arange(rows * columns, at::kFloat).view({rows, columns});
  write(file_of(fmt::format(R"({{"m": {{"dtype": "F32", "shape": [{}, {}], "data_offsets": [0, {}]}}}})", rows, columns,
                            values.nbytes()),
                {static_cast<const char*>(values.const_data_ptr()), values.nbytes()}));
  const Checkpoint checkpoint(folder);
  const ComputeDevice& device = apart_device();
  const TensorSpec spec{"m", "m", {rows, columns}, TensorCut::replicated};
  for (const Slice& slice : {Slice{{0, rows}, {0, columns}}, Slice{{7, 2400}, {3, 1000}},
                             Slice{{0, rows}, {0, 100}, 3, 0, 400}, Slice{{5, 1100}, {0, columns}, 2, 1300, 0}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      at::Tensor expected = at::empty({slice.held_rows(), slice.held_columns()}, type);
      read_tensor(checkpoint, spec, slice, expected);
      EXPECT_TRUE(expected.slice(0, 0, slice.rows.size())
                      .slice(1, 0, slice.columns.size())
                      .equal(values.slice(0, slice.rows.first, slice.rows.end)
                                 .slice(1, slice.columns.first, slice.columns.end)
                                 .to(type)));
      const at::Tensor to = device.empty(expected.sizes(), type), busy = device.empty({8}, at::kFloat);
      for (int i = 0; i < 300; ++i) busy.fill_(i);
      PinnedPieces pieces(device);
      read_tensor(checkpoint, spec, slice, to, &pieces);
      EXPECT_TRUE(to.cpu().equal(expected)) << slice.times;
    }
}

TEST_F(ReadTensorTest, RefusesAMissingTensorAndAnotherShape) {
  write(file_of(
      R"({"model.layers.0.self_attn.q_proj.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})",
      bytes_of<float>({1, 2, 3, 4, 5, 6})));
  const Checkpoint checkpoint(folder);
  at::Tensor out = at::empty({4}, at::kFloat);
  const auto reading = [&](const std::string& name, std::vector<std::int64_t> shape) {
    return refusal([&] { read_tensor(checkpoint, {"q", name, shape, TensorCut::replicated}, {{0, 2}, {0, 2}}, out); });
  };
  EXPECT_THAT(reading("model.layers.0.self_attn.q_proj.weight", {2, 2}),
              AllOf(HasSubstr("the model needs the tensor model.layers.0.self_attn.q_proj.weight 2x2"),
                    HasSubstr("holds 2x3")));
  EXPECT_THAT(reading("model.layers.0.self_attn.k_proj.weight", {2, 2}),
              HasSubstr((folder / "model.safetensors").string() + " does not contain"));
}

TEST_F(ReadTensorTest, RefusesTypesThatItCannotConvert) {
  write(file_of(R"({"i": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}})", std::string(8, '\0')));
  at::Tensor out = at::empty({1}, at::kFloat);
  EXPECT_THAT(refusal([&] {
                read_tensor(Checkpoint(folder), {"i", "i", {1}, TensorCut::replicated}, {{0, 1}, {0, 1}}, out);
              }),
              HasSubstr("i is of type I64"));
}

}  // namespace
}  // namespace motley
