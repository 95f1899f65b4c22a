#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>

#include "motley/base/environment_error.hpp"
#include "motley/base/hints.hpp"
#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/members.hpp"
#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/net/file_descriptor.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/plan/collective.hpp"
#include "motley/report/table.hpp"

namespace motley::cli {
namespace {

constexpr int most_ranks = 64;
constexpr double largest_bytes = 4e9;

struct CommBench {
  std::string operation = "all-reduce", element = "fp32";
  std::string from = "1 KiB", to = "64 MiB";
  int factor = 4;
  int ranks = 4;
  double seconds = 0.5;
  std::string plan_file;
  MemberOptions member;
  Output output;
};

// What one call does, and its bytes on the busiest link per byte of the buffer: the "bus" bandwidth of nccl-tests,
// which is the link's where the algorithm is perfect. Buffers of reduce-scatter and all-gather are the whole vector.
struct BenchOperation {
  OperationOutcome (*call)(Communicator&, std::span<std::byte>, CollectiveElement, const OperationOptions&);
  double (*bus_factor)(double ranks);
};

const std::map<std::string, BenchOperation>& operations() {
  static const std::map<std::string, BenchOperation> table{
      {"all-reduce",
       {[](auto& group, auto data, auto element, const auto& options) {
          return group.all_reduce(data, element, options);
        },
        [](double n) { return 2 * (n - 1) / n; }}},
      {"reduce-scatter",
       {[](auto& group, auto data, auto element, const auto& options) {
          return group.reduce_scatter(data, element, options);
        },
        [](double n) { return (n - 1) / n; }}},
      {"all-gather",
       {[](auto& group, auto data, auto, const auto& options) { return group.all_gather(data, options); },
        [](double n) { return (n - 1) / n; }}},
      {"broadcast",
       {[](auto& group, auto data, auto, const auto& options) { return group.broadcast(data, 0, options); },
        [](double) { return 1.0; }}},
      {"reduce",
       {[](auto& group, auto data, auto element, const auto& options) {
          return group.reduce(data, element, 0, options);
        },
        [](double) { return 1.0; }}}};
  return table;
}

struct BenchRow {
  std::int64_t bytes = 0;
  int repeats = 0;
  double time_s = 0;
  std::int64_t wrong = 0;             // elements with another value than the sum
  int streams = 1;                    // to the peer with most
  std::int64_t peak_extra_bytes = 0;  // of this rank so far, beside the buffer
};

double bytes_option(const std::string& text, const char* option) {
  try {
    const double bytes = parse_quantity(text, Dimension::bytes);
    if (bytes < 1 || bytes > largest_bytes)
      throw input_error(fmt::format("a size must be between 1 B and 4 GB, found \"{}\"", text),
                        "give a number with its unit, as in \"16 MiB\"");
    return bytes;
  } catch (Error& error) {
    throw error.prepend_context(option);
  }
}

void must_be_ok(const OperationOutcome& outcome) {
  if (outcome.status != OperationStatus::ok)
    throw Error(ErrorCode::peer, fmt::format("{}: {}", name(outcome.status), outcome.cause),
                "start all ranks again together, with the same command and each with its own --rank");
}

// Element i of rank r is (r + 1) (i mod 5): exact in fp32, as is the sum.
std::int64_t wrong_elements(Communicator& group, const CommBench& bench, std::int64_t bytes) {
  if (bench.operation != "all-reduce" || bench.element != "fp32") return 0;
  std::vector<float> values(static_cast<std::size_t>(bytes) / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(group.rank() + 1) * static_cast<float>(i % 5);
  must_be_ok(group.all_reduce(std::as_writable_bytes(std::span(values)), CollectiveElement::fp32, {}));
  const auto sum = static_cast<float>(group.size() * (group.size() + 1) / 2);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) wrong += values[i] != sum * static_cast<float>(i % 5);
  return wrong;
}

// Rank 0 decides how often, by the first calls; then all do it alike.
BenchRow measure(Communicator& group, const CommBench& bench, CollectiveElement element, std::int64_t bytes) {
  const auto& operation = operations().at(bench.operation);
  std::vector<std::byte> data(static_cast<std::size_t>(bytes));
  const OperationOptions options{.timeout_s = 120};
  const auto call = [&](int times) {
    must_be_ok(group.barrier({}));
    double time_s = 0;
    for (int i = 0; i < times; ++i) {
      const auto outcome = operation.call(group, data, element, options);
      must_be_ok(outcome);
      time_s += outcome.time_s;
    }
    return time_s / times;
  };
  BenchRow row{bytes, 0, 0, wrong_elements(group, bench, bytes)};
  call(1);
  row.repeats = static_cast<int>(std::clamp(bench.seconds / std::max(call(2), 1e-7), 2.0, 1e5));
  must_be_ok(group.broadcast(std::as_writable_bytes(std::span(&row.repeats, 1)), 0, {}));
  // The slowest rank's time is the operation's.
  auto time_s = static_cast<float>(call(row.repeats));
  must_be_ok(group.all_reduce(std::as_writable_bytes(std::span(&time_s, 1)), CollectiveElement::fp32,
                              {.reduction = CollectiveReduction::max}));
  row.time_s = static_cast<double>(time_s);
  row.peak_extra_bytes = group.peak_extra_bytes();
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != group.rank()) row.streams = std::max(row.streams, group.traffic(peer).streams);
  return row;
}

std::vector<BenchRow> run_rank(const CommBench& bench, Fabric& fabric, const Epoch& epoch, int rank) {
  Communicator group(epoch, fabric.connect(epoch, rank, 60));
  if (!bench.plan_file.empty()) group.use_plans({read_collective_program(bench.plan_file)});
  CollectiveElement element = CollectiveElement::fp32;
  for (int i = 0; i < collective_elements; ++i)
    if (name(static_cast<CollectiveElement>(i)) == bench.element) element = static_cast<CollectiveElement>(i);
  // Whole elements for every rank.
  const std::int64_t unit = element_bytes(element) * group.size();
  const double to = bytes_option(bench.to, "--to");
  std::vector<BenchRow> rows;
  for (double size = bytes_option(bench.from, "--from"); size <= to; size *= bench.factor)
    rows.push_back(measure(group, bench, element, std::max(unit, static_cast<std::int64_t>(size) / unit * unit)));
  must_be_ok(group.barrier({}));
  return rows;
}

constexpr const char* bench_group = "motley bench comm";

// The members of this machine, at the addresses that the system gave them.
Epoch epoch_here(const std::vector<std::string>& addresses) {
  Epoch epoch;
  epoch.group = bench_group;
  for (const auto& address : addresses)
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

// What a started rank does until it ends.
[[noreturn]] void child(const CommBench& bench, int rank, int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // it never outlives the command
  try {
    Fabric fabric(fabric_of_member(bench.member, "127.0.0.1:0"));
    send_text(socket, fabric.address());
    run_rank(bench, fabric, epoch_here(split(receive_text(socket))), rank);
    _exit(0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, printable(with_hint(error)));
    _exit(5);
  }
}

// The ranks of this machine: this process is rank 0, and starts the others before it has any thread.
std::vector<BenchRow> run_here(const CommBench& bench) {
  std::vector<FileDescriptor> sockets;
  std::vector<int> children;
  for (int rank = 1; rank < bench.ranks; ++rank) {
    std::array<int, 2> pair{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0)
      throw environment_error("cannot create a socket pair");
    FileDescriptor ours(pair[0]), theirs(pair[1]);
    const int process = fork();
    if (process < 0) throw environment_error(fmt::format("cannot start rank {}", rank));
    if (process == 0) {
      sockets.clear();
      ours = FileDescriptor();
      child(bench, rank, theirs.get());
    }
    sockets.push_back(std::move(ours));
    children.push_back(process);
  }
  std::vector<BenchRow> rows;
  std::optional<Error> failed;
  try {
    Fabric fabric(fabric_of_member(bench.member, "127.0.0.1:0"));
    std::vector<std::string> addresses{fabric.address()};
    for (const FileDescriptor& socket : sockets) addresses.push_back(receive_text(socket.get()));
    for (const FileDescriptor& socket : sockets) send_text(socket.get(), fmt::format("{}", fmt::join(addresses, ",")));
    rows = run_rank(bench, fabric, epoch_here(addresses), 0);
  } catch (const Error& error) {
    failed = error;
  }
  sockets.clear();
  for (const int process : children) {
    if (failed) kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  if (failed) throw Error(*failed);
  return rows;
}

void report(const CommBench& bench, int ranks, const std::vector<BenchRow>& rows) {
  const double factor = operations().at(bench.operation).bus_factor(ranks);
  Table table({{"bytes", Align::right},
               {"time", Align::right},
               {"algorithm", Align::right},
               {"bus", Align::right},
               {"wrong", Align::right},
               {"calls", Align::right},
               {"streams", Align::right},
               {"memory", Align::right}});
  Value::Array list;
  for (const auto& row : rows) {
    const double algorithm = static_cast<double>(row.bytes) / row.time_s;
    table.add({std::to_string(row.bytes), human_seconds(row.time_s), human_rate(algorithm),
               human_rate(algorithm * factor), std::to_string(row.wrong), std::to_string(row.repeats),
               std::to_string(row.streams), human_bytes(static_cast<double>(row.peak_extra_bytes))});
    list.push_back(Value::object({{"bytes", row.bytes},
                                  {"time_s", row.time_s},
                                  {"algorithm_bytes_per_s", algorithm},
                                  {"bus_bytes_per_s", algorithm * factor},
                                  {"wrong", row.wrong},
                                  {"calls", row.repeats},
                                  {"streams", row.streams},
                                  {"peak_extra_bytes", row.peak_extra_bytes}}));
  }
  const bool tls = !bench.member.plain && bench.member.certified();
  const Value result = Value::object({{"operation", bench.operation},
                                      {"ranks", ranks},
                                      {"transport", bench.member.transport},
                                      {"tls", tls},
                                      {"element", bench.element},
                                      {"sizes", std::move(list)}});
  emit(bench.output, result,
       fmt::format("{} of {}, {} ranks, {}{}\n\n{}", bench.operation, bench.element, ranks, bench.member.transport,
                   tls ? " under TLS" : "", table.render()));
}

int run(const CommBench& bench) {
  check_output_folder(bench.output);
  if (!operations().contains(bench.operation)) {
    std::vector<std::string> names;
    for (const auto& [each, operation] : operations()) names.push_back(each);
    throw input_error(fmt::format("the operation must be a collective, found \"{}\"", bench.operation),
                      fmt::format("choose one of {}", fmt::join(names, ", ")));
  }
  if (bytes_option(bench.from, "--from") > bytes_option(bench.to, "--to"))
    throw input_error("--from must not be larger than --to", "give both, the smaller first");
  const MemberOptions& member = bench.member;
  if (member.members.empty() && member.certified())
    throw input_error("--ranks starts several members, and a certificate names one",
                      "start each member by itself: --members A:P,B:P --rank I");
  if (member.members.empty() == (member.rank >= 0))
    throw input_error("--members needs --rank, and --rank needs --members",
                      "run on each machine: motley bench comm --members A:P,B:P --rank I");
  int ranks = bench.ranks;
  std::vector<BenchRow> rows;
  if (member.members.empty()) {
    rows = run_here(bench);
  } else {
    const Epoch epoch = epoch_of_members(member, bench_group);
    ranks = static_cast<int>(epoch.members.size());
    Fabric fabric(fabric_of_member(member, epoch.members[static_cast<std::size_t>(member.rank)].address));
    rows = run_rank(bench, fabric, epoch, member.rank);
  }
  if (member.rank <= 0) report(bench, ranks, rows);
  return std::any_of(rows.begin(), rows.end(), [](const BenchRow& row) { return row.wrong > 0; }) ? 1 : 0;
}

}  // namespace

void add_bench(CLI::App& parent, Action& action) {
  auto* verb = parent.add_subcommand("bench", "Measure collectives on this machine and its network");
  verb->require_subcommand(1);
  verb->footer("example: motley bench comm --ranks 4 --transport tcp");
  auto* comm = verb->add_subcommand("comm", "Measure collectives between ranks on one machine or several");
  const auto bench = std::make_shared<CommBench>();  // shared with the action, which runs after this returns
  comm->add_option("--operation", bench->operation, "all-reduce, reduce-scatter, all-gather, broadcast or reduce")
      ->capture_default_str();
  comm->add_option("--ranks", bench->ranks, "Number of processes to start on this machine")
      ->check(CLI::Range(1, most_ranks))
      ->capture_default_str();
  comm->add_option("--transport", bench->member.transport, "Transport between the ranks")
      ->check(CLI::IsMember({"shm", "tcp"}))
      ->capture_default_str();
  comm->add_option("--element", bench->element, "Element type")
      ->check(CLI::IsMember({"fp32", "fp64", "fp16", "bf16", "int8", "uint8", "int16", "int32", "int64"}))
      ->capture_default_str();
  comm->add_option("--from", bench->from, "Smallest size, as in \"1 KiB\"")->capture_default_str();
  comm->add_option("--to", bench->to, "Largest size, as in \"64 MiB\"")->capture_default_str();
  comm->add_option("--factor", bench->factor, "Factor from one size to the next")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  comm->add_option("--seconds", bench->seconds, "Measuring time per size, in seconds")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  comm->footer(
      "examples:\n"
      "  motley bench comm --ranks 4 --transport tcp\n"
      "  motley bench comm --folder lab/members/anna --members anna=10.0.0.1:4711,ben=10.0.0.2:4711 --rank 0\n"
      "\n"
      "The last one measures under TLS; start it on ben's machine too, with ben's folder and --rank 1.");
  comm->add_option("--plan", bench->plan_file, "Run this collective plan instead of the built-in algorithm")
      ->type_name("FILE");
  add_member_options(*comm, bench->member, 4096);
  add_output_options(*comm, bench->output);
  comm->callback([bench, &action] { action = [bench] { return run(*bench); }; });
}

}  // namespace motley::cli
