#include "motley/probe/tier_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/free_memory.hpp"
#include "motley/base/random.hpp"
#include "motley/base/units.hpp"
#include "motley/engine/spill/spill_file.hpp"
#include "motley/engine/spill/stream_copy.hpp"
#include "motley/engine/spill/transfers.hpp"

namespace motley {
namespace {

constexpr double least_seconds = 1;  // of a measurement

std::int64_t free_disk_bytes(const TierProbeOptions& options) {
  std::error_code refused;
  const auto space = std::filesystem::space(options.folder, refused);
  if (refused)
    throw Error(ErrorCode::environment,
                fmt::format("cannot look at the disk of {}: {}", options.folder.string(), refused.message()),
                "give --disk a folder on the disk to measure");
  const auto free = static_cast<std::int64_t>(space.available);
  if (free < 2 * options.file_bytes)
    throw Error(ErrorCode::environment,
                fmt::format("the disk of {} has {} free: a test file of {} would take more than half of it",
                            options.folder.string(), human_bytes(static_cast<double>(free)),
                            human_bytes(static_cast<double>(options.file_bytes))),
                "give a smaller --disk-bytes, or --disk a folder on another disk");
  return free;
}

// Random, since some disks store what repeats in less.
std::shared_ptr<const SpillBuffer> random_piece() {
  auto piece = std::make_shared<SpillBuffer>("a piece of the test file", copied_piece_bytes);
  for (std::size_t begin = 0; begin < piece->bytes().size(); begin += sizeof(double)) {
    const double value = uniform_at(1, begin);
    std::memcpy(piece->bytes().data() + begin, &value, sizeof value);
  }
  return piece;
}

// Of each copying thread.
std::span<std::byte> read_piece() {
  thread_local const SpillBuffer buffer("a piece of the test file", copied_piece_bytes);
  return buffer.bytes();
}

// Bytes per second over whole passes of the file, in order.
double disk_rate(Transfers& transfers, const std::shared_ptr<const SpillFile>& file, std::int64_t file_bytes,
                 const std::function<bool(std::int64_t piece)>& is_written) {
  const std::shared_ptr<const SpillBuffer> written = random_piece();
  std::vector<std::function<void()>> pieces;
  for (std::int64_t begin = 0; begin < file_bytes; begin += copied_piece_bytes)
    pieces.emplace_back([file, written, begin, writes = is_written(begin / copied_piece_bytes)] {
      writes ? file->write(begin, written->bytes()) : file->read(begin, read_piece());
    });
  std::int64_t moved = 0;
  const Instant start = Clock::now();
  while (moved == 0 || seconds_since(start) < least_seconds) {
    transfers.wait(transfers.start("the test file", pieces));
    moved += std::ssize(pieces) * copied_piece_bytes;
  }
  return static_cast<double>(moved) / seconds_since(start);
}

Disk probe_disk(const TierProbeOptions& options) {
  Disk disk{.capacity_bytes = free_disk_bytes(options)};
  const std::int64_t bytes = std::max<std::int64_t>(1, options.file_bytes / copied_piece_bytes) * copied_piece_bytes;
  const auto file = std::make_shared<const SpillFile>("a test file", bytes, options.folder);
  Transfers transfers(copying_threads);
  const auto none = [](std::int64_t) { return false; };
  const auto all = [](std::int64_t) { return true; };
  const auto every_other = [](std::int64_t piece) { return piece % 2 == 1; };
  disk.write_bytes_per_s = disk_rate(transfers, file, bytes, all);
  disk.read_bytes_per_s = disk_rate(transfers, file, bytes, none);
  disk.both_bytes_per_s = disk_rate(transfers, file, bytes, every_other);
  // Of two measurements of what a disk does in any direction.
  disk.both_bytes_per_s = std::min(disk.both_bytes_per_s, disk.read_bytes_per_s + disk.write_bytes_per_s);
  return disk;
}

// As workers bring a layer from the host's memory: all threads copy, and compute when it is there.
double copy_rate(int threads) {
  const std::int64_t pieces = std::clamp<std::int64_t>(free_memory_bytes() / 8 / copied_piece_bytes, 8, 64);
  const SpillBuffer from("measuring host memory", pieces * copied_piece_bytes);
  const SpillBuffer to("measuring host memory", pieces / 2 * copied_piece_bytes);
  for (const SpillBuffer* buffer : {&from, &to}) std::ranges::fill(buffer->bytes(), std::byte{1});
  std::atomic<std::int64_t> next = 0;
  const Instant start = Clock::now();
  {
    std::vector<std::jthread> copying;
    for (int i = 0; i < threads; ++i)
      copying.emplace_back([&] {
        while (seconds_since(start) < least_seconds) {
          const std::int64_t piece = next++ % pieces;
          const auto begin = [&](std::int64_t of) { return static_cast<std::size_t>(piece % of * copied_piece_bytes); };
          stream_copy(to.bytes().subspan(begin(pieces / 2)), from.bytes().subspan(begin(pieces), copied_piece_bytes));
        }
      });
  }
  return static_cast<double>(next * copied_piece_bytes) / seconds_since(start);
}

}  // namespace

ProbedTiers probe_tiers(const TierProbeOptions& options) {
  return {.disk = probe_disk(options), .copy_bytes_per_s = copy_rate(std::max(1, options.computing_threads))};
}

}  // namespace motley
