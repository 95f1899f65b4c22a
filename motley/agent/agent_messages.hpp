// What a driver and the agents of its deployment's machines say to each other. A connection is opened by the agent
// (control_listener.hpp), whose LinkHello names the machine and has "VERSION RUN" as its word: the program's version,
// and a number that tells this agent from an earlier one that is not known to be gone.
//
// Order: the agent sends AgentReport; the driver sends Weights, and from then on StartWorker, FetchWeights and
// EndWorker as plans change; the agent answers with Fetched, WorkerStarted, WorkerEnded and ProbedLinks. It tells which
// of its devices cannot be used (DeviceState). Agents tell which chunks of weights they hold (HeldChunks), and are told
// who else holds which (WeightsSources). Both send Alive when they have nothing else to say. Leave of an agent and End
// of a driver are the last message on a connection.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "motley/checkpoint/manifest.hpp"

namespace motley {

constexpr double agent_alive_every_s = 0.5;

constexpr std::size_t max_members = 1024;
constexpr std::size_t max_offered_devices = 64;                // of one member
constexpr std::size_t max_held_ranges = std::size_t{1} << 16;  // of one member

constexpr const char* agents_service = "agents";
constexpr const char* weights_service = "weights";

// From a device's memory to that in another slot.
struct PeerLink {
  std::int32_t slot = 0;
  double latency_s = 0;
  double bytes_per_s = 0;
  bool operator==(const PeerLink&) const = default;
};

// One device of a machine: that of slot n is called MACHINE/n. Slots may be empty.
struct OfferedDevice {
  std::string kind;  // as a type of device: "AMD EPYC 7B13", "NVIDIA RTX A6000"
  std::int64_t memory_bytes = 0;
  double bytes_per_s = 0;  // of memory, read by all threads; 0 of a GPU: as the catalogue has it
  double flop_per_s = 0;   // fp32; of a GPU bf16, or 0 where its memory's rate is
  std::int32_t threads = 1;
  std::int32_t slot = 0;
  std::string vendor = "cpu";
  std::string backend = "cpu";   // of its worker; the driver does not choose it
  std::string uuid = {};         // of a GPU, which its worker alone sees
  std::int64_t total_bytes = 0;  // of a GPU's memory,
  std::int64_t free_bytes = 0;   // and what of it was free when the agent started
  std::int32_t kernels = 0;      // version of motley's own for it; 0: LibTorch's alone
  std::string rates = {};        // of a GPU, as they were measured (gpu_rates.hpp); empty: as the catalogue has them
  BoundedList<PeerLink, max_offered_devices> peers = {};  // as they were measured
  bool operator==(const OfferedDevice&) const = default;
};
std::string device_name(const std::string& machine, const OfferedDevice& device);

struct AgentReport {
  BoundedList<OfferedDevice, max_offered_devices> devices;
  std::string fabric_address = {};   // where it takes connections of other agents, to measure links
  std::string weights_address = {};  // where it takes connections to the service `weights`; empty: nowhere
  bool operator==(const AgentReport&) const = default;
};

// The model's weights: what the agent may ask the service `weights` for.
struct Weights {
  ModelManifest manifest;
  bool operator==(const Weights&) const = default;
};

// All that an agent holds of the weights, for others to fetch. It replaces what the agent told before.
struct HeldChunks {
  BoundedList<ChunkRange, max_held_ranges> chunks;  // in order
  bool operator==(const HeldChunks&) const = default;
};

// All other members that are there, whether they hold anything or not: an agent answers them alone. It replaces what
// was told before.
struct WeightsSource {
  std::string name, address;  // as AgentReport::weights_address
  BoundedList<ChunkRange, max_held_ranges> chunks;
  bool operator==(const WeightsSource&) const = default;
};
struct WeightsSources {
  BoundedList<WeightsSource, max_members> sources;
  bool operator==(const WeightsSources&) const = default;
};

// A member from which this agent does not take weights any more, or not for a while.
struct BadSource {
  std::string name, cause;
  bool operator==(const BadSource&) const = default;
};

// All that are named measure the links between them.
struct ProbeMember {
  std::string name, fabric_address;
  bool operator==(const ProbeMember&) const = default;
};
struct ProbeLinks {
  std::uint64_t number = 0;  // of this probe; never used again
  double seconds = 0;        // of traffic, about
  BoundedList<ProbeMember, max_members> members;
  bool operator==(const ProbeLinks&) const = default;
};
// From one to another of them, by their places.
struct ProbedLink {
  std::uint32_t from = 0, to = 0;
  double latency_s = 0;  // one way
  double bytes_per_s = 0;
  bool operator==(const ProbedLink&) const = default;
};
// The first of them knows all links, the others that they are done.
struct ProbedLinks {
  std::uint64_t number = 0;
  BoundedList<ProbedLink, max_members * max_members> links;
  std::string failure;  // where it is not empty: there are no links
  bool operator==(const ProbedLinks&) const = default;
};

// An earlier worker of the device ends first.
struct StartWorker {
  std::string device;
  std::uint64_t start = 0;                       // its number, by which worker and agent name it: never used again
  BoundedList<ChunkId, max_file_chunks> chunks;  // that it reads
  bool operator==(const StartWorker&) const = default;
};
// For a worker that runs and is to be launched with another part of the model.
struct FetchWeights {
  std::string device;
  std::uint64_t start = 0;                       // a number of its own
  BoundedList<ChunkId, max_file_chunks> chunks;  // that it reads then
  bool operator==(const FetchWeights&) const = default;
};
struct EndWorker {
  std::string device;
  std::uint64_t start = 0;
  bool operator==(const EndWorker&) const = default;
};

struct FetchedFrom {
  std::string source;  // the name of a member; empty: the driver
  std::uint64_t bytes = 0;
  bool operator==(const FetchedFrom&) const = default;
};

// Of the chunks of a worker that is to start or to be launched again.
struct Fetched {
  std::string device;
  std::uint64_t start = 0;
  std::uint64_t bytes = 0, of_bytes = 0;
  BoundedList<FetchedFrom, max_members> from = {};  // where they came from
  bool operator==(const Fetched&) const = default;
};

struct WorkerStarted {
  std::string device;
  std::uint64_t start = 0;
  std::int32_t process = 0;
  bool operator==(const WorkerStarted&) const = default;
};

// Or could not be started; or its chunks for another launch could not be fetched.
struct WorkerEnded {
  std::string device;
  std::uint64_t start = 0;
  std::int32_t signal = 0;  // 0: by itself,
  std::int32_t code = 0;    // with this exit code
  std::string cause;        // what is known beyond that
  bool operator==(const WorkerEnded&) const = default;
};

// A device cannot be used any more, or can again; the same again where the agent connects again. Until then it is not
// planned with, and no worker starts there.
struct DeviceState {
  std::string device;
  std::string cause;  // why it is out of service; empty: it is in service
  bool operator==(const DeviceState&) const = default;
};

struct AgentAlive {
  bool operator==(const AgentAlive&) const = default;
};
struct Leave {
  bool operator==(const Leave&) const = default;
};
struct End {
  bool operator==(const End&) const = default;
};

using AgentMessage =
    std::variant<AgentReport, Weights, StartWorker, EndWorker, Fetched, WorkerStarted, WorkerEnded, ProbeLinks,
                 ProbedLinks, AgentAlive, Leave, End, FetchWeights, HeldChunks, WeightsSources, BadSource, DeviceState>;

// On a connection to the service `weights`, of the driver or of an agent: the caller asks, the answer is the chunk's
// bytes, or nothing where it is not there or cannot be read.
struct ChunkRequest {
  ChunkId id;
  bool operator==(const ChunkRequest&) const = default;
};

constexpr std::size_t max_chunk_request_bytes = 1024;
constexpr std::size_t max_agent_message_bytes = std::size_t{64} << 20;
constexpr std::size_t max_agent_news_bytes = std::size_t{32} << 20;  // in a message to the driver: of all links

// Little-endian binary. Encoding throws a limit error where a message exceeds the maxima; decoding believes no length
// and throws a peer error on anything malformed.
std::string encode_agent(const AgentMessage& message);
AgentMessage decode_agent(std::string_view bytes);
std::string encode_request(const ChunkRequest& request);
ChunkRequest decode_request(std::string_view bytes);

}  // namespace motley
