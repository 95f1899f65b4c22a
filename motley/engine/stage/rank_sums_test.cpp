// How two ranks meet, each in a process of its own, and how a stage adds up then: by the library of kernels that runs
// on the processor, whose "devices" share memory.
#include "motley/engine/device/rank_sums.hpp"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/device/collectives.hpp"
#include "motley/engine/stage/kernels_on_host_test.hpp"
#include "motley/engine/stage/random_model_test.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

constexpr std::int64_t most_rank_bytes = 200'000;

// A rank that leaves makes the other's sums void, so it waits until that one is done.
void wait_for_other(WorkerGroup& group) {
  float done = 1;
  group.all_reduce(std::as_writable_bytes(std::span(&done, 1)), CollectiveElement::fp32);
}

// Whether `work` says in both ranks' processes that all went well. Rank 0 is the child.
template <class Work>
bool by_two_ranks(const Work& work) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return false;
  const pid_t child = ::fork();
  const int rank = child == 0 ? 0 : 1, socket = ends[static_cast<std::size_t>(rank)];
  ::close(ends[static_cast<std::size_t>(1 - rank)]);
  bool well = false;
  try {
    at::set_num_threads(1);  // the child has no others
    LinkedProcess here("shm", rank, socket);
    well = work(here.group);
    wait_for_other(here.group);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    well = false;
  }
  if (child == 0) ::_exit(well ? 0 : 1);
  ::close(socket);
  int status = 1;
  ::waitpid(child, &status, 0);
  return well && status == 0;
}

std::unique_ptr<RankSums> meet(WorkerGroup& group, const ComputeDevice& device, SumWay best = SumWay::peers,
                               const std::stop_token& stop = {}) {
  return RankSums::meet(group, device, most_rank_bytes, best, stop);
}

// Which way both took, where one's library is changed; nothing where they are of two minds.
std::optional<SumWay> way_with(int changed_rank, const std::function<void(cuda::Kernels&)>& change) {
  for (const SumWay way : {SumWay::host, SumWay::pinned, SumWay::peers})
    if (by_two_ranks([&](WorkerGroup& group) {
          cuda::Kernels kernels = open_cuda_kernels(MOTLEY_HOST_KERNELS);
          if (group.rank() == changed_rank) change(kernels);
          const KernelsOnHost device(kernels);
          const auto sums = meet(group, device);
          return (sums ? sums->way() : SumWay::host) == way;
        }))
      return way;
  return std::nullopt;
}

TEST(RankSums, HaveTheBitsOfTheGroups) {
  for (const SumWay best : {SumWay::pinned, SumWay::peers})
    EXPECT_TRUE(by_two_ranks([&](WorkerGroup& group) {
      const KernelsOnHost device;
      const auto sums = meet(group, device, best);
      if (!sums || sums->way() != best) return false;
      Collectives by_kernels(&group, device, sums.get()), by_host(&group, device);
      bool equal = true;
      at::manual_seed(group.rank());
      for (int time = 0; time < 60; ++time) {
        const std::int64_t count = 1 + time * time * (best == SumWay::peers ? 31 : 4);  // to more than one piece
        at::Tensor terms = at::randn({count}).to(time % 2 == 0 ? at::kFloat : at::kBFloat16), other = terms.clone();
        by_kernels.sum(terms);
        by_host.sum(other);
        equal = equal && by_kernels.on_device(static_cast<std::int64_t>(terms.nbytes())) && terms.equal(other);
        by_kernels.take_from_first(terms);
        by_host.take_from_first(other);
        equal = equal && terms.equal(other);
      }
      sums->check();
      wait_for_other(group);
      return equal && sums->takes(1 << 30) == (best == SumWay::peers) && sums->takes(64 << 10);
    })) << name(best);
}

TEST(RankSums, TakeTheWayThatAllCan) {
  EXPECT_EQ(way_with(0, [](cuda::Kernels&) {}), SumWay::peers);
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(way_with(rank, [](cuda::Kernels& of) { of.peer_allocate = [](auto...) { return 2; }; }), SumWay::pinned);
    EXPECT_EQ(
        way_with(rank, [](cuda::Kernels& of) { of.peer_open = [](const cuda::PeerHandle&, void**) { return 217; }; }),
        SumWay::pinned);
    EXPECT_EQ(way_with(rank, [](cuda::Kernels& of) { of.pin = [](auto...) { return 1; }; }), SumWay::host);
    EXPECT_EQ(way_with(rank, [](cuda::Kernels& of) { of.sum = [](const cuda::SumTask&, void*) { return 719; }; }),
              SumWay::host);
    EXPECT_EQ(way_with(rank, [](cuda::Kernels& of) { of.sum_blocks = 0; }), SumWay::host);
  }
}

// As where a device reads something else of its peer's memory, behind some bridges.
TEST(RankSums, BelieveAWayOnlyOnceItWasRight) {
  EXPECT_EQ(way_with(1,
                     [](cuda::Kernels& of) {
                       of.sum = [](const cuda::SumTask& task, void* stream) {
                         const int error = open_cuda_kernels(MOTLEY_HOST_KERNELS).sum(task, stream);
                         if (task.most_bytes > 64 << 10) static_cast<float*>(task.terms)[task.count / 2] += 1;
                         return error;
                       };
                     }),
            SumWay::pinned);
}

TEST(RankSums, GoByTheHostWithADeviceThatHasNoKernels) {
  for (const int rank : {0, 1})
    EXPECT_TRUE(by_two_ranks([&](WorkerGroup& group) {
      const KernelsOnHost with_kernels;
      const ComputeDevice& device = group.rank() == rank ? cpu_device() : with_kernels;
      return meet(group, device) == nullptr;
    })) << rank;
  EXPECT_TRUE(by_two_ranks([&](WorkerGroup& group) {
    return meet(group, KernelsOnHost(), group.rank() == 0 ? SumWay::host : SumWay::peers) == nullptr;
  }));
}

// Rank 0 is told of another launch, and never comes.
TEST(RankSums, AreGivenUpByAllWhereOneIsStopped) {
  for (const SumWay best : {SumWay::pinned, SumWay::peers})
    EXPECT_TRUE(by_two_ranks([&](WorkerGroup& group) {
      const KernelsOnHost device;
      std::stop_source stop;
      const auto sums = meet(group, device, best, stop.get_token());
      if (!sums) return false;
      const at::Tensor terms = at::ones({500});
      sums->sum(terms);
      sums->check();
      wait_for_other(group);
      if (group.rank() == 0)
        stop.request_stop();
      else
        sums->sum(terms);
      try {
        sums->check();
        return false;
      } catch (const GroupBroken&) {
        return true;
      }
    })) << name(best);
}

TEST(RankSums, AWayThatNobodyKnowsIsRefused) {
  ::setenv("MOTLEY_SUMS", "nvlink", 1);
  EXPECT_THROW(best_sum_way(), Error);
  ::setenv("MOTLEY_SUMS", "pinned", 1);
  EXPECT_EQ(best_sum_way(), SumWay::pinned);
  ::unsetenv("MOTLEY_SUMS");
  EXPECT_EQ(best_sum_way(), SumWay::peers);
}

// A library whose records are the tasks of kernels: what else was done while it recorded is not done again.
struct RankRecords {
  using Record = std::vector<std::function<int()>>;
  static inline Record under_way;
  static inline bool recording = false;
  static inline int replayed = 0;

  template <auto member, class Task>
  static void wrap(cuda::Kernels& table, int (*)(const Task&, void*)) {
    table.*member = [](const Task& task, void*) {
      const auto run = [task] { return (open_cuda_kernels(MOTLEY_HOST_KERNELS).*member)(task, nullptr); };
      return recording ? (under_way.push_back(run), 0) : run();
    };
  }
  static cuda::Kernels kernels() {
    using Table = cuda::Kernels;
    Table table = open_cuda_kernels(MOTLEY_HOST_KERNELS);
    wrap<&Table::norm>(table, table.norm);
    wrap<&Table::heads>(table, table.heads);
    wrap<&Table::activate>(table, table.activate);
    wrap<&Table::add>(table, table.add);
    wrap<&Table::embedding>(table, table.embedding);
    wrap<&Table::write>(table, table.write);
    wrap<&Table::attend>(table, table.attend);
    wrap<&Table::product>(table, table.product);
    wrap<&Table::sum>(table, table.sum);
    table.graph_begin = [](void*) { return under_way.clear(), recording = true, 0; };
    table.graph_end = [](void*, void** graph) { return *graph = new Record(under_way), recording = false, 0; };
    table.graph_launch = [](void* graph, void*) {
      ++replayed;
      for (const auto& task : *static_cast<Record*>(graph))
        if (const int error = task()) return error;
      return 0;
    };
    table.graph_free = [](void* graph) { delete static_cast<Record*>(graph); };
    return table;
  }
};

class RankSumsOfStage : public ::testing::Test {
 protected:
  RankSumsOfStage() {
    std::string pattern = (std::filesystem::temp_directory_path() / "rank-sums-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    const char* config =
        R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 101, "max_position_embeddings": 64})";
    spec_.arch = read_architecture(parse_json(config, "config"), "config");
    spec_.layers = {0, 2};
    spec_.degree = 2;
    write_random_model(folder_, spec_.arch);
  }
  ~RankSumsOfStage() override { std::filesystem::remove_all(folder_); }

  // The logits of a prompt of two sequences and of tokens after it, at rank 0.
  std::vector<at::Tensor> logits_of(WorkerGroup& group, const ComputeDevice& device, const RankSums* sums) const {
    const c10::InferenceMode guard;
    StageSpec spec = spec_;
    spec.rank = group.rank();
    StageModel model(
        spec, folder_, &group, device, [](double) {}, nullptr, 1, {}, sums);
    std::vector<at::Tensor> all;
    for (std::int64_t step = 0; step < 6; ++step) {
      Step asked{.step = static_cast<std::uint64_t>(step + 1)};
      for (std::int32_t id = 0; id < 2; ++id) {
        const std::int64_t prompt = 9 + 4 * id;
        StepSequence sequence{.sequence = static_cast<std::uint64_t>(id),
                              .position = step == 0 ? 0 : prompt + step - 1,
                              .count = step == 0 ? prompt : 1,
                              .blocks = {4 * id, 4 * id + 1, 4 * id + 2},
                              .sampling = Sampling{}};
        for (std::int64_t i = 0; i < sequence.count; ++i)
          sequence.tokens.push_back(static_cast<std::int32_t>((id * 31 + (sequence.position + i) * 7) % 101));
        asked.sequences.push_back(sequence);
      }
      const at::Tensor logits = model.logits(asked, model.forward(asked, {}));
      if (group.rank() == 0) all.push_back(logits.clone());
    }
    if (sums != nullptr) sums->check();
    return all;
  }

  std::filesystem::path folder_;
  StageSpec spec_{.embedding = true,
                  .head = true,
                  .kv_tokens = 64,
                  .limits = {.max_tokens = 40, .max_sequences = 4, .block_tokens = 8}};
};

TEST_F(RankSumsOfStage, StepsAreRecordedWithThem) {
  for (const SumWay best : {SumWay::pinned, SumWay::peers})
    EXPECT_TRUE(by_two_ranks([&](WorkerGroup& group) {
      const KernelsOnHost plain, recording(RankRecords::kernels());
      const auto sums = meet(group, recording, best);
      if (!sums) return false;
      const std::vector<at::Tensor> found = logits_of(group, recording, sums.get());
      const bool replays = RankRecords::replayed >= 9;  // the head from the second step on, layers from the third
      const std::vector<at::Tensor> expected = logits_of(group, plain, nullptr);
      bool equal = found.size() == expected.size();
      for (std::size_t i = 0; i < found.size(); ++i) equal = equal && found[i].equal(expected[i]);
      return equal && replays;
    })) << name(best);
}

}  // namespace
}  // namespace motley
