// Stages whose weights are homed elsewhere than on the device: same bits, and errors that name what is wrong.
#include <c10/core/InferenceMode.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string_view>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/base/random.hpp"
#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/spill/stream_copy.hpp"
#include "motley/engine/stage/random_model_test.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/engine/weights/load_weights.hpp"
#include "motley/engine/weights/streamed_blocks.hpp"

namespace motley {
namespace {

struct OffloadedFamily {
  const char* name;
  const char* keys;
};
std::ostream& operator<<(std::ostream& out, const OffloadedFamily& family) { return out << family.name; }

constexpr const char* keys_of_all =
    R"("hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "vocab_size": 97, "max_position_embeddings": 64)";
const std::vector<OffloadedFamily> offloaded_families = {
    {"llama", R"("model_type": "llama", "intermediate_size": 80, "num_key_value_heads": 2)"},
    {"llama_tied", R"("model_type": "llama", "intermediate_size": 80, "tie_word_embeddings": true)"},
    {"llama_with_biases",
     R"("model_type": "llama", "intermediate_size": 80, "attention_bias": true, "mlp_bias": true)"},
    {"mistral", R"("model_type": "mistral", "intermediate_size": 80, "num_key_value_heads": 2, "sliding_window": 4)"},
    {"qwen2", R"("model_type": "qwen2", "intermediate_size": 80, "num_key_value_heads": 2)"},
    {"qwen3", R"("model_type": "qwen3", "intermediate_size": 80, "num_key_value_heads": 2, "head_dim": 32)"},
    {"opt", R"("model_type": "opt", "ffn_dim": 80, "do_layer_norm_before": true)"},
    {"opt_norm_after",
     R"("model_type": "opt", "ffn_dim": 80, "do_layer_norm_before": false, "word_embed_proj_dim": 32)"},
};

Architecture offloaded_architecture(const OffloadedFamily& family) {
  return read_architecture(parse_json(fmt::format("{{{}, {}}}", keys_of_all, family.keys), "config"), "config");
}

StageSpec whole_stage(const Architecture& arch, DType type) {
  return {.arch = arch,
          .layers = {0, arch.layers},
          .embedding = true,
          .head = true,
          .weight_type = type,
          .kv_type = type == DType::bf16 ? DType::bf16 : DType::fp32,
          .kv_tokens = 128,
          .limits = {.max_tokens = 40, .max_sequences = 4, .block_tokens = 8}};
}

std::vector<Tier> random_tiers(std::mt19937& random, std::int64_t layers) {
  std::vector<Tier> tiers;
  for (std::int64_t i = 0; i < layers; ++i) tiers.push_back(static_cast<Tier>(random() % 3));
  return tiers;
}

// A prompt, then another during the decodes of the first: the logits of each step.
std::vector<at::Tensor> logits_of(StageModel& model) {
  const c10::InferenceMode guard;
  std::vector<at::Tensor> all;
  StepSequence one{.sequence = 1, .position = 0, .count = 11, .blocks = {3, 1, 2, 9}, .sampling = Sampling()};
  StepSequence two{.sequence = 2, .position = 0, .count = 9, .blocks = {0, 8, 5}, .sampling = Sampling()};
  for (std::int32_t i = 0; i < 11; ++i) one.tokens.push_back(3 * i + 1);
  for (std::int32_t i = 0; i < 9; ++i) two.tokens.push_back(5 * i + 2);
  const auto go_on = [](StepSequence& sequence, std::int32_t token) {
    sequence.position += sequence.count;
    sequence.count = 1;
    sequence.tokens = {token};
  };
  for (std::uint64_t number = 1; number <= 8; ++number) {
    Step step{.step = number, .sequences = {one}};
    if (number > 2) step.sequences.push_back(two);
    all.push_back(model.logits(step, model.forward(step, {})).cpu().clone());
    go_on(one, static_cast<std::int32_t>(all.back()[0].argmax().item<std::int64_t>()));
    if (number > 2) go_on(two, static_cast<std::int32_t>(all.back()[1].argmax().item<std::int64_t>()));
  }
  return all;
}

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "offload-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

// Bit for bit.
void expect_logits(const StageSpec& spec, const Folder& folder, const std::vector<at::Tensor>& expected,
                   const ComputeDevice& device = cpu_device()) {
  std::string homes;
  for (const Tier tier : spec.offload->weights) homes += fmt::format(" {}", static_cast<int>(tier));
  SCOPED_TRACE(
      fmt::format("{} weights at{}, {} micro-batches", name_of(spec.weight_type), homes, spec.offload->batches));
  StageModel offloaded(spec, folder.path, nullptr, device);
  const std::vector<at::Tensor> real = logits_of(offloaded);
  for (std::size_t step = 0; step < expected.size(); ++step)
    EXPECT_TRUE(real[step].equal(expected[step])) << "step " << step;
}

class OffloadFamilyTest : public ::testing::TestWithParam<OffloadedFamily> {};

TEST_P(OffloadFamilyTest, SaysTheSameBitForBitWhereverItsWeightsAre) {
  const Folder folder;
  const Architecture arch = offloaded_architecture(GetParam());
  write_random_model(folder.path, arch);
  std::mt19937 random(7);
  for (const DType type : {DType::fp32, DType::bf16, DType::q8_0}) {
    StageSpec spec = whole_stage(arch, type);
    StageModel resident(spec, folder.path, nullptr, cpu_device());
    const std::vector<at::Tensor> expected = logits_of(resident);
    for (int placement = 0; placement < 2; ++placement) {
      spec.offload = LayerHomes{
          .weights = random_tiers(random, arch.layers), .kv = random_tiers(random, arch.layers), .activations = {}};
      spec.offload->batches = 1 + placement;  // the second: as many tokens in two micro-batches
      spec.limits.max_tokens = 40 / spec.offload->batches / (1 + 2 * placement);
      expect_logits(spec, folder, expected);
    }
  }
}

// The device has memory of its own, and its streams run late.
TEST_P(OffloadFamilyTest, SaysTheSameBitForBitWhereBlocksComeToMemoryApart) {
  const Folder folder;
  const Architecture arch = offloaded_architecture(GetParam());
  write_random_model(folder.path, arch);
  const std::string_view name = GetParam().name;
  const auto number = static_cast<unsigned>(std::ranges::find(offloaded_families, name, &OffloadedFamily::name) -
                                            offloaded_families.begin());
  constexpr DType types[] = {DType::fp32, DType::bf16, DType::q8_0};
  // All of them for each family take a minute: ./dev test standins.
  const char* asked = std::getenv("MOTLEY_STANDINS");
  const bool all = asked != nullptr && std::string_view(asked) == "all";
  std::mt19937 random(11 + number);
  for (std::size_t i = 0; i < (all ? std::size(types) : 1); ++i) {
    StageSpec spec = whole_stage(arch, types[(number + i) % std::size(types)]);
    StageModel resident(spec, folder.path, nullptr, apart_device());
    const std::vector<at::Tensor> expected = logits_of(resident);
    for (int placement = 0; placement < (all ? 4 : 2); ++placement) {
      spec.offload = LayerHomes{.weights = random_tiers(random, arch.layers),
                                .kv = std::vector<Tier>(static_cast<std::size_t>(arch.layers), Tier::device),
                                .activations = {}};
      spec.offload->batches = 1 + placement % 2;
      spec.limits.max_tokens = 40 / spec.offload->batches;
      expect_logits(spec, folder, expected, apart_device());
    }
  }
}

// Copies take longer than a block is computed, so that one that is not waited for comes too late.
TEST(OffloadApartTest, BlocksAreThereBeforeTheyAreUsed) {
  const c10::InferenceMode guard;
  const Folder folder;
  const Architecture arch = offloaded_architecture(offloaded_families[0]);
  write_random_model(folder.path, arch);
  StageSpec spec = whole_stage(arch, DType::fp32);
  StepSequence sequence{
      .sequence = 1, .position = 0, .count = 3, .tokens = {4, 7, 1}, .blocks = {3}, .sampling = Sampling()};
  const Step step{.step = 1, .sequences = {sequence}};
  const auto logits = [&] {
    StageModel model(spec, folder.path, nullptr, apart_device());
    return model.logits(step, model.forward(step, {})).cpu();
  };
  const at::Tensor expected = logits();
  const auto everywhere = [&](Tier tier) { return std::vector<Tier>(static_cast<std::size_t>(arch.layers), tier); };
  ::setenv("MOTLEY_APART_RATES", "h2d=1e6", 1);
  spec.offload = LayerHomes{.weights = everywhere(Tier::disk), .kv = everywhere(Tier::device), .activations = {}};
  const at::Tensor streamed = logits();
  ::unsetenv("MOTLEY_APART_RATES");
  EXPECT_TRUE(streamed.equal(expected));
}

TEST(OffloadApartTest, RefusesKeysAndHiddenStatesElsewhere) {
  const Architecture arch = offloaded_architecture(offloaded_families[0]);
  StageSpec spec = whole_stage(arch, DType::fp32);
  const std::vector<Tier> here(5, Tier::device);
  const LayerHomes keys{
      .weights = here, .kv = {Tier::device, Tier::host, Tier::device, Tier::device, Tier::device}, .activations = {}},
      states{.weights = here, .kv = here, .activations = {Tier::host}};
  for (const LayerHomes& homes : {keys, states}) {
    spec.offload = homes;
    EXPECT_THROW(StageModel(spec, "/nowhere", nullptr, apart_device()), Error);
  }
}

// Elements and scales, in the host's memory and in records on the disk.
TEST(OffloadKvTest, SaysTheSameBitForBitWhereverKeysAndValuesInEightBitsAre) {
  const Folder folder;
  const Architecture arch = offloaded_architecture(offloaded_families[5]);
  ASSERT_EQ(arch.kinds.front().head_dim, 32);
  write_random_model(folder.path, arch);
  for (const DType type : {DType::fp32, DType::bf16, DType::q8_0}) {
    StageSpec spec = whole_stage(arch, type);
    spec.kv_type = DType::q8_0;
    StageModel resident(spec, folder.path, nullptr, cpu_device());
    const std::vector<at::Tensor> expected = logits_of(resident);
    for (const std::int64_t batches : {1, 2}) {
      spec.offload = LayerHomes{.weights = std::vector<Tier>(5, Tier::device),
                                .kv = {Tier::disk, Tier::device, Tier::disk, Tier::disk, Tier::host},
                                .activations = {}};
      spec.offload->batches = batches;
      spec.limits.max_tokens = batches == 1 ? 40 : 7;
      expect_logits(spec, folder, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OffloadFamilyTest, ::testing::ValuesIn(offloaded_families),
                         [](const auto& family) { return std::string(family.param.name); });

class OffloadTest : public ::testing::Test {
 protected:
  OffloadTest() : arch(offloaded_architecture(offloaded_families[0])), spec(whole_stage(arch, DType::bf16)) {
    write_random_model(folder.path, arch);
    spec.offload = LayerHomes{.weights = {Tier::disk, Tier::disk, Tier::device, Tier::host, Tier::disk},
                              .kv = std::vector<Tier>(5, Tier::device),
                              .activations = {}};
  }
  StageWeights load(const ComputeDevice& device = cpu_device()) { return load_weights(spec, folder.path, device); }

  const Folder folder;
  const Architecture arch;
  StageSpec spec;
};

// The file without a name that this process holds open.
FileDescriptor own_spill_file() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(spill_folder().string()) && target.ends_with("(deleted)"))
      return FileDescriptor(::open(entry.path().c_str(), O_RDWR));
  }
  return {};
}

std::string what_fails(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment);
    return error.what();
  }
  return "nothing";
}

TEST_F(OffloadTest, HoldsTwoBuffersAndWhatIsResident) {
  const Shard shard = make_shards(arch, 1).front();
  const std::int64_t block = block_bytes(arch, 0, shard, DType::bf16);
  EXPECT_EQ(load().blocks->bytes(), 3 * block);
}

TEST_F(OffloadTest, TakesLayersInAnyOrderWhateverTheirHomes) {
  const c10::InferenceMode guard;
  const std::vector<Tier> homes = {Tier::device, Tier::host, Tier::disk};
  spec.offload.reset();
  const StageWeights resident = load();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    spec.offload = LayerHomes{.weights = {}, .kv = std::vector<Tier>(5, Tier::device), .activations = {}};
    for (std::uint64_t layer = 0; layer < 5; ++layer)
      spec.offload->weights.push_back(homes[static_cast<std::size_t>(3 * uniform_at(seed, layer))]);
    const StageWeights streamed = load(seed % 2 == 1 ? apart_device() : cpu_device());
    // Whole passes, some of which are broken off, and then no order at all.
    std::vector<std::int64_t> order;
    for (std::uint64_t pass = 0; pass < 6; ++pass)
      for (std::int64_t layer = 0;
           layer < (pass % 2 == 0 ? 5 : static_cast<std::int64_t>(5 * uniform_at(seed, 10 + pass))); ++layer)
        order.push_back(layer);
    for (std::uint64_t i = 0; i < 30; ++i) order.push_back(static_cast<std::int64_t>(5 * uniform_at(seed, 20 + i)));
    for (const std::int64_t layer : order)
      ASSERT_TRUE(streamed.blocks->block(layer).down.weight.values.cpu().equal(
          resident.blocks->block(layer).down.weight.values))
          << "seed " << seed << ", layer " << layer;
  }
}

TEST(StreamCopyTest, CopiesWhateverTheSizeAndPlace) {
  std::vector<std::byte> from(700);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const std::size_t begin : {0, 1, 16})
    for (const std::size_t size : {0, 1, 63, 64, 65, 128, 640}) {
      alignas(64) std::array<std::byte, 700> to{};
      stream_copy(std::span(to).subspan(begin), std::span(from).subspan(begin % 3, size));
      for (std::size_t i = 0; i < to.size(); ++i)
        ASSERT_EQ(to[i], i >= begin && i < begin + size ? from[begin % 3 + i - begin] : std::byte{0})
            << size << " bytes at " << begin << ", byte " << i;
    }
}

TEST_F(OffloadTest, ItsFileIsPrivateAndHasNoName) {
  const StageWeights weights = load();
  const FileDescriptor file = own_spill_file();
  struct stat status {};
  ASSERT_EQ(::fstat(file.get(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(status.st_nlink, 0U);
}

TEST_F(OffloadTest, AFileThatEndsEarlyIsAnErrorWithItsFigures) {
  const StageWeights weights = load();
  const FileDescriptor file = own_spill_file();
  for (int pass = 0; pass < 2; ++pass)
    for (std::int64_t layer = 0; layer < arch.layers; ++layer) weights.blocks->block(layer);
  struct stat status {};
  ASSERT_EQ(::fstat(file.get(), &status), 0);
  ASSERT_EQ(::ftruncate(file.get(), status.st_size - spill_alignment), 0);
  const std::string error = what_fails([&] {
    for (int pass = 0; pass < 2; ++pass)
      for (std::int64_t layer = 0; layer < arch.layers; ++layer) weights.blocks->block(layer);
  });
  EXPECT_NE(error.find(spill_folder().string()), std::string::npos) << error;
  EXPECT_NE(error.find("bytes of streamed weights where"), std::string::npos) << error;
}

TEST_F(OffloadTest, AFullDiskIsNamedWithItsFigures) {
  const std::string error = what_fails([&] { SpillFile("streamed weights", std::int64_t{1} << 50); });
  EXPECT_NE(error.find(fmt::format("the disk of {} is full: streamed weights take 1024 TiB", spill_folder().string())),
            std::string::npos)
      << error;
}

TEST_F(OffloadTest, AFolderThatIsNotThereIsNamed) {
  const std::string error = what_fails([] { SpillFile("streamed weights", 4096, "/nowhere"); });
  EXPECT_EQ(error, "cannot make a file for streamed weights in /nowhere: No such file or directory");
}

TEST(TransfersTest, ADiskThatDoesNotAnswerIsAnError) {
  std::atomic<bool> answers = false;
  {
    Transfers transfers(2, 0.05);
    const auto quick = transfers.start("weights of layer 3", {[] {}, [] {}});
    transfers.wait(quick);
    const auto stuck = transfers.start("weights of layer 4", {[&] {
                                         while (!answers) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                       }});
    EXPECT_EQ(what_fails([&] { transfers.wait(stuck); }),
              "weights of layer 4: no answer for 0 s, with 1 pieces to come");
  }
  answers = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the thread sees it before it goes out of scope
}

TEST(TransfersTest, TheFirstFailureOfATransferIsThrown) {
  Transfers transfers(1);
  const auto transfer = transfers.start("x", {[] { throw Error(ErrorCode::environment, "first"); },
                                              [] { throw Error(ErrorCode::environment, "second"); }});
  EXPECT_EQ(what_fails([&] { transfers.wait(transfer); }), "first");
}

}  // namespace
}  // namespace motley
