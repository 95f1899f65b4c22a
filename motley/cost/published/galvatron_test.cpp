#include "motley/cost/published/galvatron.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "motley/base/error.hpp"
#include "motley/base/reference_test.hpp"
#include "motley/cost/published/galvatron_vldb.hpp"
#include "motley/cost/published/osdp.hpp"

namespace motley {
namespace {

using Sharded = GalvatronStates;

GalvatronForm llama() {
  return GalvatronForm(read_galvatron_profile(MOTLEY_SOURCE_DIR "/data/galvatron/llama-2-7b-8-devices.json"));
}

TEST(Galvatron, OverlapOfComputeAndCommunication) {
  EXPECT_DOUBLE_EQ(galvatron_overlap(10, 4, 1.3), 11.2);
  EXPECT_DOUBLE_EQ(galvatron_overlap(4, 10, 1.3), 11.2);
  EXPECT_DOUBLE_EQ(galvatron_overlap(4, 10, 1), 10);
}

// The table of the references, D = 8.
TEST(Galvatron, SharesOfTheStates) {
  const double shard = 1.0 / 8 + 0.003;
  const auto ratio = [](Sharded states, int micro_batches, GradientReduction reduction, bool mixed) {
    return galvatron_states_ratio(states, 8, {.micro_batches = micro_batches, .reduction = reduction}, mixed);
  };
  const auto once = GradientReduction::once, every = GradientReduction::every_micro_batch;
  EXPECT_DOUBLE_EQ(ratio(Sharded::replicated, 4, every, true), 1);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero2, 1, once, true), 7.0 / 8 * shard + 1.0 / 8);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero2, 1, once, false), 3.0 / 4 * shard + 1.0 / 4);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero3, 1, once, false), shard);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero2, 2, once, true), 6.0 / 8 * shard + 2.0 / 8);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero3, 2, once, true), 7.0 / 8 * shard + 1.0 / 8);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero2, 2, once, false), 2.0 / 4 * shard + 2.0 / 4);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero3, 2, once, false), 3.0 / 4 * shard + 1.0 / 4);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero2, 2, every, true), (7.0 / 8 * shard + 1.0 / 8) * 5 / 4);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero2, 2, every, false), 3.0 / 4 * shard + 1.0 / 4);
  EXPECT_DOUBLE_EQ(ratio(Sharded::zero3, 2, every, true), shard * 5 / 4);
}

// By hand from the profile: F = 3.85902 x + 0.83299 ms; the exchange of 680.95 MB (ZeRO-3, 8 ranks) at 154.203 GB/s.
TEST(Galvatron, LayerTimeByHand) {
  const GalvatronForm form = llama();
  const GalvatronRun whole{.batch = 16};
  const GalvatronStrategy zero3{.data = 8, .states = Sharded::zero3};
  EXPECT_NEAR(form.layer_seconds(zero3, whole).with_sync_s, 28.41542570e-3, 1e-10);
  EXPECT_NEAR(form.layer_seconds(zero3, whole).without_sync_s, 27.86100893e-3, 1e-10);
  GalvatronStrategy recomputed = zero3;
  recomputed.recompute = true;
  EXPECT_NEAR(form.layer_seconds(recomputed, whole).with_sync_s, 36.96644464e-3, 1e-10);
  // Six gathers of 64 MB by the table; nine where the layer is recomputed.
  GalvatronStrategy tensor{.tensor = 2, .data = 4, .states = Sharded::zero2};
  EXPECT_NEAR(form.layer_seconds(tensor, whole).with_sync_s, 27.06540582e-3, 1e-10);
  tensor.recompute = true;
  EXPECT_NEAR(form.layer_seconds(tensor, whole).with_sync_s, 36.20502475e-3, 1e-10);
  // Four exchanges of 256 MB; no gradients between replicas by sequence alone.
  EXPECT_NEAR(form.layer_seconds({.sequence = 8}, whole).with_sync_s, 30.84545682e-3, 1e-10);
  // A pipeline's hops: 2 x 2 x 64 MB over 163.671 GB/s and 32 layers.
  EXPECT_NEAR(form.layer_seconds({.stages = 2, .tensor = 4}, {.batch = 16, .micro_batches = 4}).with_sync_s,
              15.87928466e-3, 1e-10);
}

TEST(Galvatron, MemoryByHand) {
  const GalvatronForm form = llama();
  const GalvatronStrategy zero3{.data = 8, .states = Sharded::zero3};
  EXPECT_NEAR(form.layer_mib(zero3, {.batch = 16}, 0), 1427.577453125, 1e-9);
  GalvatronStrategy recomputed = zero3;
  recomputed.recompute = true;
  EXPECT_NEAR(form.layer_mib(recomputed, {.batch = 16}, 0), 462.4505, 1e-9);
  const GalvatronStrategy ends{.sequence = 2, .data = 4, .states = Sharded::zero3};
  EXPECT_NEAR(form.ends_mib(ends, {.batch = 16})[0], 2988.043875, 1e-9);
  const auto seconds = form.ends_seconds(ends, {.batch = 16});
  EXPECT_NEAR(seconds[0].with_sync_s, 24.12702643e-3, 1e-10);
  EXPECT_NEAR(seconds[0].without_sync_s, 23.80024018e-3, 1e-10);
  EXPECT_EQ(form.buffer_mib(1, 2, {.batch = 16}), 64);
}

// 1F1B keeps as many micro-batches as stages follow, itself counted; GPipe keeps all; one stage keeps one.
TEST(Galvatron, MicroBatchesInFlight) {
  const GalvatronForm form = llama();
  const GalvatronStrategy strategy{.stages = 4, .tensor = 2};
  const double states = 4 * form.profile().parameter_mib / 2, one = 2 * form.profile().activation_mib[1];
  const GalvatronRun run{.batch = 16, .micro_batches = 8};
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_NEAR(form.layer_mib(strategy, run, stage), states + (4 - stage) * one, 1e-9);
  GalvatronRun gpipe = run;
  gpipe.schedule = GalvatronSchedule::gpipe;
  EXPECT_NEAR(form.layer_mib(strategy, gpipe, 3), states + 8 * one, 1e-9);
  const GalvatronStrategy alone{.tensor = 8};
  EXPECT_NEAR(form.layer_mib(alone, gpipe, 0),
              4 * form.profile().parameter_mib / 8 + 2 * form.profile().activation_mib[3], 1e-9);
}

TEST(Galvatron, ChangesOfLayout) {
  const GalvatronForm form = llama();
  const GalvatronRun run{.batch = 16, .micro_batches = 2};
  const GalvatronStrategy wide{.data = 8, .states = Sharded::zero3}, narrow{.tensor = 4, .data = 2};
  // 3/4 of the samples of a group of 4, 16 MiB each, at 159.119 GB/s; the factor 1e-7 overstates it 105 times.
  const double expected = 3.0 / 4 * 8 / 2 * 16 * 1024 * 1024 / 159.119 * 1e-7;
  EXPECT_NEAR(form.change_seconds(wide, narrow, run), expected, 1e-12);
  EXPECT_EQ(form.change_seconds(wide, narrow, run), form.change_seconds(narrow, wide, run));
  GalvatronStrategy recomputed = wide, plain = wide;
  recomputed.recompute = true;
  plain.states = Sharded::zero2;
  EXPECT_EQ(form.change_seconds(wide, wide, run), 0);
  EXPECT_EQ(form.change_seconds(recomputed, wide, run), 0);
  EXPECT_GT(form.change_seconds(wide, recomputed, run), 0);  // recomputed layers stand first
  EXPECT_GT(form.change_seconds(plain, wide, run), 0);       // and sharded ones
}

// c = (1, 10, 1), eight micro-batches: the middle stage alone needs 80.
TEST(Galvatron, PipelinesByHand) {
  const std::vector<double> uneven = {1, 10, 1}, even = {3, 3, 3, 3};
  EXPECT_EQ(galvatron_pipeline_seconds(uneven, uneven, 8), 19);  // as published, and wrong
  EXPECT_EQ(pipeline_first_order_seconds(uneven, 8), 82);
  EXPECT_EQ(pipeline_first_order_seconds(even, 8), 33);
  const auto schedule = [](GalvatronSchedule kind, const std::vector<double>& stages) {
    std::vector<double> forward, backward;
    for (const double s : stages) forward.push_back(s / 3), backward.push_back(2 * s / 3);
    return pipeline_schedule_seconds(kind, forward, backward, 8);
  };
  EXPECT_NEAR(schedule(GalvatronSchedule::gpipe, uneven), 82, 1e-9);
  EXPECT_NEAR(schedule(GalvatronSchedule::one_f_one_b, uneven), 81, 1e-9);
  EXPECT_NEAR(schedule(GalvatronSchedule::gpipe, even), 33, 1e-9);
  EXPECT_NEAR(schedule(GalvatronSchedule::one_f_one_b, even), 33, 1e-9);
  // One micro-batch on the way and two more at the first stage; its exchange ends 5 s after its pass.
  EXPECT_EQ(galvatron_pipeline_seconds({2, 1}, {7, 1.5}, 3), 2 + 2 * 2 + (7 - 2));
}

// Explicit trees: every order of distinct dimensions, every way to give each a degree of 2, 4, ...
int count_trees(int levels, const std::string& left, bool mixed, const std::string& used) {
  if (levels == 0) return 1;
  int count = 0;
  for (const char dimension : left) {
    if (!mixed && ((dimension == 'D' && used.find('S') != std::string::npos) ||
                   (dimension == 'S' && used.find('D') != std::string::npos)))
      continue;
    std::string rest = left;
    rest.erase(rest.find(dimension), 1);
    for (int taken = 1; taken <= levels; ++taken) count += count_trees(levels - taken, rest, mixed, used + dimension);
  }
  return count;
}

TEST(GalvatronVldb, DecisionTrees) {
  const std::vector<std::pair<int, std::pair<int, int>>> published = {{2, {4, 4}},    {4, {13, 11}},   {8, {34, 22}},
                                                                      {16, {73, 37}}, {32, {136, 56}}, {64, {229, 79}}};
  for (const auto& [devices, counts] : published) {
    const auto mixed = vldb_tree_counts(devices, VldbTrees::mixed), pure = vldb_tree_counts(devices, VldbTrees::pure);
    EXPECT_EQ(std::accumulate(mixed.begin(), mixed.end(), 0), counts.first);
    EXPECT_EQ(std::accumulate(pure.begin(), pure.end(), 0), counts.second);
    int levels = 0;
    while (1 << levels < devices) ++levels;
    for (int k = levels; k >= 0; --k) {
      const auto stages = static_cast<std::size_t>(levels - k);
      EXPECT_EQ(pure[stages], k == 0 ? 1 : 4 * k - 1);
      EXPECT_EQ(pure[stages], count_trees(k, "DST", false, ""));
      EXPECT_EQ(mixed[stages], count_trees(k, "DST", true, ""));
    }
  }
  EXPECT_EQ(vldb_strategies().size(), 22u);
}

// All 22 strategies of BERT-Huge at 8 samples, seconds of 24 layers: figures of the artefact's arithmetic.
TEST(GalvatronVldb, LayerTimesOfTheArtefact) {
  const std::vector<double> expected = {0.972540509, 1.355410763, 0.695473814, 0.689117825, 0.868104470, 0.856886113,
                                        0.739090258, 0.745954928, 0.809710387, 0.814954267, 0.977281251, 0.776311396,
                                        1.358734188, 0.754715552, 0.743275277, 0.894533484, 0.857160572, 0.820514062,
                                        0.722541712, 1.032500270, 0.803429687, 0.605000000};
  const auto strategies = vldb_strategies();
  const VldbModel model = vldb_bert_huge();
  for (std::size_t i = 0; i < strategies.size(); ++i)
    EXPECT_NEAR(24 * vldb_layer_seconds(model, strategies[i], 8), expected[i], 1e-9) << i;
}

TEST(GalvatronVldb, MemoryAndChangesByHand) {
  const VldbModel model = vldb_bert_huge();
  const VldbStrategy sharded{.data = 8, .sharded = true}, tensor{.tensor = 2, .data = 4};
  EXPECT_NEAR(vldb_layer_mib(model, sharded, 16), 4 * 76.98 * (1.0 / 8 + 0.025) + 94.07 * 2, 1e-9);
  EXPECT_NEAR(vldb_layer_mib(model, tensor, 16), 2 * 76.98 + 52.475 * 4, 1e-9);
  EXPECT_NEAR(vldb_ends_mib(model, tensor, 16), 793 + 313 * 2 + 1024, 1e-9);
  EXPECT_NEAR(vldb_change_seconds(sharded, tensor, 16), 0.5 * 2 * 4 * 0.277994792e-3, 1e-12);
  EXPECT_EQ(vldb_change_seconds(tensor, sharded, 16), 0);  // a slice of what all have is free
}

// What is said of a document with one value changed; its place is cut off.
template <class T>
std::string complaint(const char* file, const std::function<void(Value&)>& change) {
  Value document = read_document(std::string(MOTLEY_SOURCE_DIR "/data/") + file);
  change(document);
  try {
    read<T>(document, "x");
  } catch (const Error& error) {
    EXPECT_FALSE(error.hint().empty());
    const std::string what = error.what();
    return what.substr(what.find(": ") + 2);
  }
  return "none";
}

TEST(PublishedProfiles, TablesOfOtherSizesAreRefused) {
  const auto profile = [](std::string_view key, Value value) {
    return complaint<GalvatronProfile>("galvatron/llama-2-7b-8-devices.json",
                                       [&](Value& document) { document.set(key, std::move(value)); });
  };
  const Value one = Value::array({1.0}), two = Value::array({1.0, 1.0});
  EXPECT_EQ(profile("devices", 8), "none");
  EXPECT_EQ(profile("devices", 6), "the number of devices must be a power of two, found 6");
  EXPECT_EQ(profile("devices", 16), "activation_mib has 4 entries");
  EXPECT_EQ(profile("consecutive_gb_per_s", two), "consecutive_gb_per_s has 2 entries");
  EXPECT_EQ(profile("strided_gb_per_s", one), "strided_gb_per_s has 1 entries");
  EXPECT_EQ(profile("hop_gb_per_s", two), "hop_gb_per_s has 2 entries");
  EXPECT_EQ(profile("all_reduce_ms", Value::array({two, two})), "all_reduce_ms has 2 entries");
  EXPECT_TRUE(profile("all_to_all_ms", Value::array({two, two, two})).starts_with("all_to_all_ms has a row of 2"));
  EXPECT_EQ(profile("layer_forward_ms", one), "layer_forward_ms has 1 entries");

  const auto block = [](std::string_view key, Value value) {
    return complaint<OsdpBlocks>("osdp/gpt-blocks.json", [&](Value& document) {
      for (auto& [name, entry] : document.as_object())
        if (name == "blocks") entry.as_array()[0].set(key, std::move(value));
    });
  };
  EXPECT_EQ(block("time_s", Value::array({two})), "blocks[0]: time_s and memory_mb have different numbers of rows");
  EXPECT_EQ(complaint<OsdpBlocks>(
                "osdp/gpt-blocks.json",
                [&](Value& document) {
                  document.set("blocks", Value::array({Value::object({{"hidden", 8},
                                                                      {"time_s", Value::array({one, one})},
                                                                      {"memory_mb", Value::array({one, two})}})}));
                }),
            "blocks[0]: row 1 has different numbers of levels in time_s and memory_mb");
}

TEST(PublishedProfiles, ReferenceIsCurrent) {
  expect_reference_is_current("galvatron-profile.md", schema<GalvatronProfile>().doc());
  expect_reference_is_current("osdp-blocks.md", schema<OsdpBlocks>().doc());
}

}  // namespace
}  // namespace motley
