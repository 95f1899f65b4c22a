#include "motley/workers/local_fleet.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/net/random_bytes.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/workers/worker_processes.hpp"

namespace motley {
namespace {

LocalFleetOptions checked(LocalFleetOptions options) {
  if (options.transport != "shm" && options.transport != "tcp")
    throw input_error(fmt::format("unknown transport \"{}\"", options.transport), "choose shm or tcp");
  if (options.threads < 1)
    throw input_error(fmt::format("{} threads per worker", options.threads), "give at least one thread");
  return options;
}

std::string random_key() {
  std::array<std::byte, 16> bytes{};
  fill_random(bytes);
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

void check_program(const std::filesystem::path& program) {
  if (::access(program.c_str(), X_OK) != 0)
    throw Error(ErrorCode::environment,
                fmt::format("the worker program {} cannot be run: {}", program.string(), std::strerror(errno)),
                "build it with `./dev build`");
}

std::string backend_of(const std::string& device, const std::string& backend) {
  if (backend == "cpu" || backend.find(':') != std::string::npos) return backend;
  return backend + ":" + device.substr(device.rfind('/') + 1);
}

// The processes open their fabrics, and say where.
class LocalStart final : public WorkerStart {
 public:
  // `host`: of the workers' addresses.
  explicit LocalStart(std::string host) : host_(std::move(host)) {}

  // GPUs are numbered as NVIDIA's tools number them, not the fastest first.
  void start(const std::filesystem::path& program, const CallDriver& call) {
    const Variables variables =
        call.backend.starts_with("cuda") ? Variables{{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}} : Variables();
    starting_.push_back(
        {.device = call.device, .stage = {}, .handle = std::make_unique<WorkerProcess>(program, variables)});
    starting_.back().handle->send(encode(call));
  }

  bool take(Workers& come) override {
    std::erase_if(starting_, [&](Worker& worker) {
      if (!listens(worker)) return false;
      come.push_back(std::move(worker));
      return true;
    });
    if (!starting_.empty() && seconds_since(since_) > start_patience_s)
      throw not_started(starting_.front(), fmt::format("has shown nothing for {:.0f} s", start_patience_s));
    return starting_.empty();
  }

 private:
  bool listens(Worker& worker) const {
    worker.handle->flush();
    for (const Message& message : worker.handle->receive()) {
      if (const auto* failure = std::get_if<Failure>(&message))
        throw WorkersNotStarted({error_of(*failure).prepend_context(worker.device), {worker.device}});
      if (const auto* listening = std::get_if<Listening>(&message)) {
        worker.at = {listening->address, host_};
        return true;
      }
    }
    if (const auto exit = worker.handle->exit()) throw not_started(worker, exit->text());
    return false;
  }

  static WorkersNotStarted not_started(const Worker& worker, const std::string& why) {
    return WorkersNotStarted(
        {Error(ErrorCode::peer, fmt::format("the worker of {} {}", worker.device, why)), {worker.device}});
  }

  const std::string host_;
  const Instant since_ = Clock::now();
  Workers starting_;
};

}  // namespace

bool is_backend(const std::string& name) {
  if (name == "cpu") return true;
  const std::size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  if (kind != "cuda" && (kind != "apart" || std::getenv("MOTLEY_TEST_DEVICES") == nullptr)) return false;
  return colon == std::string::npos ||
         (colon + 1 < name.size() && name.find_first_not_of("0123456789", colon + 1) == std::string::npos);
}

LocalFleet::LocalFleet(LocalFleetOptions options) : options_(checked(std::move(options))), key_(random_key()) {}

std::unique_ptr<WorkerStart> LocalFleet::begin(const std::vector<std::string>& starting,
                                               const std::vector<std::string>&, const WorkerReads& reads) {
  check_program(options_.program);
  // Whatever machines the plan names, their workers share this one's memory.
  auto start = std::make_unique<LocalStart>(options_.transport == "shm" ? own_host() : "");
  CallDriver call;
  call.model_folder = reads.model.string();
  call.threads = options_.threads;
  call.listen = "127.0.0.1:0";
  call.key = key_;
  for (const std::string& device : starting) {
    call.device = device;
    call.backend = backend_of(device, options_.backend);
    start->start(options_.program, call);
  }
  return start;
}

}  // namespace motley
