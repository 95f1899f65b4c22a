#include "motley/trainer/layout/state_writer.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace motley {
namespace {

bool is_within(const Span& span, std::int64_t size) {
  return span.first >= 0 && span.first <= span.end && span.end <= size;
}

}  // namespace

void for_each_block(const Slice& slice, std::span<const std::byte> bytes, std::size_t most_bytes,
                    const std::function<void(const Slice&, std::span<const std::byte>)>& visit) {
  const std::int64_t rows = slice.rows.size();
  if (rows == 0) return;
  const std::int64_t row_bytes = std::ssize(bytes) / rows;
  const std::int64_t most_rows =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(most_bytes) / std::max<std::int64_t>(1, row_bytes));
  for (std::int64_t row = 0; row < rows; row += most_rows) {
    const std::int64_t end = std::min(rows, row + most_rows);
    visit({{slice.rows.first + row, slice.rows.first + end}, slice.columns},
          bytes.subspan(static_cast<std::size_t>(row * row_bytes), static_cast<std::size_t>((end - row) * row_bytes)));
  }
}

StateWriter::StateWriter(const std::filesystem::path& folder, StateFiles files) : files_(std::move(files)) {
  for (const StateFile& file : files_.files) {
    SafetensorsLayout layout = safetensors_layout(file.entries);
    auto writer = std::make_unique<SafetensorsWriter>(folder / file.name, layout);
    open_.push_back({std::move(layout), std::move(writer)});
  }
}

void StateWriter::write(const std::string& name, const Slice& slice, std::span<const std::byte> bytes) const {
  const auto place = files_.places.find(name);
  if (place == files_.places.end())
    throw Error(ErrorCode::peer, fmt::format("\"{}\" is not a tensor of the run's checkpoints", name));
  const auto [file, entry] = place->second;
  const std::vector<std::int64_t>& shape = files_.files[file].entries[entry].shape;
  const std::int64_t rows = shape.front(), width = shape.size() > 1 ? shape[1] : 1;
  const std::int64_t element = static_cast<std::int64_t>(open_[file].layout.bytes[entry]) / (rows * width);
  if (!is_within(slice.rows, rows) || !is_within(slice.columns, width) ||
      std::ssize(bytes) != slice.elements() * element)
    throw Error(ErrorCode::peer,
                fmt::format("{}: {} bytes for rows {} to {} and columns {} to {} of {} x {}", name, bytes.size(),
                            slice.rows.first, slice.rows.end, slice.columns.first, slice.columns.end, rows, width));
  // What lies in one piece is written as one.
  const std::int64_t runs = slice.columns.size() == width ? 1 : slice.rows.size();
  const std::int64_t run_bytes = std::ssize(bytes) / std::max<std::int64_t>(1, runs);
  for (std::int64_t i = 0; i < runs; ++i)
    open_[file].writer->write(
        entry, static_cast<std::uint64_t>(((slice.rows.first + i) * width + slice.columns.first) * element),
        bytes.subspan(static_cast<std::size_t>(i * run_bytes), static_cast<std::size_t>(run_bytes)));
}

void StateWriter::sync() const {
  for (const File& file : open_) file.writer->sync();
}

}  // namespace motley
