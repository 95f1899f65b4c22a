#include "motley/engine/device/rank_sums.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <type_traits>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"
#include "motley/engine/device/device_errors.hpp"

namespace motley {
namespace {

constexpr std::int64_t most_pinned_bytes = 64 << 10, most_peer_bytes = 8 << 20;
// From these sizes on each rank adds up a part: of two ranks never, of more by what others measured over NVLink (vLLM).
constexpr std::int64_t least_in_parts = 256 << 10, least_in_parts_of_four = 512 << 10;
constexpr std::int64_t most_tried_bytes = 1 << 20;
constexpr std::chrono::seconds patience{10};  // with a first sum, which others of the stage may begin later
constexpr std::size_t word_bytes = 64;        // each alone in its line
constexpr std::int64_t host_page_bytes = 4096;

// Of all ranks in their order.
template <class T>
std::vector<T> told_by_all(WorkerGroup& group, const T& mine) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<T> all(ranks);
  all[static_cast<std::size_t>(group.rank())] = mine;
  std::vector<std::int64_t> bounds;
  for (std::size_t rank = 0; rank <= ranks; ++rank) bounds.push_back(static_cast<std::int64_t>(rank * sizeof(T)));
  group.all_gather(std::as_writable_bytes(std::span(all)), bounds);
  return all;
}

// What a device refuses is what this rank cannot do: the others are told so, and are not left waiting.
template <class Work>
std::invoke_result_t<Work> or_nothing(const Work& work) {
  try {
    return work();
  } catch (const DeviceError&) {
    return {};
  } catch (const c10::Error&) {
    return {};
  }
}

// Calls `late` if it is there for longer than the patience.
class Watch {
 public:
  explicit Watch(std::function<void()> late)
      : thread_([late = std::move(late)](const std::stop_token& over) {
          std::mutex mutex;
          std::condition_variable_any never;
          std::unique_lock lock(mutex);
          never.wait_for(lock, over, patience, [] { return false; });
          if (!over.stop_requested()) late();
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace

std::string_view name(SumWay way) {
  constexpr std::array<std::string_view, 3> names{"host", "pinned", "peers"};
  return names[static_cast<std::size_t>(way)];
}

SumWay best_sum_way() {
  const char* named = std::getenv("MOTLEY_SUMS");
  if (named == nullptr || *named == '\0') return SumWay::peers;
  for (const SumWay way : {SumWay::host, SumWay::pinned, SumWay::peers})
    if (name(way) == named) return way;
  throw input_error(fmt::format("MOTLEY_SUMS: the ranks of a stage have no way of adding up named {}", named),
                    "set it to host, pinned or peers, or leave it unset");
}

// What a rank says before it knows of the others.
struct RankSums::Statement {
  SumWay best = SumWay::host;
  std::int32_t blocks = 0;
  std::array<char, 16> vendor = {};
  SharedPages::Place pages = {};  // rank 0's
  PeerBufferHandle buffer = {};   // of `peers`
};

// What it can do with what they have said.
struct RankSums::Trials {
  std::uint8_t pinned = 0, peers = 0;
  bool of(SumWay way) const { return (way == SumWay::peers ? peers : pinned) == 1; }
};

RankSums::RankSums(WorkerGroup& group, const ComputeDevice& device, std::int64_t most_bytes)
    : rank_(group.rank()),
      ranks_(group.size()),
      device_(device),
      kernels_(device.sum_kernels()),
      most_bytes_(std::clamp<std::int64_t>(round_up(most_bytes, 16), 16, most_peer_bytes)) {}

std::int64_t RankSums::most_bytes_of(SumWay way) const {
  return way == SumWay::peers ? most_bytes_ : std::min(most_bytes_, most_pinned_bytes);
}

std::int64_t RankSums::page_bytes() const {
  const std::int64_t segments = ranks_ * kernels_->segment_bytes(most_bytes_of(SumWay::pinned));
  return round_up(host_page_bytes + segments, host_page_bytes);
}

RankSums::Statement RankSums::offer(SumWay best) {
  Statement mine;
  if (kernels_ == nullptr || ranks_ > SumKernels::most_ranks || best == SumWay::host) return mine;
  mine.best = SumWay::pinned;
  mine.blocks = kernels_->most_blocks();
  kernels_->vendor().copy(mine.vendor.data(), mine.vendor.size());
  if (rank_ == 0) {
    pages_ = SharedPages::make(page_bytes());
    if (!pages_) return {};
    mine.pages = pages_->place();
  }
  const PeerMemory* memory = device_.peer_memory();
  if (best != SumWay::peers || memory == nullptr) return mine;
  own_ = memory->allocate(kernels_->segment_bytes(most_bytes_of(SumWay::peers)));
  if (!own_) return mine;
  const std::vector<std::byte> zeros(static_cast<std::size_t>(kernels_->segment_bytes(0)));
  memory->copy(own_->memory, zeros.data(), std::ssize(zeros));
  mine.best = SumWay::peers;
  mine.buffer = own_->handle;
  return mine;
}

RankSums::Trials RankSums::open(const std::vector<Statement>& all) {
  Trials mine;
  if (rank_ != 0) pages_ = SharedPages::open(all.front().pages, page_bytes());
  if (!pages_ || !(pinned_ = device_.pin(pages_->bytes()))) return mine;
  words_ = static_cast<std::byte*>(kernels_->address_of(pages_->bytes().data()));
  if (words_ == nullptr) return mine;
  for (int rank = 0; rank < ranks_; ++rank)
    pinned_segments_.push_back(words_ + host_page_bytes +
                               rank * kernels_->segment_bytes(most_bytes_of(SumWay::pinned)));
  mine.pinned = 1;

  const bool offered = std::ranges::all_of(
      all, [&](const Statement& of) { return of.best == SumWay::peers && of.vendor == all.front().vendor; });
  if (!offered) return mine;
  for (const Statement& other : all) {
    const bool is_own = opened_.size() == static_cast<std::size_t>(rank_);
    opened_.push_back(is_own ? nullptr : device_.peer_memory()->open(other.buffer));
    peer_segments_.push_back(is_own ? own_->memory : opened_.back());
    if (peer_segments_.back() == nullptr) return mine;
  }
  mine.peers = 1;
  return mine;
}

// Every rank knows the others' terms, and so the sums: in whole numbers that fp32 has.
bool RankSums::try_out(SumWay way) {
  way_ = way;
  counters_ = at::zeros({SumKernels::counters_bytes}, device_.options(at::kByte));
  const std::int64_t count = std::min(most_bytes_of(way), most_tried_bytes) / 4;
  const at::Tensor numbers = at::arange(count, at::kFloat).remainder(1021) + 1;
  const at::Tensor expected = numbers * (ranks_ * (ranks_ + 1) / 2);
  const Watch watch([&] { give_up(way); });
  bool right = true;
  for (const bool in_parts : {false, true, false, true}) {
    const at::Tensor terms = (numbers * (rank_ + 1)).to(device_.place());
    run(terms, in_parts);
    device_.wait_for_thread();
    right = right && !given_up(way) && terms.cpu().equal(expected);
  }
  return right;
}

std::unique_ptr<RankSums> RankSums::meet(WorkerGroup& group, const ComputeDevice& device, std::int64_t most_bytes,
                                         SumWay best, const std::stop_token& stop) {
  std::unique_ptr<RankSums> sums(new RankSums(group, device, most_bytes));
  const std::vector<Statement> all = told_by_all(group, or_nothing([&] { return sums->offer(best); }));
  const auto able = [](const Statement& of) {
    return of.best >= SumWay::pinned && of.best <= SumWay::peers && of.blocks > 0;
  };
  if (!std::ranges::all_of(all, able)) return nullptr;
  sums->blocks_ = std::ranges::min_element(all, {}, &Statement::blocks)->blocks;
  const std::vector<Trials> opened = told_by_all(group, or_nothing([&] { return sums->open(all); }));
  if (sums->words_ != nullptr)
    sums->stop_.emplace(stop, [&sums = *sums] {
      for (const SumWay way : {SumWay::pinned, SumWay::peers}) sums.give_up(way);
    });
  for (const SumWay way : {SumWay::peers, SumWay::pinned}) {
    if (!std::ranges::all_of(opened, [&](const Trials& of) { return of.of(way); })) continue;
    const std::uint8_t right = or_nothing([&] { return sums->try_out(way); }) ? 1 : 0;
    if (right == 0) sums->give_up(way);  // the others need not wait for this rank
    if (std::ranges::count(told_by_all(group, right), 1) == group.size()) return sums;
  }
  return nullptr;
}

RankSums::~RankSums() {
  stop_.reset();
  if (words_ != nullptr)
    for (const SumWay way : {SumWay::pinned, SumWay::peers}) give_up(way);
  try {
    device_.wait_for_thread();
  } catch (const std::exception&) {
    // Of a device whose context is broken; its process ends.
  }
  for (void* memory : opened_)
    if (memory != nullptr) device_.peer_memory()->close(memory);
  if (own_) device_.peer_memory()->free(own_->memory);
  if (pinned_) device_.unpin(pages_->bytes());
}

void RankSums::give_up(SumWay way) const {
  std::byte* word = pages_->bytes().data() + word_bytes * static_cast<std::size_t>(way);
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word)).store(1, std::memory_order_release);
}

bool RankSums::given_up(SumWay way) const {
  std::byte* word = pages_->bytes().data() + word_bytes * static_cast<std::size_t>(way);
  return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(word)).load(std::memory_order_acquire) != 0;
}

void RankSums::run(const at::Tensor& terms, bool in_parts) const {
  MOTLEY_CHECK(terms.is_contiguous() && (terms.scalar_type() == at::kFloat || terms.scalar_type() == at::kBFloat16));
  const std::int64_t most = most_bytes_of(way_), element = terms.element_size();
  auto* from = static_cast<std::byte*>(terms.mutable_data_ptr());
  for (std::int64_t done = 0; done < terms.numel(); done += most / element)
    kernels_->sum({.terms = from + done * element,
                   .count = std::min(terms.numel() - done, most / element),
                   .in_bf16 = terms.scalar_type() == at::kBFloat16,
                   .rank = rank_,
                   .segments = way_ == SumWay::peers ? peer_segments_ : pinned_segments_,
                   .most_bytes = most,
                   .blocks = blocks_,
                   .in_parts = in_parts,
                   .counters = counters_.mutable_data_ptr(),
                   .abort = words_ + word_bytes * static_cast<std::size_t>(way_)});
}

void RankSums::sum(const at::Tensor& terms) const {
  const std::int64_t least = ranks_ > 4 ? least_in_parts : least_in_parts_of_four;
  run(terms, way_ == SumWay::peers && ranks_ > 2 && static_cast<std::int64_t>(terms.nbytes()) > least);
}

void RankSums::check() const {
  if (given_up(way_))
    throw GroupBroken("the sums of the stage's ranks were given up, for a launch or since a rank left", {}, {});
}

}  // namespace motley
