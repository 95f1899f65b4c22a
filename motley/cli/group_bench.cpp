#include <fmt/format.h>

#include <algorithm>

#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/group_members.hpp"
#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/collective/measure_sizes.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/comm/transport/local_ranks.hpp"
#include "motley/plan/collective_plan.hpp"
#include "motley/report/table.hpp"

namespace motley::cli {
namespace {

constexpr int most_ranks = 64;
constexpr double largest_bytes = 4e9;

struct GroupBench {
  std::string operation = "all-reduce", element = "fp32";
  std::string from = "1 KiB", to = "64 MiB";
  int factor = 4;
  int ranks = 4;
  double seconds = 0.5;
  std::string plan_file;
  MemberOptions member;
  Output output;
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

constexpr const char* bench_group = "motley group bench";

SizesToMeasure sizes_of(const GroupBench& bench) {
  SizesToMeasure asked{.operation = bench.operation,
                       .from_bytes = bytes_option(bench.from, "--from"),
                       .to_bytes = bytes_option(bench.to, "--to"),
                       .factor = static_cast<double>(bench.factor),
                       .seconds = bench.seconds};
  for (int i = 0; i < collective_elements; ++i)
    if (name(static_cast<CollectiveElement>(i)) == bench.element) asked.element = static_cast<CollectiveElement>(i);
  return asked;
}

std::vector<MeasuredSize> run_rank(const GroupBench& bench, Fabric& fabric, const Epoch& epoch, int rank) {
  Communicator group(epoch, fabric.connect(epoch, rank, 60));
  if (!bench.plan_file.empty()) group.use_plans({read_collective_program(bench.plan_file)});
  return measure_sizes(group, sizes_of(bench));
}

void report(const GroupBench& bench, int ranks, const std::vector<MeasuredSize>& rows) {
  const double factor = bus_factor(bench.operation, ranks);
  Table table({">bytes", ">time", ">algorithm", ">bus", ">wrong", ">calls", ">streams", ">memory"});
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

int run(const GroupBench& bench) {
  check_output_folder(bench.output);
  if (const auto names = measured_operations(); std::ranges::find(names, bench.operation) == names.end())
    throw input_error(fmt::format("the operation must be a collective, found \"{}\"", bench.operation),
                      fmt::format("choose one of {}", fmt::join(names, ", ")));
  if (bytes_option(bench.from, "--from") > bytes_option(bench.to, "--to"))
    throw input_error("--from must not be larger than --to", "give both, the smaller first");
  const MemberOptions& member = bench.member;
  if (member.members.empty() && member.certified())
    throw input_error("--ranks starts several members, and a certificate names one",
                      "start each member by itself: --members A:P,B:P --rank I");
  if (member.members.empty() == (member.rank >= 0))
    throw input_error("--members needs --rank, and --rank needs --members",
                      "run on each machine: motley group bench --members A:P,B:P --rank I");
  int ranks = bench.ranks;
  std::vector<MeasuredSize> rows;
  if (member.members.empty()) {
    run_local_ranks(ranks, fabric_of_member(member, "127.0.0.1:0"), bench_group,
                    [&](Fabric& fabric, const Epoch& epoch, int rank) { rows = run_rank(bench, fabric, epoch, rank); });
  } else {
    const Epoch epoch = epoch_of_members(member, bench_group);
    ranks = static_cast<int>(epoch.members.size());
    Fabric fabric(fabric_of_member(member, epoch.members[static_cast<std::size_t>(member.rank)].address));
    rows = run_rank(bench, fabric, epoch, member.rank);
  }
  if (member.rank <= 0) report(bench, ranks, rows);
  return std::any_of(rows.begin(), rows.end(), [](const MeasuredSize& row) { return row.wrong > 0; }) ? 1 : 0;
}

}  // namespace

void add_group_bench(CLI::App& group_verbs, Action& action) {
  const auto [verb, bench] = add_verb<GroupBench>(group_verbs, action, "bench",
                                                  "Measure collectives between ranks on one machine or several", run);
  verb->add_option("--operation", bench->operation, "all-reduce, reduce-scatter, all-gather, broadcast or reduce")
      ->capture_default_str();
  verb->add_option("--ranks", bench->ranks, "Number of processes to start on this machine")
      ->check(CLI::Range(1, most_ranks))
      ->capture_default_str();
  verb->add_option("--transport", bench->member.transport, "Transport between the ranks")
      ->check(CLI::IsMember({"shm", "tcp"}))
      ->capture_default_str();
  verb->add_option("--element", bench->element, "Element type")
      ->check(CLI::IsMember({"fp32", "fp64", "fp16", "bf16", "int8", "uint8", "int16", "int32", "int64"}))
      ->capture_default_str();
  verb->add_option("--from", bench->from, "Smallest size, as in \"1 KiB\"")->capture_default_str();
  verb->add_option("--to", bench->to, "Largest size, as in \"64 MiB\"")->capture_default_str();
  verb->add_option("--factor", bench->factor, "Factor from one size to the next")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  verb->add_option("--seconds", bench->seconds, "Measuring time per size, in seconds")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  verb->footer(
      "examples:\n"
      "  motley group bench --ranks 4 --transport tcp\n"
      "  motley group bench --folder lab/members/anna --members anna=10.0.0.1:4711,ben=10.0.0.2:4711 --rank 0\n"
      "\n"
      "The last one measures under TLS; start it on ben's machine too, with ben's folder and --rank 1.");
  verb->add_option("--plan", bench->plan_file, "Run this collective plan instead of the built-in algorithm")
      ->type_name("FILE");
  add_member_options(*verb, bench->member, 4096);
  add_output_options(*verb, bench->output);
}

}  // namespace motley::cli
