#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <thread>

#include "motley/base/nvidia.hpp"
#include "motley/base/paths.hpp"
#include "motley/base/proc_value.hpp"
#include "motley/base/units.hpp"
#include "motley/base/version.hpp"
#include "motley/base/worker_program.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/doctor.hpp"
#include "motley/model/known_models.hpp"
#include "motley/model/model.hpp"
#include "motley/report/table.hpp"

namespace motley::cli {
namespace {

std::string state_name(State state) { return state == State::ok ? "ok" : state == State::warn ? "warn" : "missing"; }

std::string known_value(const char* file, std::string_view key) { return proc_value(file, key).value_or("unknown"); }

// "24684084 kB", as /proc/meminfo has it, for people.
std::string memory_value(std::string_view key) {
  return human_bytes(1024 * std::strtod(known_value("/proc/meminfo", key).c_str(), nullptr));
}

Finding processor() {
  return {"processor", State::ok,
          fmt::format("{}, {} cores", known_value("/proc/cpuinfo", "model name"), std::thread::hardware_concurrency())};
}

Finding memory() {
  return {"memory", State::ok, fmt::format("{} free of {}", memory_value("MemAvailable"), memory_value("MemTotal"))};
}

Finding data() {
  try {
    return {"data", State::ok, fmt::format("{}; {} device types", data_folder().string(), device_catalogue().size())};
  } catch (const Error& error) {
    return {"data", State::missing, error.what()};
  }
}

Finding worker() {
  const auto program = worker_program();
  if (::access(program.c_str(), X_OK) == 0) return {"worker", State::ok, program.string()};
  return {"worker", State::missing, "motley-worker is missing: plans can be made but not served"};
}

// What workers and tokenizers need.
Finding environment() {
  try {
    std::string found = fmt::format("{}; LibTorch {}", python_environment().string(), libtorch_version());
    for (const char* package : {"tokenizers", "jinja2"})
      if (!std::filesystem::is_directory(python_packages() / package))
        return {"environment", State::missing, fmt::format("{} lacks {}", python_environment().string(), package)};
    return {"environment", State::ok, found};
  } catch (const Error& error) {
    return {"environment", State::missing, error.what()};
  }
}

std::string room_text(std::int64_t free_bytes) {
  std::string text;
  try {
    for (const DType type : {DType::bf16, DType::q4_k})
      if (const auto model = largest_known_model(free_bytes, type))
        text += fmt::format("{}{} in {}", text.empty() ? ", room for " : " or ", *model, name_of(type));
  } catch (const Error&) {
    // data() has said it.
  }
  return text;
}

// Of each GPU what is free of it now, and what would run there.
std::vector<Finding> gpus() {
  std::vector<NvidiaGpu> found;
  try {
    found = nvidia_gpus();
  } catch (const Error& error) {
    return {{"cuda", State::warn, fmt::format("{}: workers run on the CPU", error.what())}};
  }
  const bool kernels = std::filesystem::exists(worker_program().parent_path() / "libmotley_cuda.so");
  std::vector<Finding> findings{{"cuda", State::ok,
                                 fmt::format("{} devices; workers compute by {}", found.size(),
                                             kernels ? "motley's kernels" : "LibTorch's kernels alone")}};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const NvidiaGpu& gpu = found[i];
    const bool known = gpu.major * 10 + gpu.minor >= 75;
    findings.push_back({fmt::format("gpu {}", i), known ? State::ok : State::warn,
                        fmt::format("{}, {} free of {}, compute capability {}.{}{}", gpu.name,
                                    human_bytes(static_cast<double>(gpu.free_bytes)),
                                    human_bytes(static_cast<double>(gpu.memory_bytes)), gpu.major, gpu.minor,
                                    known ? room_text(gpu.free_bytes) : ": 7.5 or more is needed")});
  }
  return findings;
}

Finding port(int number) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(number));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int reuse = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  const bool free = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return {"port", free ? State::ok : State::warn,
          fmt::format("{} on 127.0.0.1 is {}", number,
                      free ? "free" : "in use: give `motley serve` another port with --port")};
}

int diagnose(const Output& output) {
  std::vector<Finding> findings{processor(), memory(), data(), worker()};
  if (findings.back().state == State::ok) findings.push_back(environment());
  [[maybe_unused]] const bool workers_run = findings.back().what == "environment" && findings.back().state == State::ok;
  const std::vector<Finding> cards = gpus();
  findings.insert(findings.end(), cards.begin(), cards.end());
#ifdef MOTLEY_WITH_RUNTIME
  if (workers_run) std::ranges::copy(offers_of_gpus(), std::back_inserter(findings));
#endif
  findings.push_back(port(8000));
  Table table({"", "", ""});
  Value list = Value::array();
  bool complete = true;
  for (const auto& finding : findings) {
    table.add({finding.what, state_name(finding.state), finding.detail});
    list.push_back(
        Value::object({{"what", finding.what}, {"state", state_name(finding.state)}, {"detail", finding.detail}}));
    complete = complete && finding.state != State::missing;
  }
  emit(output, Value::object({{"version", version()}, {"findings", list}}), program_version() + "\n" + table.render());
  return complete ? 0 : static_cast<int>(ErrorCode::environment);
}

}  // namespace

void add_doctor(CLI::App& parent, Action& action) {
  const auto [verb, output] =
      add_verb<Output>(parent, action, "doctor", "Check what this machine has and lacks for running plans", diagnose);
  verb->footer("example: motley doctor");
  add_output_options(*verb, *output);
}

}  // namespace motley::cli
