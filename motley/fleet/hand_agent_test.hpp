// An agent that a test writes message by message.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "motley/base/version.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/deployment/told_lines_test.hpp"
#include "motley/fleet/agent_machines.hpp"
#include "motley/workers/control_listener.hpp"
#include "motley/workers/launch.hpp"

namespace motley {

inline const RelayAccess with_secret{.key = "secret", .identity = {}};
inline const std::string this_version(version());
inline const OfferedDevice some_device{"toy", 1 << 20, 1e9, 1e9, 2};
inline std::vector<OfferedDevice> some_devices(std::size_t count) {
  std::vector<OfferedDevice> devices(count, some_device);
  for (std::size_t slot = 0; slot < count; ++slot) devices[slot].slot = static_cast<std::int32_t>(slot);
  return devices;
}

// Machines whose workers read these chunks.
struct FleetOfChunks final : Fleet {
  FleetOfChunks(AgentMachines& all, ChunksOf read) : machines(all), chunks(std::move(read)) {}
  std::unique_ptr<WorkerStart> begin(const std::vector<std::string>& starting, const std::vector<std::string>& running,
                                     const WorkerReads&) override {
    return machines.begin(starting, running, chunks);
  }
  bool is_here() const override { return false; }
  AgentMachines& machines;
  ChunksOf chunks;
};
inline Workers start_with_chunks(AgentMachines& machines, const ServePlan& plan, std::uint64_t epoch, ChunksOf chunks,
                                 Workers& earlier) {
  FleetOfChunks fleet(machines, std::move(chunks));
  Workers workers = start_workers(fleet, worker_devices(plan), {}, earlier);
  launch_workers(workers, plan, epoch);
  return workers;
}

// A machine's agent as far as its driver sees it.
class HandAgent {
 public:
  HandAgent(const AgentMachines& machines, const std::string& name, const std::string& run = "1",
            const std::string& of_version = this_version)
      : HandAgent(machines.address(), with_secret, name, run, of_version) {}
  HandAgent(const std::string& driver, const RelayAccess& access, const std::string& name, const std::string& run = "1",
            const std::string& of_version = this_version)
      : stream_(call_service(driver, hello(agents_service, name, of_version + " " + run), access, soon()),
                max_agent_message_bytes) {}

  static LinkHello hello(const std::string& service, const std::string& name, const std::string& word) {
    LinkHello hello;
    hello.group = service;
    hello.from_id = name;
    hello.word = word;
    return hello;
  }

  void send(const AgentMessage& message) { stream_.send(encode_agent(message), soon()); }
  void report(std::size_t devices = 1) { send(AgentReport{some_devices(devices)}); }
  // The next message that is more than a sign of life; none: the connection has ended.
  std::optional<AgentMessage> receive() {
    for (;;) {
      const auto bytes = stream_.receive(soon());
      if (!bytes) return std::nullopt;
      AgentMessage message = decode_agent(*bytes);
      if (!std::holds_alternative<AgentAlive>(message) && !std::holds_alternative<WeightsSources>(message))
        return message;
    }
  }
  // The next that tells who else holds which weights.
  WeightsSources receive_sources() {
    for (;;) {
      const auto bytes = stream_.receive(soon());
      if (!bytes) throw Error(ErrorCode::peer, "the connection has ended");
      const AgentMessage message = decode_agent(*bytes);
      if (const auto* sources = std::get_if<WeightsSources>(&message)) return *sources;
    }
  }
  template <class M>
  M receive() {
    const auto message = receive();
    return message && std::holds_alternative<M>(*message) ? std::get<M>(*message)
                                                          : throw Error(ErrorCode::peer, "another");
  }
  bool has_ended() {
    try {
      while (receive()) {
      }
    } catch (const Error&) {
      return false;  // not in time
    }
    return true;
  }
  BlockingMessageStream& stream() { return stream_; }

 private:
  BlockingMessageStream stream_;
};

}  // namespace motley
