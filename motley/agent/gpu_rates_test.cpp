// What an agent measures of its GPUs, and what it finds of an earlier one, with functions that stand in for the
// processes that measure.
#include "motley/agent/gpu_rates.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "motley/base/files.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ListedGpu gpu_called(const std::string& uuid, const std::string& name = "NVIDIA RTX A6000") {
  return {.uuid = uuid,
          .name = name,
          .compute_capability = 8.6,
          .total_bytes = std::int64_t{48} << 30,
          .free_bytes = std::int64_t{47} << 30,
          .software = "driver 580, LibTorch 2.11.0, kernels 3"};
}

DeviceType some_rates(double upload_bytes_per_s = 25e9) {
  DeviceType type;
  type.name = "cuda:0";
  type.vendor = "nvidia";
  type.memory_bandwidth_bytes_per_s = 7e11;
  type.flop_per_s = {{"bf16", 1.4e14}, {"fp32", 3e13}};
  type.efficiency = {.compute = 1, .bandwidth = 1, .basis = Basis::measured};
  type.overhead = Overhead{.layer_s = 2e-5, .step_s = 1e-4};
  type.copies = {upload_bytes_per_s, 26e9, 11e-6};
  return type;
}

class GpuRatesTest : public ::testing::Test {
 protected:
  GpuRatesTest() {
    std::string name = fs::temp_directory_path() / "motley-gpu-rates-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~GpuRatesTest() override { fs::remove_all(folder_); }

  // The offers of these GPUs, one after another in slots, as an agent makes them when it starts.
  std::vector<OfferedDevice> offers(const std::vector<ListedGpu>& gpus) {
    std::vector<OfferedDevice> devices;
    for (const ListedGpu& gpu : gpus)
      devices.push_back(
          {.kind = gpu.name, .slot = static_cast<std::int32_t>(devices.size()), .vendor = "nvidia", .uuid = gpu.uuid});
    asked_.clear();
    KeptGpuRates kept(folder_ / "state" / gpu_rates_file);
    add_gpu_rates(devices, gpus, kept, measuring_, [this](const std::string& what) { said_.push_back(what); });
    return devices;
  }

  fs::path folder_;
  std::vector<std::string> asked_, said_;
  GpuMeasuring measuring_{.rates =
                              [this](const ListedGpu& gpu) {
                                asked_.push_back("rates " + gpu.uuid);
                                return some_rates();
                              },
                          .copies =
                              [this](const ListedGpu& gpu) {
                                asked_.push_back("copies " + gpu.uuid);
                                return CopyRates{1e9, 1e9, 12e-6};
                              },
                          .link =
                              [this](const ListedGpu& from, const ListedGpu& to) {
                                asked_.push_back("link " + from.uuid + " " + to.uuid);
                                return LinkSpeed{.latency_s = 9e-6, .bandwidth_bytes_per_s = 22e9};
                              }};
};

TEST_F(GpuRatesTest, AreMeasuredOfAKindOnceAndOfItsOtherCardsTheCopies) {
  const auto devices = offers({gpu_called("GPU-a"), gpu_called("GPU-b"), gpu_called("GPU-c", "NVIDIA L4")});
  EXPECT_THAT(asked_, ElementsAre("rates GPU-a", "copies GPU-b", "rates GPU-c", "link GPU-a GPU-b", "link GPU-a GPU-c",
                                  "link GPU-c GPU-a"));
  const DeviceType first = parse_rates(devices[0].rates, "test"), second = parse_rates(devices[1].rates, "test");
  EXPECT_EQ(first, some_rates());
  EXPECT_EQ(second.memory_bandwidth_bytes_per_s, 7e11);
  EXPECT_EQ(second.copies, (CopyRates{1e9, 1e9, 12e-6})) << "it may be in a slower slot";
  EXPECT_EQ(devices[0].bytes_per_s, 7e11);
  EXPECT_EQ(devices[0].flop_per_s, 1.4e14);
  EXPECT_THAT(devices[1].peers, ElementsAre(PeerLink{0, 9e-6, 22e9}, PeerLink{2, 9e-6, 22e9}));
}

TEST_F(GpuRatesTest, AreKeptForTheNextAgentUntilVersionsChange) {
  std::vector<ListedGpu> gpus{gpu_called("GPU-a"), gpu_called("GPU-b")};
  const auto before = offers(gpus);
  EXPECT_EQ(offers(gpus), before);
  EXPECT_THAT(asked_, IsEmpty());
  gpus[1].software = "driver 590, LibTorch 2.11.0, kernels 3";
  offers(gpus);
  EXPECT_THAT(asked_, ElementsAre("copies GPU-b", "link GPU-a GPU-b"));
  std::ofstream(folder_ / "state" / gpu_rates_file) << "{\"rates\": 7";
  offers(gpus);
  EXPECT_THAT(asked_, Contains("rates GPU-a"));
}

TEST_F(GpuRatesTest, OfOneThatCannotBeMeasuredAreTheCatalogues) {
  measuring_.rates = [this](const ListedGpu& gpu) -> DeviceType {
    asked_.push_back("rates " + gpu.uuid);
    throw Error(ErrorCode::environment, "has not ended within 120 s", "run it by hand");
  };
  const auto devices = offers({gpu_called("GPU-a"), gpu_called("GPU-b")});
  EXPECT_THAT(asked_, ElementsAre("rates GPU-a", "link GPU-a GPU-b")) << "of the kind it is not tried again";
  EXPECT_THAT(said_, Contains(HasSubstr("has not ended within 120 s")));
  EXPECT_EQ(devices[0].rates, "");
  EXPECT_EQ(devices[0].bytes_per_s, 0);
}

TEST_F(GpuRatesTest, SlicesOfCardsHaveNoLinks) {
  EXPECT_THAT(offers({gpu_called("GPU-a"), gpu_called("MIG-b", "NVIDIA A100 MIG 1g.5gb")})[0].peers, IsEmpty());
}

TEST_F(GpuRatesTest, ThatNoDeviceHasAreRefused) {
  const auto refused = [](const DeviceType& rates) {
    try {
      parse_rates(rates_text(rates), "box");
      return std::string("read");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer);
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused(some_rates()), "read");
  DeviceType wrong = some_rates();
  wrong.memory_bandwidth_bytes_per_s = 1e30;
  EXPECT_THAT(refused(wrong), HasSubstr("rates that no device has"));
  wrong = some_rates();
  wrong.flop_per_s = {};
  EXPECT_THAT(refused(wrong), HasSubstr("rates that no device has"));
  wrong = some_rates(1e30);
  EXPECT_THAT(refused(wrong), HasSubstr("rates that no device has"));
  wrong = some_rates();
  wrong.name = std::string(5000, 'x');
  EXPECT_THAT(refused(wrong), HasSubstr("no rates"));
  EXPECT_THROW(parse_rates("{", "box"), Error);
  EXPECT_THROW(parse_rates("[]", "box"), Error);
}

TEST_F(GpuRatesTest, AreAskedOfAProcessThatSeesTheGpuAlone) {
  const auto script = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(folder_ / name, fs::perms::owner_all);
    return folder_ / name;
  };
  std::ofstream(folder_ / "rates") << rates_text(some_rates());
  const fs::path program = script("motley", "echo \"$CUDA_VISIBLE_DEVICES $*\" > " + (folder_ / "asked").string() +
                                                "; cat " + (folder_ / "rates").string());
  const GpuMeasuring measuring = measuring_by(program, script("worker", "exit 3"));
  EXPECT_EQ(measuring.rates(gpu_called("GPU-a")), some_rates());
  EXPECT_EQ(read_file(folder_ / "asked"), "GPU-a cluster probe --rates --backend cuda:0 --quiet\n");
  try {
    measuring.copies(gpu_called("GPU-a"));
    ADD_FAILURE() << "measured";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("worker --copies cuda:0, which measures copies, ended with exit code 3"));
  }
}

}  // namespace
}  // namespace motley
