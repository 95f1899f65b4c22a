#include "motley/comm/transport/local_ranks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <optional>
#include <sstream>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/printable.hpp"
#include "motley/comm/net/file_descriptor.hpp"

namespace motley {
namespace {

using RunRank = std::function<void(Fabric& fabric, const Epoch& epoch, int rank)>;

// One address a line.
Epoch epoch_here(const std::string& group, const std::string& addresses) {
  Epoch epoch;
  epoch.group = group;
  std::istringstream lines(addresses);
  for (std::string address; std::getline(lines, address);)
    epoch.members.push_back({std::to_string(epoch.members.size()), 0, "here", address});
  return epoch;
}

void send_text(int socket, const std::string& text) {
  if (::write(socket, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw Error(ErrorCode::peer, "a rank of the benchmark has ended");
}

std::string receive_text(int socket) {
  std::array<char, 8192> text{};
  const auto size = ::read(socket, text.data(), text.size());
  if (size <= 0) throw Error(ErrorCode::peer, "a rank of the benchmark has ended");
  return {text.data(), static_cast<std::size_t>(size)};
}

[[noreturn]] void run_child(int rank, const FabricOptions& options, const std::string& group, const RunRank& run,
                            int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // it never outlives the first
  try {
    Fabric fabric(options);
    send_text(socket, fabric.address());
    run(fabric, epoch_here(group, receive_text(socket)), rank);
    _exit(0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, printable(with_hint(error)));
    _exit(5);
  }
}

}  // namespace

void run_local_ranks(int ranks, const FabricOptions& options, const std::string& group, const RunRank& run) {
  std::vector<FileDescriptor> sockets;
  std::vector<int> children;
  for (int rank = 1; rank < ranks; ++rank) {
    std::array<int, 2> pair{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0)
      throw environment_error("cannot create a socket pair");
    FileDescriptor ours(pair[0]), theirs(pair[1]);
    const int process = fork();
    if (process < 0) throw environment_error(fmt::format("cannot start rank {}", rank));
    if (process == 0) {
      sockets.clear();
      ours = FileDescriptor();
      run_child(rank, options, group, run, theirs.get());
    }
    sockets.push_back(std::move(ours));
    children.push_back(process);
  }
  std::optional<Error> failed;
  try {
    Fabric fabric(options);
    std::vector<std::string> addresses{fabric.address()};
    for (const FileDescriptor& socket : sockets) addresses.push_back(receive_text(socket.get()));
    const std::string all = fmt::format("{}\n", fmt::join(addresses, "\n"));
    for (const FileDescriptor& socket : sockets) send_text(socket.get(), all);
    run(fabric, epoch_here(group, all), 0);
  } catch (const Error& error) {
    failed = error;
  }
  sockets.clear();
  for (const int process : children) {
    if (failed) kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  if (failed) throw Error(*failed);
}

}  // namespace motley
