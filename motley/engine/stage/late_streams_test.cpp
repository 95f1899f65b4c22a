// What is given back while a device still works: on streams that run late.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>

#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/device/memory_meter.hpp"
#include "motley/engine/stage/load_ahead.hpp"
#include "motley/engine/stage/random_model_test.hpp"
#include "motley/engine/stage/stage_model.hpp"

namespace motley {
namespace {

constexpr const char* late_config =
    R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 96, "vocab_size": 101, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": false})";

class LateStreamsTest : public ::testing::Test {
 protected:
  LateStreamsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "late-streams-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    spec_.arch = read_architecture(parse_json(late_config, "config"), "config");
    write_random_model(folder_, spec_.arch);
  }
  ~LateStreamsTest() override { std::filesystem::remove_all(folder_); }

  StageSpec layers(LayerRange range, std::vector<LayerRange> standby = {}) const {
    StageSpec spec = spec_;
    spec.layers = range;
    spec.standby = std::move(standby);
    return spec;
  }
  std::unique_ptr<StageModel> after(std::unique_ptr<StageModel> earlier, const StageSpec& spec,
                                    std::uint64_t epoch) const {
    return std::make_unique<StageModel>(
        spec, folder_, nullptr, apart_device(), [](double) {}, std::move(earlier), epoch);
  }
  static Step prompt() {
    StepSequence sequence{.sequence = 1, .position = 0, .count = 20, .blocks = {3, 1, 2}};
    for (std::int32_t i = 0; i < 20; ++i) sequence.tokens.push_back((31 + i * 7) % 101);
    return {.step = 1, .sequences = {sequence}};
  }

  std::filesystem::path folder_;
  StageSpec spec_{
      .embedding = true, .kv_tokens = 200, .limits = {.max_tokens = 40, .max_sequences = 4, .block_tokens = 8}};
};

// The thread that has read them allocated them on a stream of its own, which has nothing to do when they are freed.
TEST_F(LateStreamsTest, WeightsOfAnotherThreadStayForAStepThatIsUnderWay) {
  const c10::InferenceMode guard;
  auto whole = after(nullptr, layers({0, 3}), 1);
  const at::Tensor expected = whole->forward(prompt(), {}).cpu();

  auto first = after(nullptr, layers({0, 1}), 1);
  LoadAhead ahead;
  std::promise<std::int64_t> held;
  ahead.begin_standby(layers({0, 1}, {{1, 3}}), folder_, apart_device(), *first,
                      [&](std::int64_t bytes) { held.set_value(bytes); });
  EXPECT_GT(held.get_future().get(), 0);
  ahead.end_into(*first);

  auto wider = after(std::move(first), layers({0, 3}), 2);
  EXPECT_EQ(wider->loaded_bytes(), 0);
  const at::Tensor hidden = wider->forward(prompt(), {});
  const auto narrow = after(std::move(wider), layers({0, 1}), 3);  // lets the weights of two layers go
  EXPECT_TRUE(hidden.cpu().equal(expected));
}

TEST_F(LateStreamsTest, CopiesInTheHostsMemoryTakeNoneOfTheDevicesUntilItTakesThemOver) {
  const c10::InferenceMode guard;
  const at::Tensor expected = after(nullptr, layers({0, 3}), 1)->forward(prompt(), {}).cpu();
  for (const bool ahead_of_time : {false, true}) {
    auto first = after(nullptr, layers({0, 1}), 1);
    const std::int64_t before = apart_device().meter().bytes();
    StageSpec with_copies = layers({0, 1});
    with_copies.host_standby = {{1, 3}};
    LoadAhead ahead;
    std::promise<std::int64_t> held;
    ahead.begin_standby(with_copies, folder_, apart_device(), *first,
                        [&](std::int64_t bytes) { held.set_value(bytes); });
    EXPECT_GT(held.get_future().get(), 0);
    ahead.end_into(*first);
    EXPECT_EQ(apart_device().meter().bytes(), before);

    if (ahead_of_time) {
      std::promise<void> there;
      ahead.begin(layers({0, 3}), folder_, apart_device(), *first, [&] { there.set_value(); });
      there.get_future().wait();
      ahead.end_into(*first);
      EXPECT_GT(apart_device().meter().bytes(), before);
    }
    const auto wider = after(std::move(first), layers({0, 3}), 2);
    EXPECT_EQ(wider->loaded_bytes(), 0);
    EXPECT_TRUE(wider->forward(prompt(), {}).cpu().equal(expected));
  }
}

}  // namespace
}  // namespace motley
