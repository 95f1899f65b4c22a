#include "motley/engine/weights/read_weights.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "motley/checkpoint/quants.hpp"
#include "motley/checkpoint/stored_rows.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/scalar_type.hpp"

namespace motley {
namespace {

// As many rows at a time as have this many values.
constexpr std::int64_t chunk_values = 1 << 20;
// Below this many values a loop stays on one thread.
constexpr std::int64_t parallel_values = 1 << 15;

template <class Step>
void for_each_row(std::int64_t rows, std::int64_t columns, const Step& step) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, parallel_values / std::max<std::int64_t>(columns, 1)),
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t row = first; row < last; ++row) step(row);
                   });
}

// By way of fp32.
void read_converted(const StoredRows& rows, const Slice& slice, const at::Tensor& to) {
  const Span whole{whole_blocks(rows.type(), slice.columns).first, slice.columns.end};
  const std::int64_t at_once = std::max<std::int64_t>(1, chunk_values / whole.size());
  for (std::int64_t first = 0; first < slice.rows.size(); first += at_once) {
    const std::int64_t count = std::min(at_once, slice.rows.size() - first);
    const at::Tensor chunk = at::empty({count, whole.size()}, at::kFloat);
    float* values = chunk.mutable_data_ptr<float>();
    for_each_row(count, whole.size(), [&](std::int64_t row) {
      rows.values(slice.rows.first + first + row, whole.first, whole.end, values + row * whole.size());
    });
    to.narrow(0, first, count).copy_(chunk.narrow(1, slice.columns.first - whole.first, slice.columns.size()));
  }
}

// Where `to` has one of the spans that a slice stands for.
at::Tensor place_of(const Slice& slice, std::int64_t time, const at::Tensor& to) {
  if (slice.times == 1) return to;
  const std::int64_t dimension = slice.row_step > 0 ? 0 : 1, size = to.size(dimension) / slice.times;
  return to.narrow(dimension, time * size, size);
}

void read_values(const StoredRows& rows, const Slice& slice, const at::Tensor& out) {
  if (is_quantised(rows.type()) || !rows.as_stored()) return read_converted(rows, slice, out);
  const std::byte* first = rows.at(slice.rows.first, slice.columns.first);
  out.copy_(at::from_blob(const_cast<std::byte*>(first), out.sizes(), {rows.row_step(), rows.column_step()},
                          at::TensorOptions(scalar_type(rows.type()))));
}

void read_rows_of_blocks(const StoredRows& rows, const Slice& slice, DType type, const at::Tensor& to) {
  const Span whole = whole_blocks(type, slice.columns);
  const std::int64_t row_bytes = motley::bytes_of(type, whole.size()), apart = to.stride(0);
  MOTLEY_CHECK(to.stride(1) == 1 && to.size(0) == slice.rows.size() && to.size(1) == row_bytes);
  auto* out = reinterpret_cast<std::byte*>(to.mutable_data_ptr<std::uint8_t>());
  const std::int64_t readable = whole_blocks(rows.type(), whole).first;  // larger blocks may begin before
  for_each_row(slice.rows.size(), whole.size(), [&](std::int64_t i) {
    const std::int64_t row = slice.rows.first + i;
    if (rows.type() == type) {
      rows.copy(row, whole.first, whole.end, out + i * apart);
      return;
    }
    std::vector<float> values(static_cast<std::size_t>(whole.end - readable));
    rows.values(row, readable, whole.end, values.data());
    quantise_row(type, values.data() + (whole.first - readable), whole.size(), out + i * apart);
  });
}

}  // namespace

void read_tensor(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, at::Tensor to) {
  const StoredRows rows(checkpoint, tensor.name, tensor.shape);
  const at::Tensor out = to.view({slice.held_rows(), slice.held_columns()});
  for (std::int64_t time = 0; time < slice.times; ++time) {
    const Slice part = slice.at(time);
    MOTLEY_CHECK(part.rows.end <= tensor.shape.at(0) && part.columns.end <= rows.width());
    read_values(rows, part, place_of(slice, time, out));
  }
}

void read_blocks(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, DType type,
                 at::Tensor to) {
  const StoredRows rows(checkpoint, tensor.name, tensor.shape);
  for (std::int64_t time = 0; time < slice.times; ++time) {
    const Slice part = slice.at(time);
    const Span whole = whole_blocks(type, part.columns);
    MOTLEY_CHECK(part.rows.end <= tensor.shape.at(0) && whole.end <= rows.width());
    MOTLEY_CHECK(slice.column_step == 0 || whole == part.columns);
    read_rows_of_blocks(rows, part, type, place_of(slice, time, to));
  }
}

}  // namespace motley
