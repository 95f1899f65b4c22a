#include "motley/agent/messages.hpp"

#include "motley/comm/net/wire.hpp"

namespace motley {
namespace {

// A version byte is not needed: the hello tells which program the agent runs.
constexpr WireProtocol protocol{.max_bytes = max_agent_message_bytes};

constexpr std::size_t max_text_bytes = std::size_t{64} << 10;  // of a worker's failure, too
constexpr std::size_t max_devices = 64;
constexpr std::size_t max_files = 65536;
constexpr std::size_t max_chunks = std::size_t{1} << 20;  // 8 TiB

}  // namespace

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<OfferedDevice> m) {
  wire(m.kind, max_text_bytes);
  wire(m.memory_bytes);
  wire(m.bytes_per_s);
  wire(m.flop_per_s);
  wire(m.threads);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<AgentReport> m) {
  wire(m.devices, max_devices);
  wire(m.fabric_address, max_text_bytes);
  wire(m.weights_address, max_text_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ProbeMember> m) {
  wire(m.name, max_text_bytes);
  wire(m.fabric_address, max_text_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ProbeLinks> m) {
  wire(m.number);
  wire(m.seconds);
  wire(m.members, max_members);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ProbedLink> m) {
  wire(m.from);
  wire(m.to);
  wire(m.latency_s);
  wire(m.bytes_per_s);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ProbedLinks> m) {
  wire(m.number);
  wire(m.links, max_members * max_members);
  wire(m.failure, max_text_bytes);
}

// Digests one behind the other.
static void fields(WireWriter& wire, const ManifestFile& m) {
  wire(m.name, max_text_bytes);
  wire(m.bytes);
  wire(m.header_bytes);
  std::string digests;
  for (const ChunkDigest& digest : m.digests)
    digests.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  wire(digests, max_chunks * sizeof(ChunkDigest));
}
static void fields(WireReader& wire, ManifestFile& m) {
  wire(m.name, max_text_bytes);
  wire(m.bytes);
  wire(m.header_bytes);
  std::string digests;
  wire(digests, max_chunks * sizeof(ChunkDigest));
  if (digests.size() % sizeof(ChunkDigest) != 0) wire.malformed("a part of a digest");
  m.digests.resize(digests.size() / sizeof(ChunkDigest));
  for (std::size_t i = 0; i < m.digests.size(); ++i)
    std::memcpy(m.digests[i].data(), digests.data() + i * sizeof(ChunkDigest), sizeof(ChunkDigest));
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ModelManifest> m) {
  wire(m.opens, max_text_bytes);
  wire(m.files, max_files);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Weights> m) {
  wire(m.manifest);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ChunkId> m) {
  wire(m.file);
  wire(m.chunk);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ChunkRange> m) {
  wire(m.file);
  wire(m.first);
  wire(m.end);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<HeldChunks> m) {
  wire(m.chunks, max_held_ranges);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<WeightsSource> m) {
  wire(m.name, max_text_bytes);
  wire(m.address, max_text_bytes);
  wire(m.chunks, max_held_ranges);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<WeightsSources> m) {
  wire(m.sources, max_members);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<BadSource> m) {
  wire(m.name, max_text_bytes);
  wire(m.cause, max_text_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<StartWorker> m) {
  wire(m.device, max_text_bytes);
  wire(m.start);
  wire(m.chunks, max_chunks);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<FetchWeights> m) {
  wire(m.device, max_text_bytes);
  wire(m.start);
  wire(m.chunks, max_chunks);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<EndWorker> m) {
  wire(m.device, max_text_bytes);
  wire(m.start);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<FetchedFrom> m) {
  wire(m.source, max_text_bytes);
  wire(m.bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Fetched> m) {
  wire(m.device, max_text_bytes);
  wire(m.start);
  wire(m.bytes);
  wire(m.of_bytes);
  wire(m.from, max_members);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<WorkerStarted> m) {
  wire(m.device, max_text_bytes);
  wire(m.start);
  wire(m.process);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<WorkerEnded> m) {
  wire(m.device, max_text_bytes);
  wire(m.start);
  wire(m.signal);
  wire(m.code);
  wire(m.cause, max_text_bytes);
}

template <class Wire>
static void fields(Wire&, typename Wire::template Ref<AgentAlive>) {}
template <class Wire>
static void fields(Wire&, typename Wire::template Ref<Leave>) {}
template <class Wire>
static void fields(Wire&, typename Wire::template Ref<End>) {}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<ChunkRequest> m) {
  wire(m.id);
}

std::string encode_agent(const AgentMessage& message) { return encode_message(protocol, message); }
AgentMessage decode_agent(std::string_view bytes) { return decode_message<AgentMessage>(protocol, bytes); }
std::string encode_request(const ChunkRequest& request) { return encode_message(protocol, request); }
ChunkRequest decode_request(std::string_view bytes) { return decode_message<ChunkRequest>(protocol, bytes); }

}  // namespace motley
