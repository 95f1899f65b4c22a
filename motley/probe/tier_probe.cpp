#include "motley/probe/tier_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/free_memory.hpp"
#include "motley/base/random.hpp"
#include "motley/base/units.hpp"
#include "motley/engine/spill/spill_file.hpp"
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

// Threads that read memory as the products of one row do, until this ends.
class Computing {
 public:
  Computing(std::span<const std::byte> memory, int threads) {
    const auto part = memory.size() / static_cast<std::size_t>(threads) / sizeof(std::uint64_t);
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back(
          [this, from = reinterpret_cast<const std::uint64_t*>(memory.data()) + static_cast<std::size_t>(i) * part,
           part] {
            run({from, part});
          });
  }
  ~Computing() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;
  std::int64_t read_bytes() const { return read_; }

 private:
  void run(std::span<const std::uint64_t> memory) {
    constexpr std::size_t at_once = (std::size_t{1} << 20) / sizeof(std::uint64_t);
    while (!stop_)
      for (std::size_t begin = 0; begin < memory.size() && !stop_; begin += at_once) {
        const auto part = memory.subspan(begin, std::min(at_once, memory.size() - begin));
        sum_ += std::accumulate(part.begin(), part.end(), std::uint64_t{0});
        read_ += std::ssize(part) * static_cast<std::int64_t>(sizeof(std::uint64_t));
      }
  }

  std::atomic<bool> stop_ = false;
  std::atomic<std::int64_t> read_ = 0;
  std::atomic<std::uint64_t> sum_ = 0;  // or nothing need be read
  std::vector<std::thread> threads_;
};

// Copies one piece after the other until they took long enough; bytes.
std::int64_t copy_for_a_while(Transfers& transfers, std::span<const std::byte> from, std::span<std::byte> to) {
  std::vector<std::function<void()>> pieces;
  for (std::size_t begin = 0; begin < from.size(); begin += copied_piece_bytes)
    pieces.emplace_back([from = from.subspan(begin, std::min<std::size_t>(copied_piece_bytes, from.size() - begin)),
                         to = to.subspan(begin % to.size())] { std::ranges::copy(from, to.begin()); });
  std::int64_t copied = 0;
  for (const Instant start = Clock::now(); seconds_since(start) < least_seconds; copied += std::ssize(from))
    transfers.wait(transfers.start("copies in host memory", pieces));
  return copied;
}

// Computing alone, copying alone, and both: copies cost the computing time, as they take cores and bandwidth from it,
// but no copy is faster than alone.
double copy_rate(int threads) {
  const std::int64_t pieces = std::clamp<std::int64_t>(free_memory_bytes() / 8 / copied_piece_bytes, 8, 64);
  SpillBuffer computed("measuring host memory", pieces * copied_piece_bytes);
  SpillBuffer copied("measuring host memory", pieces * copied_piece_bytes);
  SpillBuffer target("measuring host memory", pieces / 2 * copied_piece_bytes);
  for (const SpillBuffer* buffer : {&computed, &copied, &target}) std::ranges::fill(buffer->bytes(), std::byte{1});
  Transfers transfers(copying_threads);
  Instant start = Clock::now();
  const double alone =
      static_cast<double>(copy_for_a_while(transfers, copied.bytes(), target.bytes())) / seconds_since(start);
  const Computing computing(computed.bytes(), threads);
  const auto computed_in = [&](const std::function<void()>& meanwhile) {
    const std::int64_t before = computing.read_bytes();
    start = Clock::now();
    meanwhile();
    return static_cast<double>(computing.read_bytes() - before);
  };
  const double undisturbed =
      computed_in([] { std::this_thread::sleep_for(duration_of(least_seconds)); }) / seconds_since(start);
  std::int64_t bytes = 0;
  const double beside = computed_in([&] { bytes = copy_for_a_while(transfers, copied.bytes(), target.bytes()); });
  const double longer_s = seconds_since(start) - beside / undisturbed;
  return longer_s > 0 ? std::min(alone, static_cast<double>(bytes) / longer_s) : alone;
}

}  // namespace

ProbedTiers probe_tiers(const TierProbeOptions& options) {
  return {.disk = probe_disk(options), .copy_bytes_per_s = copy_rate(std::max(1, options.computing_threads))};
}

}  // namespace motley
