#include <fmt/format.h>

#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/cluster/cluster_warnings.hpp"
#include "motley/report/description_report.hpp"

namespace motley::cli {
namespace {

struct ClusterOptions {
  std::string file;
  bool devices = false;
  Output output;
};

Value catalogue_json() {
  Value list = Value::array();
  for (const auto& type : device_catalogue()) list.push_back(write(type));
  return Value::object({{"device_types", list}});
}

int show(const ClusterOptions& options) {
  if (options.devices) {
    emit(options.output, catalogue_json(), catalogue_report());
    return 0;
  }
  if (options.file.empty())
    throw input_error("the cluster file is missing",
                      "run motley cluster show FILE, or motley cluster show --devices for the catalogue");
  const Cluster cluster = read_cluster(options.file);
  warn(cluster_warnings(cluster), options.output.quiet);
  emit(options.output, write(cluster.description), cluster_report(cluster));
  return 0;
}

int check(const ClusterOptions& options) {
  const Cluster cluster = read_cluster(options.file);
  // Every pair must have a link: asking is the check.
  for (int a = 0; a < static_cast<int>(cluster.devices.size()); ++a)
    for (int b = 0; b < static_cast<int>(cluster.devices.size()); ++b)
      if (a != b) (void)cluster.link(a, b);
  warn(cluster_warnings(cluster), options.output.quiet);
  emit(options.output,
       Value::object({{"devices", static_cast<std::int64_t>(cluster.devices.size())},
                      {"machines", static_cast<std::int64_t>(cluster.machines.size())}}),
       fmt::format("{}: {} in {}, a link between every two\n", options.file, counted(cluster.devices.size(), "device"),
                   counted(cluster.machines.size(), "machine")));
  return 0;
}

}  // namespace

void add_cluster(CLI::App& parent, Action& action) {
  auto options = std::make_shared<ClusterOptions>();
  auto* group = parent.add_subcommand("cluster", "Show, check or measure a cluster");
  group->require_subcommand(1);
  group->footer(
      "examples:\n"
      "  motley cluster show examples/clusters/motivating-box.toml\n"
      "  motley cluster show --devices                              list the device types of the catalogue");
  auto* show_verb = group->add_subcommand("show", "Show machines, devices and links, or the device catalogue");
  show_verb->footer(
      "example: motley cluster show examples/clusters/motivating-box.toml\n"
      "         motley cluster show --devices");
  show_verb->add_option("cluster", options->file, "Cluster file (motley.cluster/1)")->type_name("FILE");
  show_verb->add_flag("--devices", options->devices, "Show the device catalogue instead");
  add_output_options(*show_verb, options->output);
  show_verb->callback([options, &action] { action = [options] { return show(*options); }; });

  auto* check_verb = group->add_subcommand("check", "Read a cluster file and check that every link is described");
  check_verb->footer("example: motley cluster check examples/clusters/two-sites.toml");
  check_verb->add_option("cluster", options->file, "Cluster file (motley.cluster/1)")->required()->type_name("FILE");
  add_output_options(*check_verb, options->output);
  check_verb->callback([options, &action] { action = [options] { return check(*options); }; });
#ifdef MOTLEY_WITH_RUNTIME
  add_cluster_probe(*group, action);
#endif
}

}  // namespace motley::cli
