#include "motley/workers/gpu_list.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <set>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/printable.hpp"
#include "motley/comm/net/file_descriptor.hpp"

namespace motley {
namespace {

constexpr std::size_t most_answer_bytes = std::size_t{1} << 20;
constexpr std::size_t most_gpus = 64, longest_gpu_name = 256, longest_uuid = 64, longest_shown_cause = 1000;
constexpr double most_gpu_bytes = 0x1p48;
constexpr double killed_listing_s = 5;  // for the process to end

constexpr const char* listing_hint =
    "`nvidia-smi` must list the GPUs at once; --devices none does without them, and offers the processor";

// A process of its own group, which is ended with it.
class Listing {
 public:
  Listing(const std::filesystem::path& program, double within_s)
      : name_(program.filename().string() + " --devices"), within_s_(within_s), until_(deadline_in(within_s)) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw environment_error("cannot make a pipe");
    output_ = FileDescriptor(ends[0]);
    const FileDescriptor theirs(ends[1]);
    spawn(program, theirs.get());
    // glibc 2.36 declares pidfd_open() for C only.
    exit_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, process_, 0)));
    if (exit_) return;
    const Error error = environment_error("cannot watch over " + name_);
    end();
    throw error;
  }
  ~Listing() { end(); }
  Listing(const Listing&) = delete;
  Listing& operator=(const Listing&) = delete;

  std::string answer() {
    std::string text;
    std::array<char, 4096> buffer{};
    for (;;) {
      if (!wait_for(output_.get(), POLLIN, until_)) throw late();
      const ssize_t count = ::read(output_.get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return text;
      text.append(buffer.data(), static_cast<std::size_t>(count));
      if (text.size() > most_answer_bytes)
        throw failure(fmt::format("answers with more than {} bytes", most_answer_bytes));
    }
  }
  // After its answer.
  int exit_code() {
    if (!wait_for(exit_.get(), POLLIN, until_)) throw late();
    siginfo_t how{};
    if (::waitid(P_PIDFD, static_cast<id_t>(exit_.get()), &how, WEXITED | WNOHANG) != 0 || how.si_pid == 0)
      throw failure("has ended, and nothing tells how");
    process_ = 0;
    if (how.si_code != CLD_EXITED) throw failure(fmt::format("was killed by signal {}", how.si_status));
    return how.si_status;
  }
  Error failure(const std::string& what) const {
    return {ErrorCode::environment, fmt::format("{}, which lists the GPUs, {}", name_, what), listing_hint};
  }
  const std::string& name() const { return name_; }

 private:
  // Without the signals that this thread has blocked, and silent but for its answer.
  void spawn(const std::filesystem::path& program, int output) {
    std::array<std::string, 2> words{program.string(), "--devices"};
    const std::array<char*, 3> arguments{words[0].data(), words[1].data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    const int failed = ::posix_spawn(&process_, words[0].c_str(), &actions, &attributes, arguments.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    if (failed == 0) return;
    process_ = 0;
    errno = failed;
    throw environment_error("cannot start " + words[0], "build it with `./dev build`");
  }

  Error late() const { return failure(fmt::format("has not ended within {:.0f} s", within_s_)); }

  // One in a call to the driver of a lost device cannot be killed: it is left behind.
  void end() {
    if (process_ <= 0) return;
    ::kill(-process_, SIGKILL);
    if (exit_ && !wait_for(exit_.get(), POLLIN, deadline_in(killed_listing_s))) return;
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }

  const std::string name_;
  const double within_s_;
  const Instant until_;
  FileDescriptor output_, exit_;
  pid_t process_ = 0;
};

// With the hint of the failure that it is part of.
Error unreadable(const std::string& source, const char* what) {
  return {ErrorCode::peer, fmt::format("{}: {}", source, what)};
}

void check_gpu(const ListedGpu& gpu, const std::string& source) {
  if (!is_gpu_uuid(gpu.uuid) || !std::ranges::all_of(gpu.peers, is_gpu_uuid))
    throw unreadable(source, "a UUID that no GPU has");
  if (gpu.name.empty() || gpu.name.size() > longest_gpu_name || printable(gpu.name) != gpu.name)
    throw unreadable(source, "a name that no GPU has");
  if (gpu.pci_bus.size() > longest_uuid || printable(gpu.pci_bus) != gpu.pci_bus)
    throw unreadable(source, "a PCI bus that no GPU has");
  if (gpu.free_bytes > gpu.total_bytes) throw unreadable(source, "more memory is free than there is");
}

std::vector<ListedGpu> parse_gpus(std::string_view answer, const std::string& name) {
  std::vector<ListedGpu> gpus;
  std::set<std::string> uuids;
  for (std::size_t line = 1; !answer.empty(); ++line) {
    const std::size_t end = std::min(answer.find('\n'), answer.size());
    const std::string source = fmt::format("{}, line {}", name, line);
    ListedGpu gpu = read<ListedGpu>(parse_json(answer.substr(0, end), source), source);
    answer.remove_prefix(std::min(end + 1, answer.size()));
    check_gpu(gpu, source);
    if (!uuids.insert(gpu.uuid).second) throw unreadable(source, "a GPU that was listed before");
    if (uuids.size() > most_gpus) throw unreadable(source, "more GPUs than a machine may have");
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::string parse_cause(std::string_view answer, const std::string& name) {
  const Value value = parse_json(answer, name);
  const Value* cause = value.find("cause");
  if (cause == nullptr || !cause->is_string()) throw unreadable(name, "no `cause`");
  return printable(cause->as_string().substr(0, longest_shown_cause));
}

}  // namespace

Schema<ListedGpu> schema_of(Bound<ListedGpu>) {
  using G = ListedGpu;
  return Schema<G>("gpu", "A GPU, or a slice of one, as CUDA lists it.")
      .field("uuid", &G::uuid, "What CUDA_VISIBLE_DEVICES takes.", {.required = true})
      .field("name", &G::name, "As the driver has it.", {.required = true})
      .field("pci_bus", &G::pci_bus, "Where it is.")
      .field("compute_capability", &G::compute_capability, "As 8.6.", {.required = true, .min = 1, .max = 100})
      .field("total_bytes", &G::total_bytes, "Its memory.", {.required = true, .min = 1, .max = most_gpu_bytes})
      .field("free_bytes", &G::free_bytes, "Free of it.", {.required = true, .min = 0, .max = most_gpu_bytes})
      .field("display", &G::display, "Whether a desktop is shown on it.")
      .field("kernels", &G::kernels, "Version of motley's own.", {.min = 0, .max = 1e6})
      .field("peers", &G::peers, "UUIDs of those whose memory it reaches.");
}

bool may_have_gpus() {
  std::error_code ignored;
  return std::filesystem::exists("/dev/nvidiactl", ignored) ||
         std::filesystem::exists("/dev/dxg", ignored);  // Windows' subsystem for Linux
}

GpuList list_gpus(const std::filesystem::path& program, double within_s) {
  Listing listing(program, within_s);
  const std::string answer = listing.answer();
  const int code = listing.exit_code();
  try {
    if (code == 0) return {.gpus = parse_gpus(answer, listing.name())};
    if (code == static_cast<int>(ErrorCode::environment))
      return {.gpus = {}, .cause = parse_cause(answer, listing.name())};
  } catch (const Error& error) {
    throw listing.failure(fmt::format("answers what cannot be read: {}", error.what()));
  }
  throw listing.failure(fmt::format("ended with exit code {}", code));
}

std::string gpu_lines(const std::vector<ListedGpu>& gpus) {
  std::string lines;
  for (const ListedGpu& gpu : gpus) lines += to_json(write(gpu)) + "\n";
  return lines;
}

std::string no_gpu_line(std::string_view cause) { return to_json(Value::object({{"cause", cause}})) + "\n"; }

bool is_gpu_uuid(std::string_view text) {
  if (text.size() > longest_uuid || text.size() < 5 || !(text.starts_with("GPU-") || text.starts_with("MIG-")))
    return false;
  return text.find_first_not_of("0123456789abcdefABCDEF-", 4) == std::string_view::npos;
}

std::string_view whole_card(std::string_view name) { return name.substr(0, name.find(" MIG ")); }

Variables gpu_variables(const std::string& uuid) {
  return {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES", uuid}};
}

}  // namespace motley
