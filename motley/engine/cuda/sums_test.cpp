// Sums of ranks that are processes, over memory that they share: the kernels' source on the processor.
#include "motley/engine/cuda/sums.cuh"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "motley/comm/transport/collective_element.hpp"

namespace motley::cuda {
namespace {

constexpr std::int64_t most_sum_bytes = 1 << 20;

// The ranks' segments and the word to give up by, in pages that processes share.
class SharedSegments {
 public:
  explicit SharedSegments(int ranks, std::uint32_t first_turn = 0) : ranks_(ranks), first_turn_(first_turn) {
    const int file = ::memfd_create("sums", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, bytes()) != 0) ::abort();
    memory_ = static_cast<char*>(
        ::mmap(nullptr, static_cast<std::size_t>(bytes()), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ::close(file);
    if (memory_ == MAP_FAILED) ::abort();
    for (int rank = 0; rank < ranks; ++rank)
      std::fill_n(static_cast<std::uint32_t*>(segment(rank)), sum_flags_bytes / 4, first_turn);
  }
  ~SharedSegments() { ::munmap(memory_, static_cast<std::size_t>(bytes())); }
  SharedSegments(const SharedSegments&) = delete;
  SharedSegments& operator=(const SharedSegments&) = delete;

  void give_up() { __atomic_store_n(abort_word(), 1U, __ATOMIC_RELEASE); }

  // What is alike in all tasks of a rank. `counters` [most_sum_blocks][2].
  SumTask task(int rank, int blocks, std::vector<std::uint32_t>& counters) const {
    counters.assign(2 * most_sum_blocks, 0);
    for (std::size_t block = 0; block < most_sum_blocks; ++block) counters[2 * block] = first_turn_;
    SumTask task{};
    task.most_bytes = most_sum_bytes;
    task.rank = rank;
    task.ranks = ranks_;
    task.blocks = blocks;
    task.counters = counters.data();
    task.abort = abort_word();
    for (int r = 0; r < ranks_; ++r) task.segments[r] = segment(r);
    return task;
  }

 private:
  static constexpr std::int64_t page = 4096;
  std::int64_t bytes() const { return page + ranks_ * sum_segment_bytes(most_sum_bytes); }
  std::uint32_t* abort_word() const { return reinterpret_cast<std::uint32_t*>(memory_); }
  void* segment(int rank) const { return memory_ + page + rank * sum_segment_bytes(most_sum_bytes); }

  int ranks_;
  std::uint32_t first_turn_;
  char* memory_;
};

// In a process for each rank; whether `work` says that it went well in all of them.
template <class Work, class Meanwhile>
bool in_all_processes(int ranks, const Work& work, const Meanwhile& meanwhile) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(::fork());
    if (processes.back() == 0) ::_exit(work(rank) ? 0 : 1);
  }
  meanwhile();
  bool well = true;
  for (const pid_t process : processes) {
    int status = 1;
    ::waitpid(process, &status, 0);
    well = well && status == 0;
  }
  return well;
}
template <class Work>
bool in_all_processes(int ranks, const Work& work) {
  return in_all_processes(ranks, work, [] {});
}

// Every rank can tell what another one's are.
template <class T>
void fill_terms(std::span<T> terms, std::uint32_t call, int rank) {
  std::uint32_t bits = (call * 31 + static_cast<std::uint32_t>(rank) + 1) * 2654435761U;
  for (T& term : terms) {
    bits = bits * 1664525U + 1013904223U;
    term = from_float<T>(static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-29f);
  }
}

// One call, the same in all ranks' processes but for where the terms lie; whether it has the bits of the host's sums.
template <class T>
bool sums_as_the_host_does(SumTask task, std::uint32_t call, std::int64_t count, bool in_parts, bool aligned) {
  const auto size = static_cast<std::size_t>(count);
  std::vector<Pack<T, 16 / sizeof(T)>> room(size / (16 / sizeof(T)) + 2);
  const std::span<T> terms(room.front().of + (aligned ? 0 : 1), size);
  fill_terms(terms, call, task.rank);
  task.element = sizeof(T) == 4 ? Element::fp32 : Element::bf16;
  task.terms = terms.data();
  task.count = count;
  task.in_parts = in_parts ? 1 : 0;
  if (sum(task, nullptr) != 0) return false;

  std::vector<std::vector<T>> all(static_cast<std::size_t>(task.ranks), std::vector<T>(size));
  std::vector<const std::byte*> of_ranks;
  for (int rank = 0; rank < task.ranks; ++rank) {
    std::vector<T>& of_rank = all[static_cast<std::size_t>(rank)];
    fill_terms(std::span<T>(of_rank), call, rank);
    of_ranks.push_back(std::as_bytes(std::span(of_rank)).data());
  }
  std::vector<T> expected(size);
  reduce_terms(sizeof(T) == 4 ? CollectiveElement::fp32 : CollectiveElement::bf16, CollectiveReduction::sum,
               std::as_writable_bytes(std::span(expected)), of_ranks);
  return std::memcmp(expected.data(), terms.data(), terms.size_bytes()) == 0;
}

// All processes of a test draw the same numbers, and each some of its own.
struct Draws {
  std::mt19937 same{5}, own;
  explicit Draws(int rank) : own(static_cast<unsigned>(rank)) {}
  static int between(std::mt19937& bits, int low, int high) { return std::uniform_int_distribution(low, high)(bits); }
};

// `calls` in a row; now and then a rank comes late.
bool all_calls_are_right(const SharedSegments& shared, int rank, int blocks, int calls, double most_bytes) {
  std::vector<std::uint32_t> counters;
  const SumTask task = shared.task(rank, blocks, counters);
  Draws draws(rank);
  for (std::uint32_t call = 0; call < static_cast<std::uint32_t>(calls); ++call) {
    const double share = std::uniform_real_distribution<double>()(draws.same);
    const auto bytes = static_cast<std::int64_t>(16 * std::pow(most_bytes / 16, share));
    const bool in_parts = Draws::between(draws.same, 0, 1) == 1, of_fp32 = Draws::between(draws.same, 0, 1) == 1;
    const bool aligned = Draws::between(draws.own, 0, 3) != 0;
    if (Draws::between(draws.own, 0, 30) == 0) ::usleep(300);
    const bool right = of_fp32 ? sums_as_the_host_does<float>(task, call, bytes / 4, in_parts, aligned)
                               : sums_as_the_host_does<Bf16>(task, call, bytes / 2, in_parts, aligned);
    if (!right) return false;
  }
  return true;
}

TEST(SumsOfRanks, HaveTheBitsOfTheHosts) {
  for (int ranks = 2; ranks <= most_sum_ranks; ++ranks) {
    const SharedSegments shared(ranks);
    EXPECT_TRUE(in_all_processes(ranks, [&](int rank) {
      return all_calls_are_right(shared, rank, 1 + ranks % 2, 72, most_sum_bytes);
    })) << ranks;
  }
}

TEST(SumsOfRanks, ManyInARowAreNeverOfAnotherCall) {
  const SharedSegments shared(2);
  EXPECT_TRUE(in_all_processes(2, [&](int rank) { return all_calls_are_right(shared, rank, 1, 10'000, 3000); }));
}

TEST(SumsOfRanks, CountOnBeyondTheLargestNumber) {
  const SharedSegments shared(4, std::uint32_t{0} - 5);
  EXPECT_TRUE(in_all_processes(4, [&](int rank) { return all_calls_are_right(shared, rank, 8, 100, 32 << 10); }));
}

// Rank 0 does not come to the second one.
TEST(SumsOfRanks, AreGivenUpByAllWhereOneIsLost) {
  for (const bool in_parts : {false, true}) {
    SharedSegments shared(4);
    const auto work = [&](int rank) {
      std::vector<std::uint32_t> counters;
      const SumTask task = shared.task(rank, 4, counters);
      if (!sums_as_the_host_does<float>(task, 0, 3000, in_parts, true)) return false;
      return rank == 0 || !sums_as_the_host_does<float>(task, 1, 3000, in_parts, true);
    };
    EXPECT_TRUE(in_all_processes(4, work, [&] {
      ::usleep(50'000);
      shared.give_up();
    }));
  }
}

TEST(SumsOfRanks, RefuseWhatHasNoRoom) {
  const SharedSegments shared(2);
  std::vector<std::uint32_t> counters;
  SumTask task = shared.task(0, 1, counters);
  task.count = most_sum_bytes / 4 + 1;
  EXPECT_NE(sum(task, nullptr), 0);
  task.count = 0;
  EXPECT_EQ(sum(task, nullptr), 0);
  task.ranks = most_sum_ranks + 1;
  EXPECT_NE(sum(task, nullptr), 0);
}

}  // namespace
}  // namespace motley::cuda
