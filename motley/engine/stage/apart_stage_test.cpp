// A stage on a device with memory of its own, which the host cannot touch.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/stage/cache_handover.hpp"
#include "motley/engine/stage/random_model_test.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

constexpr const char* apart_config =
    R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 96, "vocab_size": 101, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": false})";

class ApartStageTest : public ::testing::Test {
 protected:
  ApartStageTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "apart-stage-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    spec_.arch = read_architecture(parse_json(apart_config, "config"), "config");
    spec_.layers = {0, 3};
    write_random_model(folder_, spec_.arch);
  }
  ~ApartStageTest() override { std::filesystem::remove_all(folder_); }

  static StepSequence rows(std::uint64_t id, std::int64_t position, std::int64_t count,
                           std::vector<std::int32_t> blocks) {
    StepSequence sequence{
        .sequence = id, .position = position, .count = count, .blocks = std::move(blocks), .sampling = Sampling{}};
    for (std::int64_t i = position; i < position + count; ++i)
      sequence.tokens.push_back(static_cast<std::int32_t>((static_cast<std::int64_t>(id) * 31 + i * 7) % 101));
    return sequence;
  }
  // A prompt with another one, then a token of each.
  static std::vector<Step> steps() {
    return {{.step = 1, .sequences = {rows(1, 0, 20, {3, 1, 2}), rows(2, 0, 5, {4})}},
            {.step = 2, .sequences = {rows(1, 20, 1, {3, 1, 2}), rows(2, 5, 1, {4})}}};
  }
  static std::vector<at::Tensor> logits_of(StageModel& model) {
    const c10::InferenceMode guard;
    std::vector<at::Tensor> all;
    for (const Step& step : steps())
      if (const at::Tensor logits = model.logits(step, model.forward(step, {})); logits.defined())
        all.push_back(logits.cpu().clone());
    return all;
  }
  static void expect_close(const std::vector<at::Tensor>& real, const std::vector<at::Tensor>& expected,
                           double within) {
    const c10::InferenceMode guard;
    ASSERT_EQ(real.size(), expected.size());
    for (std::size_t i = 0; i < real.size(); ++i)
      EXPECT_LT((real[i] - expected[i]).abs().max().item<double>(), within * expected[i].std().item<double>());
  }

  std::filesystem::path folder_;
  StageSpec spec_{.embedding = true,
                  .head = true,
                  .kv_tokens = 200,
                  .limits = {.max_tokens = 40, .max_sequences = 4, .block_tokens = 8}};
};

TEST_F(ApartStageTest, SaysWhatOneOnProcessorsSays) {
  for (const auto& [type, kv_type, within] : {std::tuple{DType::fp32, DType::fp32, 1e-5},
                                              {DType::bf16, DType::bf16, 0.1},
                                              {DType::fp32, DType::q8_0, 1e-4},
                                              {DType::q8_0, DType::fp32, 0.05}}) {
    spec_.weight_type = type;
    spec_.kv_type = kv_type;
    StageModel here(spec_, folder_, nullptr, cpu_device()), apart(spec_, folder_, nullptr, apart_device());
    expect_close(logits_of(apart), logits_of(here), within);
    EXPECT_EQ(apart.allocated().activations, here.allocated().activations);
    EXPECT_EQ(apart.allocated().kv, here.allocated().kv);
  }
}

TEST_F(ApartStageTest, BringsBlocksFromTheHostAndTheDisk) {
  StageModel resident(spec_, folder_, nullptr, apart_device());
  const std::vector<at::Tensor> expected = logits_of(resident);
  // Of three that stream, one comes into a buffer that the device has just been reading from.
  for (const Tier second : {Tier::device, Tier::host}) {
    spec_.offload = LayerHomes{.weights = {Tier::host, second, Tier::disk},
                               .kv = {Tier::device, Tier::device, Tier::device},
                               .activations = {}};
    StageModel streamed(spec_, folder_, nullptr, apart_device());
    const std::vector<at::Tensor> real = logits_of(streamed);
    for (std::size_t i = 0; i < real.size(); ++i) EXPECT_TRUE(real[i].equal(expected[i])) << i;
  }
}

TEST_F(ApartStageTest, KeepsItsCacheForTheNextPart) {
  StageModel whole(spec_, folder_, nullptr, apart_device());
  const std::vector<at::Tensor> expected = logits_of(whole);
  auto earlier = std::make_unique<StageModel>(spec_, folder_, nullptr, apart_device());
  const c10::InferenceMode guard;
  earlier->forward(steps()[0], {});
  spec_.kv_tokens = 320;
  StageModel next(spec_, folder_, nullptr, apart_device(), {}, std::move(earlier), 2);
  EXPECT_EQ(next.loaded_bytes(), 0);
  EXPECT_TRUE(next.logits(steps()[1], next.forward(steps()[1], {})).cpu().equal(expected[1]));
}

// In several pieces, gathered behind a step that is under way, and read by the next.
TEST_F(ApartStageTest, HandsItsCacheOver) {
  spec_.kv_tokens = 24000;
  StageModel whole(spec_, folder_, nullptr, apart_device());
  const std::vector<at::Tensor> expected = logits_of(whole);
  CacheHandover handover{.moves = {{0, 0, 1}, {1, 0, 1}, {2, 0, 1}}, .blocks = {}, .slots = {}};
  for (std::int32_t block = 2999; block >= 0; --block) handover.blocks.push_back(block);
  for (const auto& [from, to] : {std::pair{&apart_device(), &apart_device()},
                                 {&apart_device(), &cpu_device()},
                                 {&cpu_device(), &apart_device()}}) {
    LinkedGroups groups("shm", 2);
    std::vector<std::future<at::Tensor>> workers;
    for (const int rank : {0, 1})
      workers.push_back(std::async(std::launch::async, [&, rank, device = rank == 0 ? from : to] {
        const c10::InferenceMode guard;
        apart_device();  // a stream of this thread's own
        StageModel model(
            spec_, folder_, nullptr, *device, [](double) {}, nullptr, rank == 0 ? 1 : 2);
        if (rank == 0) model.forward(steps()[0], {});
        hand_over(handover, rank, 2, *groups[static_cast<std::size_t>(rank)], model, *device);
        return model.logits(steps()[1], model.forward(steps()[1], {})).cpu().clone();
      }));
    for (auto& worker : workers) expect_close({worker.get()}, {expected[1]}, from == to ? 1e-9 : 1e-5);
  }
}

TEST_F(ApartStageTest, MeetsItsOtherRanks) {
  StageModel whole(spec_, folder_, nullptr, apart_device());
  const std::vector<at::Tensor> expected = logits_of(whole);
  spec_.degree = 2;
  LinkedGroups groups("shm", 2);
  std::vector<std::future<std::vector<at::Tensor>>> ranks;
  for (const int rank : {0, 1})
    ranks.push_back(std::async(std::launch::async, [&, rank, spec = spec_]() mutable {
      spec.rank = rank;
      StageModel part(spec, folder_, groups[static_cast<std::size_t>(rank)].get(), apart_device());
      return logits_of(part);
    }));
  expect_close(ranks[0].get(), expected, 1e-5);
  ranks[1].get();
}

}  // namespace
}  // namespace motley
