// What there is: devices, the machines and sites they stand in, the links between them.
//
// `ClusterDescription` is a cluster file as a person wrote it. `Cluster` is what everybody else works with: every
// device listed, every type resolved against the catalogue, every link answered.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"

namespace motley {

struct LinkSpeed {
  double latency_s = 0;                       // one way
  double bandwidth_bytes_per_s = 0;           // of the path
  double bandwidth_up_bytes_per_s = 0;        // where directions differ: from the first named (or the child) ...
  double bandwidth_down_bytes_per_s = 0;      // ... and back; 0: as `bandwidth`
  double per_flow_bandwidth_bytes_per_s = 0;  // of one stream; 0: as the path
  bool operator==(const LinkSpeed&) const = default;
};
Schema<LinkSpeed> schema_of(Bound<LinkSpeed>);

// What the shares of a device type rest on: the cluster file, a measurement of the type itself, measurements of its
// generation, or those of other cards.
enum class Basis { given, measured, generation, guess };
EnumNames<Basis> names_of(Bound<Basis>);

// 0: not given. resolve() fills in the catalogue's figures, or 0.60 and 0.80; attention is then as good as products.
struct Efficiency {
  double compute = 0;              // share of the peak FLOP/s that large products reach
  double bandwidth = 0;            // share of the peak memory bandwidth that streaming weights reaches
  double attention_compute = 0;    // the same of attention: many tokens of a prompt at once ...
  double attention_bandwidth = 0;  // ... and one token that reads the keys and values before it
  double quantised_bandwidth = 0;  // ... and that streaming quantised weights reaches; 0: 0.8 of `bandwidth`
  double elementwise = 0;          // of the peak memory bandwidth in norms, sums and activations; 0: part of `compute`
  bool in_turn = false;            // products do not compute while they read weights: the times add up
  Basis basis = Basis::given;
  bool operator==(const Efficiency&) const = default;
};

// Shares of the peaks that the parts of a training step reach. 0: not given; the cost form then uses those above.
struct TrainingShares {
  double products = 0;     // of the peak FLOP/s: matrix products of a micro-batch
  double attention = 0;    // of the peak FLOP/s: causal attention over whole sequences
  double elementwise = 0;  // of the peak memory bandwidth: norms, residual sums, activations, the loss
  Basis basis = Basis::given;
  bool operator==(const TrainingShares&) const = default;
};

// Time that the work does not explain: launches, scheduling, framing.
struct Overhead {
  double layer_s = 0;  // per layer and step
  double step_s = 0;   // per stage and step
  bool operator==(const Overhead&) const = default;
};

// Between a device's own memory and its host's. 0: not given; copies_of() fills them in.
struct CopyRates {
  double upload_bytes_per_s = 0;    // from the host's memory ...
  double download_bytes_per_s = 0;  // ... and back
  double latency_s = 0;             // of a copy: its launch, and the wait for its end
  bool operator==(const CopyRates&) const = default;
};
Schema<CopyRates> schema_of(Bound<CopyRates>);

// One kind of accelerator. In a cluster file only the name is required where the catalogue knows the rest.
struct DeviceType {
  std::string name;
  std::string vendor;  // nvidia, amd, intel, huawei, apple, cpu
  std::int64_t memory_bytes = 0;
  double memory_bandwidth_bytes_per_s = 0;
  std::map<std::string, double> flop_per_s;  // by data type: fp16, bf16, fp32, fp8, int8; dense, fp32 accumulation
  Efficiency efficiency;
  TrainingShares training = {};
  std::optional<Overhead> overhead;           // none: the cost form's
  CopyRates copies = {};                      // 0: its machine's, see HostRates
  std::optional<std::int64_t> reserve_bytes;  // kept free: context, workspace, fragmentation
  double usd_per_hour = 0;                    // 0: no price known
  bool operator==(const DeviceType&) const = default;
};
Schema<DeviceType> schema_of(Bound<DeviceType>);

struct Disk {
  std::int64_t capacity_bytes = 0;
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  double both_bytes_per_s = 0;  // read and written at once, together; 0: each direction has its own rate
  bool operator==(const Disk&) const = default;
};

// What a machine's own memory and processors do for its devices, as rates that are reached. 0: not given; tiers_of()
// fills them in.
struct HostRates {
  double upload_bytes_per_s = 0;     // from host memory to one device ...
  double download_bytes_per_s = 0;   // ... and back
  double bandwidth_bytes_per_s = 0;  // of host memory, shared by processors, devices and disk
  double flop_per_s = 0;             // of the host's processors together, fp32
  bool operator==(const HostRates&) const = default;
};

struct Reduction {
  double add_s_per_byte = 0;     // GenModel's gamma
  double access_s_per_byte = 0;  // GenModel's delta
  bool operator==(const Reduction&) const = default;
};

struct MachineDescription {
  std::string name;
  std::int64_t count = 1;            // n > 1: name-0 .. name-(n-1), alike
  std::string site;                  // empty: "default"
  std::vector<std::string> devices;  // "A6000*4", in slot order
  std::optional<LinkSpeed> link;     // inside the machine
  std::int64_t host_memory_bytes = 0;
  std::optional<Disk> disk;
  std::optional<HostRates> host;
  double usd_per_hour = 0;
  std::string address;
  std::optional<Reduction> reduction;
  bool operator==(const MachineDescription&) const = default;
};

struct NamedLink {
  std::vector<std::string> between;  // two machines or two sites
  LinkSpeed speed;
  bool operator==(const NamedLink&) const = default;
};

// Row = from, column = to, devices in cluster order; the diagonal is not read. Files are read in place, so that a
// description carries its numbers with it.
struct NetworkMatrix {
  std::vector<std::vector<double>> latency_s;
  std::vector<std::vector<double>> bandwidth_bytes_per_s;
  bool operator==(const NetworkMatrix&) const = default;
};

struct Network {
  std::optional<LinkSpeed> within_machine;
  std::optional<LinkSpeed> within_site;
  std::optional<LinkSpeed> between_sites;
  std::optional<NetworkMatrix> matrix;
  std::optional<Reduction> reduction;
  bool operator==(const Network&) const = default;
};

struct SwitchUplink {
  std::string to;
  LinkSpeed speed;
  bool operator==(const SwitchUplink&) const = default;
};
struct SwitchPort {
  std::vector<std::string> hosts;
  LinkSpeed speed;
  bool operator==(const SwitchPort&) const = default;
};
struct Incast {
  std::int64_t threshold = 0;
  double cost_s_per_byte = 0;
  bool operator==(const Incast&) const = default;
};
struct Switch {
  std::string name;
  std::optional<SwitchUplink> uplink;
  std::vector<SwitchPort> ports;
  std::optional<Incast> incast;
  bool operator==(const Switch&) const = default;
};

// Where requests enter and tokens come out. Described, it takes the place of the last stage's link to the first: tokens
// go from the last stage to its machine, and from there to the first stage.
struct DriverCost {
  std::string machine = {};  // empty: wherever a plan's first stage is, and the links to it are part of `step_s`
  double step_s = 0;         // from the last stage's answer to the start of the next step, without these links
  double request_s = 0;      // of a request, without its steps
  bool operator==(const DriverCost&) const = default;
};

// All devices are worker processes of one host.
struct LocalHost {
  std::int64_t cores = 0;  // that they share
  bool operator==(const LocalHost&) const = default;
};

struct ClusterDescription {
  std::string name;
  std::vector<MachineDescription> machines;
  std::vector<DeviceType> device_types;
  Network network;
  std::vector<NamedLink> links;
  std::vector<Switch> switches;
  std::optional<DriverCost> driver;
  std::optional<LocalHost> local;
  bool operator==(const ClusterDescription&) const = default;
};
Schema<ClusterDescription> schema_of(Bound<ClusterDescription>);

// ---- resolved ----

struct Device {
  std::string name;  // "box/0"
  int type = 0;      // index into Cluster::types
  int machine = 0;   // index into Cluster::machines
  bool operator==(const Device&) const = default;
};

struct Machine {
  std::string name;
  std::string site;
  int description = 0;  // index into ClusterDescription::machines
  std::vector<int> devices;
  bool through_host = false;  // some of them do not reach the others' memory
  bool operator==(const Machine&) const = default;
};

struct PathSpeed {
  double latency_s = 0;
  double bandwidth_bytes_per_s = 0;
  // Time for `bytes` to arrive: latency plus transfer.
  double seconds(double bytes) const { return latency_s + bytes / bandwidth_bytes_per_s; }
  bool operator==(const PathSpeed&) const = default;
};

struct Cluster {
  ClusterDescription description;  // with every used type written out, so that it needs no catalogue
  std::vector<DeviceType> types;   // only those that are used, complete
  std::vector<Machine> machines;
  std::vector<Device> devices;

  const DeviceType& type_of(int device) const {
    return types[static_cast<std::size_t>(devices[static_cast<std::size_t>(device)].type)];
  }
  // Index of a device by its name; throws an input error with a suggestion.
  int find_device(std::string_view name) const;
  // The most specific description wins: matrix, then [[link]], then the machine's own, then [network]. A link that
  // is not described is an input error that names both ends.
  PathSpeed link(int from, int to) const;
  // From the driver's machine to a device, and back: no time at all on the same machine, or where the description does
  // not say where the driver is.
  PathSpeed from_driver(int device) const;
  PathSpeed to_driver(int device) const;
  bool operator==(const Cluster&) const = default;
};
// Reads a description and resolves it; writes the description.
Schema<Cluster> schema_of(Bound<Cluster>);

// The catalogue compiled from data/devices.json; `name` may be a short name ("A6000"), an id ("a6000-48gb") or a full
// name.
const std::vector<DeviceType>& device_catalogue();
// nullptr where the name is unknown.
const DeviceType* find_in_catalogue(std::string_view name);

// What lies behind a device's own memory. All devices of a machine share it.
struct MemoryTiers {
  std::int64_t host_bytes = 0;  // 0: the description gives none
  std::optional<Disk> disk;     // `both_bytes_per_s` filled in
  HostRates host;               // complete
  bool is_processor = false;    // a worker on the host's processors: its own memory is part of the host's
  bool operator==(const MemoryTiers&) const = default;
};
// Where the description has no `host`: of a processor its type's bandwidth, FLOP/s, and copies at half that bandwidth;
// of an accelerator PCIe 3.0 x16 (12 GB/s each way), 40 GB/s of host memory and 0.5 TFLOP/s.
MemoryTiers tiers_of(const Cluster& cluster, int device);

// Complete: those of its type, then of its machine's host, then PCIe 3.0 x16 (12 GB/s each way) and 10 us. Nothing for
// a processor, whose memory is the host's.
std::optional<CopyRates> copies_of(const Cluster& cluster, int device);

// Completes types, lists devices, checks names and links. `source` stands in error messages.
Cluster resolve(ClusterDescription description, std::string source);

// "box" of the device "box/0".
std::string machine_of(const std::string& device);

Cluster read_cluster(const std::filesystem::path& path);

}  // namespace motley
