// What a machine offers of GPUs that a program stands in for: two of one kind, a desktop on one, and a slice of a
// third.
#include "motley/agent/offered_gpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "motley/base/error.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t gib = std::int64_t{1} << 30;

ListedGpu card(const std::string& uuid) {
  return {.uuid = uuid,
          .name = "NVIDIA RTX A6000",
          .compute_capability = 8.6,
          .total_bytes = 48 * gib,
          .free_bytes = 47 * gib,
          .kernels = 7};
}

std::vector<ListedGpu> three_gpus() {
  ListedGpu shown = card("GPU-b"), slice = card("MIG-c");
  shown.display = true;
  slice.name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
  slice.compute_capability = 9.0;
  slice.total_bytes = 10 * gib;
  slice.free_bytes = 9 * gib;
  return {card("GPU-a"), shown, slice};
}

class OfferedGpusTest : public ::testing::Test {
 protected:
  OfferedGpusTest() {
    std::string name = fs::temp_directory_path() / "motley-offered-gpus-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~OfferedGpusTest() override { fs::remove_all(folder_); }

  // As an agent does at its start, by a worker program that lists these.
  OfferedGpus offer(const std::vector<ListedGpu>& gpus, const GpuChoice& choice = {}) const {
    std::ofstream(folder_ / "answer") << gpu_lines(gpus);
    std::ofstream(folder_ / "worker") << "#!/bin/sh\ncat " << (folder_ / "answer").string() << "\n";
    fs::permissions(folder_ / "worker", fs::perms::owner_all);
    const GpuList list = list_gpus(folder_ / "worker");
    const std::vector<std::string> slots = gpu_slots(folder_ / "state/slots", list.gpus);
    keep_gpu_slots(folder_ / "state/slots", slots);
    return offered_gpus(list, slots, choice);
  }
  std::string refusal(const std::vector<ListedGpu>& gpus, const std::vector<int>& slots) const {
    try {
      offer(gpus, {.slots = slots});
      return "offered";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      return with_hint(error);
    }
  }
  static std::vector<std::string> places(const OfferedGpus& offered) {
    std::vector<std::string> all;
    for (const OfferedDevice& device : offered.devices) all.push_back(std::to_string(device.slot) + " " + device.uuid);
    return all;
  }

  fs::path folder_;
};

TEST_F(OfferedGpusTest, EachWithWhatIsFreeLessItsHeadroom) {
  const OfferedGpus offered = offer(three_gpus(), {.threads = 3});
  EXPECT_TRUE(offered.left_out.empty());
  const OfferedDevice first{.kind = "NVIDIA RTX A6000",
                            .memory_bytes = 46 * gib + gib / 2,
                            .threads = 3,
                            .slot = 0,
                            .vendor = "nvidia",
                            .backend = "cuda:0",
                            .uuid = "GPU-a",
                            .total_bytes = 48 * gib,
                            .free_bytes = 47 * gib,
                            .kernels = 7};
  OfferedDevice shown = first, slice = first;
  shown.slot = 1;
  shown.uuid = "GPU-b";
  shown.memory_bytes = 45 * gib + gib / 2;
  slice.slot = 2;
  slice.uuid = "MIG-c";
  slice.kind = "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
  slice.total_bytes = 10 * gib;
  slice.free_bytes = 9 * gib;
  slice.memory_bytes = 8 * gib + gib / 2;
  EXPECT_THAT(offered.devices, ElementsAre(first, shown, slice));
}

TEST_F(OfferedGpusTest, NoMoreThanIsAskedFor) {
  const OfferedGpus offered = offer(three_gpus(), {.memory_bytes = 20 * gib});
  EXPECT_EQ(offered.devices[0].memory_bytes, 20 * gib);
  EXPECT_EQ(offered.devices[2].memory_bytes, 8 * gib + gib / 2);
}

TEST_F(OfferedGpusTest, OneThatIsGoneLeavesItsSlot) {
  std::vector<ListedGpu> gpus = three_gpus();
  offer(gpus);
  gpus.erase(gpus.begin());
  EXPECT_THAT(places(offer(gpus)), ElementsAre("1 GPU-b", "2 MIG-c"));
  gpus.insert(gpus.begin(), card("GPU-d"));
  EXPECT_THAT(places(offer(gpus)), ElementsAre("1 GPU-b", "2 MIG-c", "3 GPU-d"));
  gpus.push_back(card("GPU-a"));
  EXPECT_THAT(places(offer(gpus)), ElementsAre("0 GPU-a", "1 GPU-b", "2 MIG-c", "3 GPU-d"));
}

TEST_F(OfferedGpusTest, SlotsOfThoseThatAreGoneAreTakenInTheEnd) {
  for (int i = 0; i < 64; ++i) offer({card("GPU-" + std::to_string(i))});
  EXPECT_THAT(places(offer({card("GPU-0"), card("GPU-a")})), ElementsAre("0 GPU-0", "1 GPU-a"));
}

TEST_F(OfferedGpusTest, AFileOfOtherThingsIsNamed) {
  fs::create_directories(folder_ / "state");
  std::ofstream(folder_ / "state/slots") << "GPU-a\nbabble\n";
  EXPECT_THAT(refusal(three_gpus(), {}), HasSubstr("state/slots:2: not the UUID of a GPU"));
}

TEST_F(OfferedGpusTest, ThoseThatAreChosen) {
  EXPECT_THAT(places(offer(three_gpus(), {.slots = std::vector{2, 0}})), ElementsAre("0 GPU-a", "2 MIG-c"));
  EXPECT_TRUE(offer(three_gpus(), {.slots = std::vector<int>{}}).devices.empty());
  EXPECT_EQ(refusal(three_gpus(), {0, 4}),
            "--devices 4 names no GPU: there are 0 (NVIDIA RTX A6000), 1 (NVIDIA RTX A6000), 2 (NVIDIA H100 80GB HBM3 "
            "MIG 1g.10gb) (--processor-parts 4 offers the processor as 4 parts)");
}

TEST(OfferedGpus, OnesThatNoMachineHas) {
  for (const std::string cause : {"", "no driver"}) try {
      offered_gpus({.gpus = {}, .cause = cause}, {"GPU-gone"}, {.slots = std::vector{0}});
      ADD_FAILURE() << "offered";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                "--devices 0 names no GPU: " + (cause.empty() ? std::string("this machine has none") : cause));
    }
}

TEST_F(OfferedGpusTest, OneThatNoPlanCanUseIsLeftOutOrRefused) {
  std::vector<ListedGpu> gpus{card("GPU-a"), card("GPU-b"), card("GPU-c"), card("GPU-d")};
  gpus[1].compute_capability = 6.1;
  gpus[2].name = "NVIDIA Abacus 3000";
  gpus[3].free_bytes = gib + gib / 2;
  const OfferedGpus offered = offer(gpus);
  EXPECT_THAT(places(offered), ElementsAre("0 GPU-a"));
  EXPECT_THAT(offered.left_out,
              ElementsAre("gpu 1 (NVIDIA RTX A6000): its compute capability is 6.1, and 7.5 or more is needed",
                          HasSubstr("gpu 2 (NVIDIA Abacus 3000): the catalogue does not know it"),
                          "gpu 3 (NVIDIA RTX A6000): 1.00 GiB of its memory can be offered, of which a plan keeps 1.00 "
                          "GiB free"));
  EXPECT_THAT(refusal(gpus, {1}), HasSubstr("--devices 1: NVIDIA RTX A6000: its compute capability is 6.1"));
}

}  // namespace
}  // namespace motley
