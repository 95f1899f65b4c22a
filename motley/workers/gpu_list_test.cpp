// The list of GPUs, from programs that stand in for the worker: honest ones and others.
#include "motley/workers/gpu_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string honest_gpu =
    R"({"uuid": "GPU-1", "name": "NVIDIA RTX A6000", "compute_capability": 8.6, "total_bytes": 8, "free_bytes": 7})";

class GpuListTest : public ::testing::Test {
 protected:
  GpuListTest() {
    std::string name = fs::temp_directory_path() / "motley-gpu-list-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    program_ = folder_ / "worker";
  }
  ~GpuListTest() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    fs::remove_all(folder_);
  }
  GpuList list(const std::string& script, double within_s = 20) const {
    std::ofstream(program_) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(program_, fs::perms::owner_all);
    return list_gpus(program_, within_s);
  }
  // What it says of a program that answers with this text.
  std::string refusal(const std::string& script, double within_s = 20) const {
    try {
      list(script, within_s);
      return "listed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment);
      EXPECT_THAT(error.hint(), HasSubstr("--devices none"));
      return error.what();
    }
  }
  std::string refused_answer(const std::string& answer) const {
    std::ofstream(folder_ / "answer") << answer;
    return refusal("cat " + (folder_ / "answer").string());
  }

  fs::path folder_, program_;
};

ListedGpu some_gpu(const std::string& uuid) {
  return {.uuid = uuid,
          .name = "NVIDIA RTX A6000",
          .pci_bus = "0000:65:00.0",
          .compute_capability = 8.6,
          .total_bytes = std::int64_t{48} << 30,
          .free_bytes = std::int64_t{47} << 30,
          .kernels = 7,
          .peers = {"GPU-2"}};
}

TEST_F(GpuListTest, IsWhatTheProgramWrites) {
  ListedGpu slice = some_gpu("MIG-3");
  slice.peers = {};
  slice.display = true;
  const std::vector<ListedGpu> gpus{some_gpu("GPU-1"), slice};
  std::ofstream(folder_ / "answer") << gpu_lines(gpus);
  const GpuList listed = list("[ \"$*\" = --devices ] && cat " + (folder_ / "answer").string());
  EXPECT_EQ(listed.gpus, gpus);
  EXPECT_FALSE(listed.gpus[0].is_slice());
  EXPECT_TRUE(listed.gpus[1].is_slice());
  EXPECT_EQ(list("exit 0").gpus, std::vector<ListedGpu>());
}

TEST_F(GpuListTest, ThatThereAreNoneIsAnAnswer) {
  std::ofstream(folder_ / "answer") << no_gpu_line("no driver\x1b[2J");
  const GpuList listed = list("cat " + (folder_ / "answer").string() + "; exit 3");
  EXPECT_TRUE(listed.gpus.empty());
  EXPECT_EQ(listed.cause, "no driver\\x1b[2J");
}

TEST_F(GpuListTest, AnswersThatNoWorkerGivesAreRefused) {
  EXPECT_EQ(refused_answer(honest_gpu), "listed");
  EXPECT_THAT(refused_answer(honest_gpu + "\n" + honest_gpu), HasSubstr("line 2: a GPU that was listed before"));
  EXPECT_THAT(refused_answer("Segmentation fault"), HasSubstr("answers what cannot be read: worker --devices, line 1"));
  EXPECT_THAT(refused_answer(honest_gpu + "\n{}"), HasSubstr("line 2"));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string answer = honest_gpu;
    answer.replace(answer.find(from), from.size(), to);
    return refused_answer(answer);
  };
  EXPECT_THAT(changed("GPU-1", "GPU-1,2"), HasSubstr("a UUID that no GPU has"));
  EXPECT_THAT(changed("GPU-1", ""), HasSubstr("a UUID that no GPU has"));
  EXPECT_THAT(changed("A6000", "A6000\\u001b"), HasSubstr("a name that no GPU has"));
  EXPECT_THAT(changed("A6000", std::string(1000, 'x')), HasSubstr("a name that no GPU has"));
  EXPECT_THAT(changed("\"free_bytes\": 7", "\"free_bytes\": 9"), HasSubstr("more memory is free than there is"));
  EXPECT_THAT(changed("\"total_bytes\": 8", "\"total_bytes\": 1e18"), HasSubstr("total_bytes"));
  EXPECT_THAT(changed("\"total_bytes\": 8", "\"total_bytes\": -8"), HasSubstr("total_bytes"));
  EXPECT_THAT(changed("8.6", "860"), HasSubstr("compute_capability"));
  std::string many;
  for (int i = 0; i < 65; ++i) many += gpu_lines({some_gpu("GPU-" + std::to_string(i))});
  EXPECT_THAT(refused_answer(many), HasSubstr("line 65: more GPUs than a machine may have"));
}

TEST_F(GpuListTest, AProgramThatFailsIsNamed) {
  EXPECT_THAT(refusal("exit 7"), HasSubstr("worker --devices, which lists the GPUs, ended with exit code 7"));
  EXPECT_THAT(refusal("exit 3"), HasSubstr("answers what cannot be read"));
  EXPECT_THAT(refusal("kill -9 $$"), HasSubstr("was killed by signal 9"));
  EXPECT_THROW(list_gpus(folder_ / "nothing"), Error);
}

TEST_F(GpuListTest, NeitherTimeNorBytesAreWithoutBound) {
  const Instant start = Clock::now();
  EXPECT_THAT(refusal("sleep 1000", 0.2), HasSubstr("has not ended within 0 s"));
  EXPECT_THAT(refusal("exec sleep 1000 >&-", 0.2), HasSubstr("has not ended within 0 s"));
  EXPECT_THAT(refusal("yes"), HasSubstr("answers with more than 1048576 bytes"));
  EXPECT_LT(seconds_since(start), 100) << "nothing waits for the end of what it has started";
}

TEST(WholeCard, IsThatOfASlice) {
  EXPECT_EQ(whole_card("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(whole_card("NVIDIA RTX A6000"), "NVIDIA RTX A6000");
}

TEST(GpuVariables, NameOneGpu) {
  EXPECT_EQ(gpu_variables("MIG-3"),
            (Variables{{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES", "MIG-3"}}));
}

}  // namespace
}  // namespace motley
