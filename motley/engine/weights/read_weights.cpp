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

// Calls `read` with each of the spans that the held rows [first, first + rows of `to`) of a slice stand for, and where
// it lies in `to`.
template <class Read>
void for_each_span(const Slice& slice, std::int64_t first, const at::Tensor& to, const Read& read) {
  const std::int64_t size = slice.rows.size(), end = first + to.size(0);
  for (std::int64_t time = 0; time < slice.times; ++time) {
    Slice part = slice.at(time);
    const std::int64_t before = slice.row_step > 0 ? time * size : 0;  // held rows
    const Span rows{std::max(first, before), std::min(end, before + size)};
    if (rows.size() <= 0) continue;
    part.rows = {part.rows.first + rows.first - before, part.rows.first + rows.end - before};
    at::Tensor place = to.narrow(0, rows.first - first, rows.size());
    if (slice.column_step > 0) {
      const std::int64_t width = to.size(1) / slice.times;
      place = place.narrow(1, time * width, width);
    }
    read(part, place);
  }
}

// In the host's memory.
template <class Read>
void through_pieces(PinnedPieces* pieces, const at::Tensor& to, const Read& read) {
  if (to.is_cpu()) return read(0, to);
  MOTLEY_CHECK(pieces != nullptr);
  const std::int64_t at_once = rows_of_piece(to);
  for (std::int64_t first = 0; first < to.size(0); first += at_once)
    pieces->to_device(to.narrow(0, first, std::min(at_once, to.size(0) - first)),
                      [&](const at::Tensor& host) { read(first, host); });
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

void read_tensor(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, const at::Tensor& to,
                 PinnedPieces* pieces) {
  const StoredRows rows(checkpoint, tensor.name, tensor.shape);
  const Slice last = slice.at(slice.times - 1);
  MOTLEY_CHECK(last.rows.end <= tensor.shape.at(0) && last.columns.end <= rows.width());
  through_pieces(pieces, to.view({slice.held_rows(), slice.held_columns()}),
                 [&](std::int64_t first, const at::Tensor& host) {
                   for_each_span(slice, first, host,
                                 [&](const Slice& part, const at::Tensor& place) { read_values(rows, part, place); });
                 });
}

void read_blocks(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, DType type,
                 const at::Tensor& to, PinnedPieces* pieces) {
  const StoredRows rows(checkpoint, tensor.name, tensor.shape);
  const Slice last = slice.at(slice.times - 1);
  MOTLEY_CHECK(last.rows.end <= tensor.shape.at(0) && whole_blocks(type, last.columns).end <= rows.width());
  through_pieces(pieces, to, [&](std::int64_t first, const at::Tensor& host) {
    for_each_span(slice, first, host, [&](const Slice& part, const at::Tensor& place) {
      MOTLEY_CHECK(slice.column_step == 0 || whole_blocks(type, part.columns) == part.columns);
      read_rows_of_blocks(rows, part, type, place);
    });
  });
}

}  // namespace motley
