#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <filesystem>

#include "motley/base/cost_test.hpp"
#include "motley/base/reference_test.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/cluster/write_cluster.hpp"

namespace motley {
namespace {

Cluster cluster_of(const std::string& toml) {
  return resolve(read<ClusterDescription>(parse_toml("format = \"motley.cluster/1\"\n" + toml, "c.toml"), "c.toml"),
                 "c.toml");
}

void expect_same(const Cluster& a, const Cluster& b) {
  EXPECT_EQ(a.description, b.description);
  EXPECT_EQ(a.types, b.types);
  EXPECT_EQ(a.machines, b.machines);
  EXPECT_EQ(a.devices, b.devices);
}

TEST(Cluster, ExamplesAreReadAndWrittenBack) {
  const std::map<std::string, std::size_t> devices = {
      {"clusters/motivating-box.toml", 8}, {"clusters/t4.toml", 1},        {"clusters/two-sites.toml", 40},
      {"clusters/desk.toml", 1},           {"clusters/two-cards.toml", 2}, {"clusters/mixed-cloud.toml", 24},
      {"garage/cluster.toml", 6},          {"garage/one-device.toml", 1}};
  const std::filesystem::path examples = MOTLEY_SOURCE_DIR "/examples";
  for (const auto& [file, count] : devices) {
    SCOPED_TRACE(file);
    const Cluster cluster = read_cluster(examples / file);
    EXPECT_EQ(cluster.devices.size(), count);
    const std::string written = to_json(write(cluster.description), 2);
    const Cluster back = resolve(read<ClusterDescription>(parse_json(written, "x"), "x"), "x");
    expect_same(cluster, back);
    EXPECT_EQ(to_json(write(back.description), 2), written);
  }
  for (const auto& entry : std::filesystem::directory_iterator(examples / "clusters"))
    EXPECT_TRUE(devices.contains("clusters/" + entry.path().filename().string())) << entry.path() << " is not tested";
}

TEST(Cluster, DevicesHaveTheTiersOfTheirMachine) {
  const MemoryTiers desk = tiers_of(read_cluster(MOTLEY_SOURCE_DIR "/examples/clusters/desk.toml"), 0);
  EXPECT_EQ(desk.host_bytes, std::int64_t{64} << 30);
  EXPECT_EQ(desk.disk->both_bytes_per_s, 8e9);
  EXPECT_EQ(desk.host.upload_bytes_per_s, 12e9);
  EXPECT_FALSE(desk.is_processor);

  const MemoryTiers processor = tiers_of(cluster_of(R"(
[[machine]]
name = "box"
devices = ["cores"]
host_memory = "8 GiB"
host = { upload = "3 GB/s" }
[[device_type]]
name = "cores"
vendor = "cpu"
memory = "1 GiB"
memory_bandwidth = "10 GB/s"
flops = { fp32 = "100 GFLOP/s" }
efficiency = { compute = 0.5, bandwidth = 0.8 }
)"),
                                         0);
  EXPECT_TRUE(processor.is_processor);
  EXPECT_FALSE(processor.disk);
  EXPECT_EQ(
      processor.host,
      (HostRates{
          .upload_bytes_per_s = 3e9, .download_bytes_per_s = 3e9, .bandwidth_bytes_per_s = 8e9, .flop_per_s = 50e9}));
}

TEST(Cluster, TwoSitesAreResolved) {
  const Cluster cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/clusters/two-sites.toml");
  ASSERT_EQ(cluster.machines.size(), 5u);
  EXPECT_EQ(cluster.machines[0].site, "home");
  EXPECT_EQ(cluster.machines[4].name, "lab-3");
  EXPECT_EQ(cluster.machines[4].description, 1);
  ASSERT_EQ(cluster.types.size(), 4u);
  EXPECT_EQ(cluster.types[2].name, "A4000");
  EXPECT_EQ(cluster.type_of(cluster.find_device("box/7")).name, "A4000");
  EXPECT_EQ(cluster.type_of(cluster.find_device("lab-3/7")).name, "RTX 4090");
  EXPECT_EQ(cluster.machines[2].devices.front(), cluster.find_device("lab-1/0"));
  EXPECT_EQ(cluster.description.machines[0].disk->read_bytes_per_s, 2e9);
  EXPECT_EQ(cluster.description.machines[1].reduction->add_s_per_byte, 1e-10);
  EXPECT_EQ(cluster.description.switches[0].ports[0].speed.bandwidth_bytes_per_s, 1.25e9);
  EXPECT_EQ(cluster.description.switches[0].incast->cost_s_per_byte, 5e-11);
}

TEST(Cluster, FindsDevicesAndSuggests) {
  const Cluster cluster = cluster_of("[[machine]]\nname=\"box\"\ndevices=[\"A6000*2\"]");
  EXPECT_EQ(cluster.find_device("box/1"), 1);
  try {
    cluster.find_device("boks/1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the cluster has no device \"boks/1\"");
    EXPECT_EQ(error.hint(), "did you mean \"box/1\"?");
  }
}

TEST(Cluster, OneFigureOverridesTheCatalogue) {
  const Cluster cluster = cluster_of(R"(
[[machine]]
name = "box"
devices = ["RTX A4000", "A4000", "L4"]
[[device_type]]
name = "NVIDIA RTX A4000"
memory = "15 GiB"
flops = { fp32 = "19 TFLOP/s" }
efficiency = { compute = 0.5, attention_compute = 0.3, attention_bandwidth = 0.6 }
overhead = { layer = "7 us", step = "90 us" }
reserve = "0 B"
price = "0.4 $/h"
)");
  ASSERT_EQ(cluster.types.size(), 2u);
  const DeviceType& type = cluster.types[0];
  EXPECT_EQ(type.name, "A4000");
  EXPECT_EQ(type.vendor, "nvidia");
  EXPECT_EQ(type.memory_bytes, 15LL << 30);
  EXPECT_EQ(type.memory_bandwidth_bytes_per_s, 448e9);
  EXPECT_EQ(type.flop_per_s, (std::map<std::string, double>{{"bf16", 76.7e12}, {"fp16", 76.7e12}, {"fp32", 19e12}}));
  EXPECT_EQ(type.efficiency, (Efficiency{0.5, 0.75, 0.3, 0.6, 0.59, 0, false, Basis::generation}));
  EXPECT_EQ(type.overhead, (Overhead{7 * 1e-6, 90 * 1e-6}));
  EXPECT_EQ(type.reserve_bytes, 0);
  EXPECT_EQ(type.usd_per_hour, 0.4);
  EXPECT_EQ(cluster.types[1].reserve_bytes, 1LL << 30);
  EXPECT_EQ(cluster.description.device_types, cluster.types);
}

TEST(Cluster, ACompleteEntryStandsAlone) {
  const Cluster cluster = cluster_of(R"(
[[machine]]
name = "box"
devices = ["A4000"]
[[device_type]]
name = "A4000"
vendor = "nvidia"
memory = "15 GiB"
memory_bandwidth = "400 GB/s"
flops = { fp32 = "19 TFLOP/s" }
efficiency = { compute = 0.5, bandwidth = 0.7 }
reserve = "2 GiB"
)");
  EXPECT_EQ(cluster.types[0].flop_per_s, (std::map<std::string, double>{{"fp32", 19e12}}));
  EXPECT_EQ(cluster.types[0].usd_per_hour, 0);
}

TEST(Cluster, ASlotMayBeEmpty) {
  const Cluster cluster = cluster_of(R"(
[[machine]]
name = "box"
devices = ["A4000", "empty*2", "A6000"]
)");
  ASSERT_EQ(cluster.devices.size(), 2u);
  EXPECT_EQ(cluster.devices[0].name, "box/0");
  EXPECT_EQ(cluster.devices[1].name, "box/3");
  EXPECT_EQ(cluster.machines[0].devices, (std::vector<int>{0, 1}));
  EXPECT_EQ(cluster.type_of(1).name, "A6000");
  EXPECT_THROW(cluster_of("[[machine]]\nname = \"box\"\ndevices = [\"empty*2\"]"), Error);
}

TEST(Cluster, NewTypesTakeDefaults) {
  const Cluster cluster = cluster_of(R"(
[[machine]]
name = "box"
devices = ["my chip*2", "core"]
[[device_type]]
name = "my chip"
memory = "2 GiB"
memory_bandwidth = "100 GB/s"
flops = { bf16 = "1 TFLOP/s" }
[[device_type]]
name = "core"
vendor = "cpu"
memory = "8 MiB"
memory_bandwidth = "10 GB/s"
flops = { fp32 = "1 GFLOP/s" }
)");
  EXPECT_EQ(cluster.types[0].reserve_bytes, 1LL << 30);
  EXPECT_EQ(cluster.types[0].efficiency, (Efficiency{.compute = 0.60, .bandwidth = 0.80, .basis = Basis::guess}));
  EXPECT_EQ(cluster.types[1].reserve_bytes, 0);
}

// ---- errors ----

struct BadFile {
  std::string toml;
  std::string what;
  std::string hint;
};

void expect_error(const std::string& toml, const std::string& what, const std::string& hint) {
  SCOPED_TRACE(toml);
  const auto path =
      std::filesystem::temp_directory_path() / ("motley_cluster_test_" + std::to_string(::getpid()) + ".toml");
  write_file(path, toml);
  std::string found = "no error", found_hint;
  try {
    read_cluster(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    found = error.what();
    found_hint = error.hint();
  }
  std::filesystem::remove(path);
  const std::string name = path.string();
  for (auto at = found.find(name); at != std::string::npos; at = found.find(name))
    found.replace(at, name.size(), "c.toml");
  EXPECT_EQ(found, what);
  EXPECT_EQ(found_hint.substr(0, hint.size()), hint);
  EXPECT_FALSE(found_hint.empty());
}

const std::string box = R"(format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["A6000*2"]
)";
const std::string two = R"(format = "motley.cluster/1"
machine = [{name = "a", count = 2, site = "home", devices = ["A6000"]}, {name = "b", site = "work", devices = ["A6000"]}]
)";

TEST(Cluster, ErrorsNamePlaceCauseAndFix) {
  const BadFile cases[] = {
      {"name = \"x\"", "c.toml:1: `format` is missing", "write format = \"motley.cluster/1\" at the top"},
      {"format = \"motley.cluster/2\"", "c.toml:1: format: version \"motley.cluster/2\" is not supported",
       "give a file with format"},
      {"format = \"motley.cluster/1\"", "c.toml:1: `machine` is missing", "Machines; their order"},
      {"format = \"motley.cluster/1\"\nmachine = []", "c.toml:1: the cluster has no machine", "add a [[machine]]"},
      {box + "[[machine]]\nname = \"c\"\ndevises = []", "c.toml:7: machine[1].devises: unknown key",
       "did you mean `devices`?"},
      {box + "[[machine]]\nname = \"c\"", "c.toml:5: machine[1]: `devices` is missing", "Types in slot order"},
      {box + "[[machine]]\nname = \"c\"\ndevices = []",
       "c.toml:7: machine[1].devices: a machine needs at least one device", "give its devices, as in devices"},
      {box + "[[machine]]\nname = \"a/b\"\ndevices = [\"L4\"]",
       "c.toml:6: machine[1].name: a name must have letters, digits, `.`, `-` and `_` only, found \"a/b\"",
       "choose another name"},
      {box + "[[machine]]\nname = \"box\"\ndevices = [\"L4\"]",
       "c.toml:6: machine[1].name: machine \"box\" is described twice", "give machines unique names"},
      {box + "[[machine]]\nname = \"c\"\ncount = 0\ndevices = [\"L4\"]",
       "c.toml:7: machine[1].count: 0 is out of range", "accepted: at least 1"},
      {box + "[[machine]]\nname = \"c\"\ncount = 1000\ndevices = [\"L4*1000\"]",
       "c.toml:5: machine[1]: the cluster must have at most 100000 devices", "reduce `count`"},
      {box + "[[machine]]\nname = \"c\"\ndevices = [\n\"L4\",\n\"A600\"]",
       "c.toml:9: machine[1].devices[1]: device type \"A600\" is unknown",
       "describe it, with its data sheet's figures:\n\n[[device_type]]\nname = \"A600\""},
      {box + "[[machine]]\nname = \"c\"\ndevices = [\"RTX 4900\"]",
       "c.toml:7: machine[1].devices[0]: device type \"RTX 4900\" is unknown",
       "did you mean \"RTX 4090\"? Otherwise describe it"},
      {box + "[[machine]]\nname = \"c\"\ndevices = [\"warp drive\"]",
       "c.toml:7: machine[1].devices[0]: device type \"warp drive\" is unknown", "describe it, with"},
      {box + "[[machine]]\nname = \"c\"\ndevices = [\"L4*x\"]",
       "c.toml:7: machine[1].devices[0]: \"L4*x\" needs a count after the `*`", "write \"A6000*4\""},
      {box + "[[machine]]\nname = \"c\"\ndevices = [\"L4*0\"]",
       "c.toml:7: machine[1].devices[0]: \"L4*0\" needs a count after the `*`", "write \"A6000*4\""},
      {box + "[[machine]]\nname = \"c\"\ndevices = [\"L4*2x\"]",
       "c.toml:7: machine[1].devices[0]: \"L4*2x\" needs a count after the `*`", "write \"A6000*4\""},
      {box + "[[machine]]\nname = \"c\"\ndevices = [\"L4*9000000000000000000\"]",
       "c.toml:7: machine[1].devices[0]: \"L4*9000000000000000000\" needs a count after the `*`", "write"},
      {box + "[[machine]]\nname = \"c\"\ndevices = [\"*4\"]",
       "c.toml:7: machine[1].devices[0]: \"*4\" needs a device type", "write \"A6000*4\""},
      {box + "link = { latency = \"5 us\" }", "c.toml:5: machine[0].link: `bandwidth` is missing", "give bandwidth"},
      {box + "link = { latency = \"5 us\", bandwidth_up = \"1 GB/s\" }",
       "c.toml:5: machine[0].link: `bandwidth` is missing", "give bandwidth"},
      {box + "link = { latency = 5, bandwidth = \"1 GB/s\" }",
       "c.toml:5: machine[0].link.latency: a number needs its unit", "write it as a string such as \"5 us\""},
      {box + "link = { latency = \"5 us\", bandwidth = \"0 GB/s\" }",
       "c.toml:5: machine[0].link.bandwidth: 0 B/s is out of range", "accepted: above 0"},
      {box + "link = { latency = \"5 GB\", bandwidth = \"1 GB/s\" }",
       "c.toml:5: machine[0].link.latency: \"5 GB\" has a wrong unit, \"GB\"", "write it as"},
      {box + "[[device_type]]\nname = \"A400\"\nmemory = \"1 GiB\"",
       "c.toml:5: device_type[0]: \"A400\" is not in the catalogue, so `memory_bandwidth` must be given",
       "describe it, with its data sheet's figures"},
      {box + "[[device_type]]\nname = \"gizmo\"\nmemory = \"1 GiB\"\nmemory_bandwidth = \"1 GB/s\"",
       "c.toml:5: device_type[0]: \"gizmo\" is not in the catalogue, so `flops` must be given",
       "describe it, with its data sheet's figures"},
      {box + "[[device_type]]\nname = \"A6000\"\nvendor = \"nvdia\"",
       "c.toml:7: device_type[0].vendor: \"nvdia\" is not one of nvidia, amd, intel, huawei, apple, cpu",
       "did you mean \"nvidia\"?"},
      {box + "[[device_type]]\nname = \"A6000\"\nflops = { fp17 = \"1 TFLOP/s\" }",
       "c.toml:7: device_type[0].flops.fp17: unknown key", "did you mean `fp16`?"},
      {box + "[[device_type]]\nname = \"A6000\"\nflops = { fp16 = \"1 TB/s\" }",
       "c.toml:7: device_type[0].flops.fp16: \"1 TB/s\" has a wrong unit, \"TB/s\"", "write it as"},
      {box + "[[device_type]]\nname = \"A6000\"\nefficiency = { compute = 1.5 }",
       "c.toml:7: device_type[0].efficiency.compute: 1.5 is out of range", "accepted: above 0, at most 1"},
      {box + "[[device_type]]\nname = \"A6000\"\nreserve = \"48 GiB\"",
       "c.toml:5: device_type[0]: \"A6000\" reserves 48.0 GiB of its 48.0 GiB of memory: nothing is left",
       "give a smaller"},
      {box + "[[device_type]]\nname = \"A6000\"\n[[device_type]]\nname = \"RTX A6000\"",
       "c.toml:7: device_type[1]: device type \"A6000\" is described twice", "put all"},
      {two + "[[link]]\nbetween = [\"home\", \"wrok\"]\nlatency = \"1 ms\"\nbandwidth = \"1 GB/s\"",
       "c.toml:4: link[0].between[1]: \"wrok\" is neither a machine nor a site", "did you mean \"work\"?"},
      {two + "[[link]]\nbetween = [\"a\", \"b\"]\nlatency = \"1 ms\"\nbandwidth = \"1 GB/s\"",
       "c.toml:4: link[0].between[0]: \"a\" is neither a machine nor a site", "its 2 copies are called a-0 to a-1"},
      {two + "[[link]]\nbetween = [\"home\"]\nlatency = \"1 ms\"\nbandwidth = \"1 GB/s\"",
       "c.toml:4: link[0].between: a link needs two names, found 1", "write both, as in between"},
      {two + "[[link]]\nbetween = [\"home\", \"b\"]\nlatency = \"1 ms\"\nbandwidth = \"1 GB/s\"",
       "c.toml:4: link[0].between: \"home\" is a site, \"b\" is a machine", "give two"},
      {two + "[[link]]\nbetween = [\"b\", \"b\"]\nlatency = \"1 ms\"\nbandwidth = \"1 GB/s\"",
       "c.toml:4: link[0].between: \"b\" is named twice", "describe links inside"},
      {two + "link = [{between = [\"home\", \"work\"], latency = \"1 ms\", bandwidth = \"1 GB/s\"}, {between = "
             "[\"work\", \"home\"], latency = \"1 ms\", bandwidth = \"1 GB/s\"}]",
       "c.toml:3: link[1].between: the link between \"work\" and \"home\" is described twice", "use bandwidth_up"},
      {box + "site = \"box\"\n[[link]]\nbetween = [\"box\", \"box\"]\nlatency = \"1 ms\"\nbandwidth = \"1 GB/s\"",
       "c.toml:7: link[0].between[0]: \"box\" is both a machine and a site", "give one"},
      {two + "[[link]]\nbetween = [\"home\", \"work\"]\nlatency = \"1 ms\"\nbandwith = \"1 GB/s\"",
       "c.toml:6: link[0].bandwith: unknown key", "did you mean `bandwidth`?"},
      {two + "[[link]]\nbetween = [\"home\", \"work\"]\nlatency = \"1 ms\"",
       "c.toml:3: link[0]: `bandwidth` is missing", "give bandwidth"},
      {box + "[network.matrix]\nlatency_ms = [[0, 1]]\nbandwidth_gbit_s = [[0, 1], [1, 0]]",
       "c.toml:6: network.matrix.latency_ms: 1 rows for 2 devices", "give one row"},
      {box + "[network.matrix]\nlatency_ms = [[0, 1], [1]]\nbandwidth_gbit_s = [[0, 1], [1, 0]]",
       "c.toml:6: network.matrix.latency_ms[1]: 1 columns for 2 devices", "give one row"},
      {box + "[network.matrix]\nlatency_ms = [[0, 1], [1, 0]]\nbandwidth_gbit_s = [[0, 1]]",
       "c.toml:7: network.matrix.bandwidth_gbit_s: 1 rows for 2 devices", "give one row"},
      {box + "[network.matrix]\nlatency_ms = [[0, -1], [1, 0]]\nbandwidth_gbit_s = [[0, 1], [1, 0]]",
       "c.toml:6: network.matrix.latency_ms[0][1]: -1 is out of range", "accepted: at least 0"},
      {box + "[network.matrix]\nlatency_ms = [[0, 1], [1, 0]]\nbandwidth_gbit_s = [[0, 0], [1, 0]]",
       "c.toml:7: network.matrix.bandwidth_gbit_s[0][1]: 0 is out of range", "accepted: above 0"},
      {box + "[network.matrix]\nlatency_ms = [[0, 1], [1, 0]]",
       "c.toml:5: network.matrix: `bandwidth_gbit_s` is missing", "Gbit/s"},
      {box + "[[switch]]\nname = \"s\"\nports = [{hosts = [\"bax\"], latency = \"1 us\", bandwidth = \"1 GB/s\"}]",
       "c.toml:7: switch[0].ports[0].hosts[0]: \"bax\" is not a machine", "did you mean \"box\"?"},
      {box + "switch = [{name = \"s\"}, {name = \"s\"}]", "c.toml:5: machine[0].switch: unknown key",
       "known keys: name"},
      {two + "switch = [{name = \"s\"}, {name = \"s\"}]", "c.toml:3: switch[1].name: switch \"s\" is described twice",
       "give unique names"},
      {two + "switch = [{name = \"s\"}, {name = \"t\"}]",
       "c.toml:3: switch[1]: the switches have two roots, \"s\" and \"t\"", "did you mean \"s\"?"},
      {two + "switch = [{name = \"left\", uplink = {to = \"right\", latency = \"0 s\", bandwidth = \"1 GB/s\"}}, {name "
             "= \"right\", uplink = {to = \"left\", latency = \"0 s\", bandwidth = \"1 GB/s\"}}]",
       "c.toml:3: switch[0].uplink: the uplinks from \"left\" form a cycle", "remove the uplink of the root"},
      {two +
           "switch = [{name = \"s\", ports = [{hosts = [\"b\", \"b\"], latency = \"1 us\", bandwidth = \"1 GB/s\"}]}]",
       "c.toml:3: switch[0].ports[0].hosts[1]: \"b\" already has a port of switch \"s\"",
       "put each machine below one switch"},
  };
  for (const auto& [toml, what, hint] : cases) expect_error(toml, what, hint);
}

// ---- matrices ----

class MatrixFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::temp_directory_path() / ("motley_matrix_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    write_file(folder / "c.toml",
               box + "[network.matrix]\nlatency_ms = \"delay.csv\"\nbandwidth_gbit_s = \"bandwidth.csv\"\n");
    write_file(folder / "delay.csv", "-, 0.3\r\n\r\n12.7,0\r\n");
    write_file(folder / "bandwidth.csv", "0,8\n0.7,0");
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::filesystem::path folder;
};

TEST_F(MatrixFiles, AreReadInPlaceAndCarriedAlong) {
  const Cluster cluster = read_cluster(folder / "c.toml");
  EXPECT_EQ(cluster.link(0, 1), (PathSpeed{0.3 * 1e-3, 1e9}));
  EXPECT_EQ(cluster.link(1, 0), (PathSpeed{12.7 * 1e-3, 0.7 * 0.125e9}));
  const std::string written = to_json(write(cluster.description));
  EXPECT_NE(written.find("\"latency_ms\":[[0.0,0.3],[12.7,0.0]]"), std::string::npos) << written;
  EXPECT_EQ(read<ClusterDescription>(parse_json(written, "x"), "x"), cluster.description);
}

TEST_F(MatrixFiles, ErrorsNameTheFile) {
  write_file(folder / "delay.csv", "0,1\nx1,0");
  try {
    read_cluster(folder / "c.toml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), (folder / "delay.csv").string() + ":2: column 1: \"x1\" is not a number");
  }
  std::filesystem::remove(folder / "delay.csv");
  try {
    read_cluster(folder / "c.toml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), (folder / "delay.csv").string() + ": cannot be read (No such file or directory)");
  }
}

TEST(Cluster, AFileNameInAnEmbeddedDescriptionIsRefused) {
  try {
    cluster_of(
        "[[machine]]\nname=\"box\"\ndevices=[\"A6000*2\"]\n[network.matrix]\nlatency_ms = \"x.csv\"\nbandwidth_gbit_s "
        "= \"y.csv\"");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "c.toml:6: network.matrix.latency_ms: expected a list of lists of numbers, found a string");
  }
}

// Whatever a file says, writing and reading it again changes nothing.
TEST(Cluster, NumbersSurviveWritingAndReading) {
  EXPECT_TRUE(rc::check("matrices and speeds", [] {
    const auto positive = [] {
      return static_cast<double>(*rc::gen::inRange<std::int64_t>(1, 1LL << 40)) /
             *rc::gen::element(1.0, 3.0, 7.0, 1e3, 1e6, 1e9);
    };
    Value machine = Value::object({{"name", "box"}, {"devices", Value::array({"A6000*2"})}});
    Value matrix = Value::object(
        {{"latency_ms", Value::array({Value::array({0, positive()}), Value::array({positive(), 0})})},
         {"bandwidth_gbit_s", Value::array({Value::array({0, positive()}), Value::array({positive(), 0})})}});
    Value speed = Value::object({{"latency", format_quantity(positive(), Dimension::seconds)},
                                 {"bandwidth", format_quantity(positive(), Dimension::bytes_per_s)}});
    const Value document = Value::object({{"format", "motley.cluster/1"},
                                          {"machine", Value::array({machine})},
                                          {"network", Value::object({{"within_machine", speed}, {"matrix", matrix}})}});
    const auto description = read<ClusterDescription>(document, "x");
    const std::string written = to_json(write(description));
    const auto back = read<ClusterDescription>(parse_json(written, "x"), "x");
    RC_ASSERT(back == description);
    RC_ASSERT(to_json(write(back)) == written);
  }));
}

TEST(Cluster, ReferenceIsCurrent) { expect_reference_is_current("cluster.md", schema<ClusterDescription>().doc()); }

// ---- writing ----

TEST(ClusterToml, IsReadBackAsItWas) {
  const std::filesystem::path examples = std::filesystem::path(MOTLEY_SOURCE_DIR) / "examples";
  for (const char* file :
       {"garage/cluster.toml", "clusters/two-sites.toml", "clusters/mixed-cloud.toml", "hexgen/full.toml"}) {
    const Cluster cluster = read_cluster(examples / file);
    const std::string toml = cluster_toml(cluster.description, "Two lines\nabove all.");
    EXPECT_TRUE(toml.starts_with("# Two lines\n# above all.\n"));
    EXPECT_EQ(read<ClusterDescription>(parse_toml(toml, file), file), cluster.description) << toml;
  }
}

TEST(ClusterToml, CarriesWhatAProbeMeasures) {
  ClusterDescription description =
      read_cluster(std::filesystem::path(MOTLEY_SOURCE_DIR) / "examples/garage/cluster.toml").description;
  description.device_types[0].efficiency = {
      .compute = 1, .bandwidth = 1, .attention_compute = 0.125, .attention_bandwidth = 0.25};
  description.device_types[0].overhead = Overhead{.layer_s = 31.4e-6, .step_s = 52.1e-6};
  description.driver = DriverCost{.step_s = 61e-6, .request_s = 0.5e-3};
  description.local = LocalHost{.cores = 2};
  const Cluster cluster =
      resolve(read<ClusterDescription>(parse_toml(cluster_toml(description, ""), "probed"), "probed"), "probed");
  EXPECT_EQ(cluster.description, description);
  EXPECT_EQ(cluster.types[0].overhead, description.device_types[0].overhead);
}

// Names of cards that no entry stands for, and the cards that were named in their place.
TEST(ClusterErrors, AnotherCardIsNotWhatWasMeant) {
  for (const std::string name : {"P40", "GTX 1070", "GTX 1080 Ti", "GTX 1660", "RTX 2070", "RTX 4060", "RTX 5060 Ti",
                                 "RTX 5070", "MI50", "Arc A770", "GB10", "M4", "M3 Pro"}) {
    try {
      const std::string text = "format = \"motley.cluster/1\"\n[[machine]]\nname = \"a\"\ndevices = [\"" + name + "\"]";
      resolve(read<ClusterDescription>(parse_toml(text, "c.toml"), "c.toml"), "c.toml");
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_TRUE(error.hint().starts_with("describe it")) << error.hint();
      // What is to be copied is enough.
      const std::string table = error.hint().substr(error.hint().find("[[device_type]]"));
      const std::string text =
          "format = \"motley.cluster/1\"\n[[machine]]\nname = \"a\"\ndevices = [\"" + name + "\"]\n";
      EXPECT_NO_THROW(resolve(read<ClusterDescription>(parse_toml(text + table, "c.toml"), "c.toml"), "c.toml"));
    }
  }
}

// Machines, links, types and switches by name: 16 times as many take about 16 times as long, not 256 times.
TEST(ClusterSize, WorkIsLinearInTheDescription) {
  const auto cost = [](int count) {
    std::string text = "format = \"motley.cluster/1\"\n";
    for (int i = 0; i < count; ++i)
      text += fmt::format(
          "[[device_type]]\nname = \"chip {0}\"\nmemory = \"8 GiB\"\nmemory_bandwidth = \"100 GB/s\"\n"
          "flops = {{ fp16 = \"1 TFLOP/s\" }}\n[[machine]]\nname = \"m{0}\"\ndevices = [\"chip {0}\"]\n"
          "[[link]]\nbetween = [\"m{0}\", \"m{1}\"]\nlatency = \"1 ms\"\nbandwidth = \"1 GB/s\"\n"
          "[[switch]]\nname = \"s{0}\"\nports = [{{ hosts = [\"m{0}\"], latency = \"1 us\", bandwidth = \"1 GB/s\" "
          "}}]\n{2}",
          i, (i + 1) % count,
          i + 1 < count
              ? fmt::format("uplink = {{ to = \"s{}\", latency = \"1 us\", bandwidth = \"1 GB/s\" }}\n", i + 1)
              : "");
    const auto description = read<ClusterDescription>(parse_toml(text, "c.toml"), "c.toml");
    return cost_of([&] { resolve(description, "c.toml"); });
  };
  const Cost small = cost(250), large = cost(4000);
  const double most_s = 80 * small.processor_s + 0.05;
  EXPECT_LT(least_processor_s(large, most_s, [&] { return cost(4000); }), most_s);
  EXPECT_LT(large.total_bytes, 32 * small.total_bytes);
}

}  // namespace
}  // namespace motley
