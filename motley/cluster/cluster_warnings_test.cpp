#include "motley/cluster/cluster_warnings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> warnings_of(const std::string& toml) {
  return cluster_warnings(resolve(
      read<ClusterDescription>(parse_toml("format = \"motley.cluster/1\"\n" + toml, "c.toml"), "c.toml"), "c.toml"));
}

const std::string small_box = "[[machine]]\nname = \"box\"\ndevices = [\"A6000*2\"]\n";

std::vector<std::string> of_memory(const std::string& memory) {
  return warnings_of(small_box + "[[device_type]]\nname = \"A6000\"\nmemory = \"" + memory + "\"\nreserve = \"0 B\"\n");
}

TEST(ClusterWarnings, FiguresAHundredTimesOffTheCatalogues) {
  EXPECT_THAT(of_memory("48 GiB"), IsEmpty());
  EXPECT_THAT(of_memory("520 MiB"), IsEmpty()) << "94 times less";
  EXPECT_THAT(of_memory("48 MiB"), ElementsAre("memory of \"A6000\" is read as 48 MiB, the catalogue has 48 GiB: is "
                                               "the unit right?"));
  EXPECT_THAT(of_memory("48 TiB"), ElementsAre("memory of \"A6000\" is read as 48 TiB, the catalogue has 48 GiB: is "
                                               "the unit right?"));
  EXPECT_THAT(of_memory("4800 GiB"), ElementsAre(testing::HasSubstr("the catalogue has 48 GiB")))
      << "exactly a hundred times more";
}

TEST(ClusterWarnings, CardsThatTheEngineCannotServeOn) {
  const auto of_type = [](const std::string& type) {
    return warnings_of("[[machine]]\nname = \"box\"\ndevices = [\"" + type + "\"]\n");
  };
  EXPECT_THAT(of_type("Tesla V100-SXM2-32GB"),
              ElementsAre(testing::HasSubstr("\"V100-32\" has compute capability 7.0, and motley serves and trains on "
                                             "NVIDIA GPUs from 7.5 on")));
  EXPECT_THAT(of_type("T4"), IsEmpty());
  EXPECT_THAT(of_type("MI300X"), IsEmpty());
}

TEST(ClusterWarnings, FiguresOfNewTypesThatNoDeviceHas) {
  const auto of_bandwidth = [](const std::string& vendor, const std::string& bandwidth) {
    return warnings_of(
        "[[machine]]\nname = \"box\"\ndevices = [\"chip\"]\n[[device_type]]\nname = \"chip\"\nvendor = \"" + vendor +
        "\"\nmemory = \"16 GiB\"\nmemory_bandwidth = \"" + bandwidth + "\"\nflops = { fp32 = \"1 TFLOP/s\" }\n");
  };
  EXPECT_THAT(of_bandwidth("amd", "10 GB/s"), IsEmpty());
  EXPECT_THAT(of_bandwidth("amd", "100 TB/s"), IsEmpty());
  EXPECT_THAT(of_bandwidth("amd", "9 GB/s"),
              ElementsAre("memory_bandwidth of \"chip\" is read as 9 GB/s: is the unit right?"));
  EXPECT_THAT(of_bandwidth("amd", "101 TB/s"),
              ElementsAre("memory_bandwidth of \"chip\" is read as 101 TB/s: is the unit right?"));
  EXPECT_THAT(of_bandwidth("cpu", "9 GB/s"), IsEmpty()) << "cores of a host are slower";
  EXPECT_THAT(of_bandwidth("cpu", "6 TB/s"), ElementsAre(testing::HasSubstr("6 TB/s")));
}

TEST(ClusterWarnings, LinksByHowFarTheyReach) {
  const auto of_link = [](const std::string& key, const std::string& latency, const std::string& bandwidth) {
    return warnings_of(small_box + "[network]\n" + key + " = { latency = \"" + latency + "\", bandwidth = \"" +
                       bandwidth + "\" }\n");
  };
  EXPECT_THAT(of_link("within_machine", "2 ms", "50 MB/s"), IsEmpty());
  EXPECT_THAT(of_link("within_machine", "3 ms", "50 MB/s"),
              ElementsAre("the latency of [network] within_machine is read as 3 ms: is the unit right?"));
  EXPECT_THAT(of_link("within_machine", "1 us", "49 MB/s"),
              ElementsAre("the bandwidth of [network] within_machine is read as 49 MB/s: is the unit right?"));
  EXPECT_THAT(of_link("within_site", "50 ms", "1 MB/s"), IsEmpty());
  EXPECT_THAT(of_link("within_site", "51 ms", "1 MB/s"), ElementsAre(testing::HasSubstr("within_site")));
  EXPECT_THAT(of_link("between_sites", "2 s", "50 kB/s"), IsEmpty());
  EXPECT_THAT(of_link("between_sites", "3 s", "40 kB/s"), testing::SizeIs(2));
  EXPECT_THAT(warnings_of(small_box + "link = { latency = \"9 ms\", bandwidth = \"9 GB/s\" }\n"),
              ElementsAre(testing::HasSubstr("the link inside machine \"box\"")));
}

TEST(ClusterWarnings, ExtremesOfAMatrixWithoutItsDiagonal) {
  const auto of_matrix = [](const std::string& latency_ms, const std::string& gbit_s) {
    return warnings_of(small_box + "[network.matrix]\nlatency_ms = " + latency_ms + "\nbandwidth_gbit_s = " + gbit_s +
                       "\n");
  };
  EXPECT_THAT(of_matrix("[[0, 1], [1, 0]]", "[[0, 8], [8, 0]]"), IsEmpty());
  EXPECT_THAT(of_matrix("[[0, 1], [3000, 0]]", "[[0, 8], [8, 0]]"),
              ElementsAre("the largest latency of the matrix is read as 3 s: is the unit right?"));
  EXPECT_THAT(of_matrix("[[0, 1], [1, 0]]", "[[0, 8], [0.00008, 0]]"),
              ElementsAre(testing::StartsWith("the smallest bandwidth of the matrix is read as 10 kB/s")));
  EXPECT_THAT(of_matrix("[[0, 1], [1, 0]]", "[[0, 8], [800000, 0]]"),
              ElementsAre(testing::StartsWith("the largest bandwidth of the matrix is read as 100 TB/s")));
  EXPECT_THAT(of_matrix("[[0, 1], [1, 0]]", "[[0, 0.00008], [0.00008, 0]]"), testing::SizeIs(2));
}

}  // namespace
}  // namespace motley
