#include <gtest/gtest.h>

#include "motley/base/reference_test.hpp"
#include "motley/cluster/capability.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/cluster/names.hpp"

namespace motley {
namespace {

const DeviceType& known(std::string_view name) {
  const DeviceType* type = find_in_catalogue(name);
  if (!type) throw input_error("not in the catalogue: " + std::string(name));
  return *type;
}

constexpr double gibibyte = 1024.0 * 1024 * 1024;

TEST(Catalogue, IsCompleteAndPlausible) {
  EXPECT_EQ(device_catalogue().size(), 73u);
  for (const auto& type : device_catalogue()) {
    SCOPED_TRACE(type.name);
    EXPECT_EQ(&known(type.name), &type);
    EXPECT_GE(static_cast<double>(type.memory_bytes), 8 * gibibyte);
    EXPECT_LE(static_cast<double>(type.memory_bytes), 512 * gibibyte);
    EXPECT_GE(type.memory_bandwidth_bytes_per_s, 100e9);
    EXPECT_LE(type.memory_bandwidth_bytes_per_s, 10e12);
    EXPECT_GE(type.flop_per_s.at("fp16"), 5e12);
    EXPECT_LE(type.flop_per_s.at("fp16"), 3e15);
    EXPECT_FALSE(type.flop_per_s.contains("fp32"));
    if (const auto bf16 = type.flop_per_s.find("bf16"); bf16 != type.flop_per_s.end()) {
      EXPECT_EQ(bf16->second, type.flop_per_s.at("fp16"));
    }
    EXPECT_GE(type.efficiency.compute, 0.25);
    EXPECT_LE(type.efficiency.compute, 0.87);
    EXPECT_GE(type.efficiency.bandwidth, 0.7);
    EXPECT_LE(type.efficiency.bandwidth, 0.87);
    EXPECT_NE(type.efficiency.basis, Basis::given);
    EXPECT_NE(type.training.basis, Basis::given);
  }
}

TEST(Catalogue, SpotValues) {
  EXPECT_EQ(known("A6000").memory_bytes, 48LL << 30);
  EXPECT_EQ(known("A6000").memory_bandwidth_bytes_per_s, 768e9);
  EXPECT_EQ(known("A6000").flop_per_s.at("fp16"), 154.8e12);
  EXPECT_EQ(known("A6000").usd_per_hour, 0.83);  // the middle of 0.55, 0.83, 1.09
  EXPECT_EQ(known("A40").usd_per_hour, 0.55);    // of 0.55 and 1.224 the one that was paid, the lower
  EXPECT_EQ(known("A5000").memory_bytes, 24LL << 30);
  EXPECT_EQ(known("A4000").memory_bandwidth_bytes_per_s, 448e9);
  EXPECT_EQ(known("RTX 4090").flop_per_s.at("bf16"), 165.2e12);  // fp32 accumulation
  EXPECT_EQ(known("H100").memory_bandwidth_bytes_per_s, 3350e9);
  EXPECT_EQ(known("H100").flop_per_s.at("fp8"), 1979e12);
  EXPECT_EQ(known("H200").memory_bytes, 143771LL << 20);  // as the driver reports it
  EXPECT_EQ(known("L4").memory_bytes, 23034LL << 20);
  EXPECT_FALSE(known("V100").flop_per_s.contains("bf16"));
  EXPECT_FALSE(known("T4").flop_per_s.contains("bf16"));
  EXPECT_EQ(known("P100").usd_per_hour, 0);
}

// Fitted by bench/cards_fit; attention and element-wise operations of prompts as in training.
TEST(Catalogue, SharesInServing) {
  const auto expect = [](std::string_view name, double compute, double bandwidth, Basis basis, double quantised = 0) {
    const DeviceType& type = known(name);
    EXPECT_EQ(type.efficiency, (Efficiency{.compute = compute,
                                           .bandwidth = bandwidth,
                                           .attention_compute = type.training.attention,
                                           .quantised_bandwidth = quantised,
                                           .elementwise = type.training.elementwise,
                                           .basis = basis}))
        << name;
  };
  expect("A100-40", 0.86, 0.79, Basis::measured);
  expect("V100-16", 0.75, 0.83, Basis::measured);
  expect("L4", 0.46, 0.83, Basis::measured, 0.62);
  expect("T4", 0.44, 0.75, Basis::measured);
  expect("RTX 4090", 0.65, 0.85, Basis::measured, 0.6);
  expect("A6000", 0.44, 0.82, Basis::measured, 0.62);
  expect("A5000", 0.43, 0.75, Basis::generation, 0.59);
  expect("H100", 0.72, 0.79, Basis::guess);
  expect("MI300X", 0.60, 0.80, Basis::guess);
}

// What a plan carries of a type says what it rests on; a share that a person gives rests on the person.
TEST(Catalogue, TheBasisOfSharesIsKept) {
  const auto resolved = [](const std::string& keys) {
    const std::string toml =
        "format = \"motley.cluster/1\"\n[[machine]]\nname = \"box\"\ndevices = [\"A5000\"]\n"
        "[[device_type]]\nname = \"A5000\"\n" +
        keys;
    return resolve(read<ClusterDescription>(parse_toml(toml, "test"), "test"), "test");
  };
  EXPECT_EQ(resolved("").types.front().efficiency, known("A5000").efficiency);
  const std::string plain = "format = \"motley.cluster/1\"\n[[machine]]\nname = \"box\"\ndevices = [\"A5000\"]\n";
  const Cluster used = resolve(read<ClusterDescription>(parse_toml(plain, "test"), "test"), "test");
  EXPECT_EQ(used.types.front().efficiency, known("A5000").efficiency);
  EXPECT_EQ(used.types.front().training, known("A5000").training);
  const Cluster cluster = resolved("price = \"1 $/h\"");
  EXPECT_EQ(cluster.types.front().efficiency, known("A5000").efficiency);
  EXPECT_EQ(read<Cluster>(write(cluster), "test").types.front().efficiency, known("A5000").efficiency);
  EXPECT_EQ(read<Cluster>(write(cluster), "test").types.front().training, known("A5000").training);
  EXPECT_EQ(resolved("efficiency = { compute = 0.5, bandwidth = 0.7 }").types.front().efficiency,
            (Efficiency{.compute = 0.5, .bandwidth = 0.7}));
  EXPECT_EQ(resolved("efficiency = { compute = 0.5 }").types.front().efficiency,
            (Efficiency{.compute = 0.5, .bandwidth = 0.75, .quantised_bandwidth = 0.59, .basis = Basis::generation}));
}

// Fitted by bench/train_fit; other types rest on the measured ones.
TEST(Catalogue, SharesInTraining) {
  EXPECT_EQ(known("A100-40").training, (TrainingShares{0.78, 0.30, 0.48, Basis::measured}));
  EXPECT_EQ(known("A100-80").training, (TrainingShares{0.85, 0.32, 0.33, Basis::measured}));
  EXPECT_EQ(known("H100").training, (TrainingShares{0.72, 0.18, 0.32, Basis::measured}));
  EXPECT_EQ(known("RTX 3090").training, (TrainingShares{0.79, 0.31, 0.43, Basis::generation}));
  EXPECT_EQ(known("H200").training, (TrainingShares{0.71, 0.18, 0.33, Basis::generation}));
  EXPECT_EQ(known("B200").training, (TrainingShares{0.71, 0.18, 0.33, Basis::guess}));
  EXPECT_EQ(known("RTX 4090").training, (TrainingShares{0.79, 0.31, 0.43, Basis::guess}));
  EXPECT_EQ(known("L4").training, (TrainingShares{0.42, 0.31, 0.43, Basis::guess}));
}

// A cluster file that measured products or attention has measured them for training, too.
TEST(Catalogue, GivenEfficiencyTakesThePlaceOfSharesInTraining) {
  const auto shares = [](const std::string& keys) {
    const std::string toml =
        "format = \"motley.cluster/1\"\n[[machine]]\nname = \"box\"\ndevices = [\"A100-40\"]\n"
        "[[device_type]]\nname = \"A100-40\"\n" +
        keys;
    return resolve(read<ClusterDescription>(parse_toml(toml, "test"), "test"), "test").types.front().training;
  };
  EXPECT_EQ(shares("price = \"1 $/h\""), known("A100-40").training);
  const Basis measured = Basis::measured;
  EXPECT_EQ(shares("efficiency = { compute = 0.5 }"), (TrainingShares{0, 0, 0.48, measured}));
  EXPECT_EQ(shares("efficiency = { attention_compute = 0.4 }"), (TrainingShares{0.78, 0, 0.48, measured}));
  EXPECT_EQ(shares("efficiency = { bandwidth = 0.7 }"), (TrainingShares{0.78, 0.30, 0, measured}));
  EXPECT_EQ(shares("efficiency = { compute = 0.5 }\ntraining = { products = 0.6 }"),
            (TrainingShares{0.6, 0, 0.48, measured}));
  EXPECT_EQ(shares("training = { elementwise = 0.6 }"), (TrainingShares{0.78, 0.30, 0.6, measured}));
  EXPECT_EQ(shares("training = { products = 0.6, elementwise = 0.6 }"), (TrainingShares{0.6, 0.30, 0.6}));
  EXPECT_EQ(shares("efficiency = { compute = 0.5, bandwidth = 0.7 }"), (TrainingShares{0, 0, 0}));
}

TEST(Catalogue, BoardsOfTwoDiesAreTwoDevices) {
  EXPECT_EQ(known("MI250X").memory_bytes, 64LL << 30);
  EXPECT_EQ(known("MI250X").flop_per_s.at("fp16"), 191.5e12);
  EXPECT_EQ(known("Ascend 910C").memory_bandwidth_bytes_per_s, 1600e9);
}

TEST(Catalogue, UnifiedMemoryKeepsAQuarterFree) {
  EXPECT_EQ(known("M1 Max").reserve_bytes, 16LL << 30);
  EXPECT_FALSE(known("A6000").reserve_bytes);
}

TEST(Catalogue, ManyNamesLeadToOneType) {
  for (const auto& [name, id] :
       std::map<std::string, std::string>{{"RTX A6000", "a6000-48gb"},
                                          {"NVIDIA RTX A6000", "a6000-48gb"},
                                          {"rtx-a5000", "A5000"},
                                          {"4090", "RTX 4090"},
                                          {"NVIDIA GeForce RTX 4090", "rtx4090-24gb"},
                                          {"geforce rtx 3090", "RTX 3090"},
                                          {"A100", "A100-80"},
                                          {"NVIDIA A100-SXM4-40GB", "A100-40"},
                                          {"a100_40", "a100-sxm-40gb"},
                                          {"V100", "V100-16"},
                                          {"Tesla T4", "t4-16gb"},
                                          {"NVIDIA H100 80GB HBM3", "H100"},
                                          {"H200", "h200-sxm-141gb"},
                                          {"L40S", "l40s-48gb"},
                                          {"A10G", "a10g-24gb"},
                                          {"Tesla V100-SXM2-32GB", "V100-32"},
                                          {"Tesla V100-PCIE-32GB", "v100-pcie-32gb"},
                                          {"Tesla P100-PCIE-16GB", "p100-pcie-16gb"},
                                          {"NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"},
                                          {"NVIDIA A100 80GB PCIe", "A100-PCIe-80"},
                                          {"nvidia A100-SXM4-80GB", "A100"},
                                          {"NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"},
                                          {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"},
                                          {"NVIDIA GH200 480GB", "GH200"},
                                          {"GeForceRTX4090", "RTX 4090"},
                                          {"AMD Instinct MI300X", "MI300X"},
                                          {"Apple M2 Ultra", "M2 Ultra"}})
    EXPECT_EQ(&known(name), &known(id)) << name;
  EXPECT_NE(&known("A100-40"), &known("A100"));
  EXPECT_NE(&known("L40"), &known("L40S"));
  EXPECT_EQ(find_in_catalogue("A6001"), nullptr);
  EXPECT_EQ(find_in_catalogue(""), nullptr);
  EXPECT_EQ(find_in_catalogue("NVIDIA"), nullptr);
  EXPECT_EQ(find_in_catalogue("NVIDIA GeForce RTX 4090 Laptop GPU"), nullptr) << "another chip";
  EXPECT_EQ(find_in_catalogue("RTX 3080 12GB"), nullptr) << "not the one of 10 GB";
}

TEST(Catalogue, ComputeCapabilitiesOfNvidiaCards) {
  for (const auto& type : device_catalogue())
    EXPECT_EQ(compute_capability(type.name).has_value(), type.vendor == "nvidia") << type.name;
  EXPECT_EQ(compute_capability("Tesla P100-PCIE-16GB"), 6.0);
  EXPECT_EQ(compute_capability("V100"), 7.0);
  EXPECT_EQ(compute_capability("T4"), 7.5);
  EXPECT_EQ(compute_capability("A30"), 8.0);
  EXPECT_EQ(compute_capability("RTX 5090"), 12.0);
  EXPECT_EQ(compute_capability("A6001"), std::nullopt);
}

TEST(Catalogue, ReferenceIsCurrent) { expect_reference_is_current("devices.md", catalogue_format()); }

}  // namespace
}  // namespace motley
