#include <fmt/format.h>

#include <cstdio>

#include "motley/cli/command.hpp"
#include "motley/report/html_report.hpp"

namespace motley::cli {
namespace {

struct ReportOptions {
  std::string plan;
  std::string file;
  PageOptions page;
  bool quiet = false;
};

std::string page_of(const ReportOptions& options) {
  const Value document = read_document(options.plan);
  const std::string kind = plan_kind(document);
  if (kind == "rent") {
    const RentPlan plan = read_rent_plan(document, options.plan);
    require_sound(verify(plan), options.plan);
    return html_report(plan);
  }
  if (kind == "chain") {
    const ChainPlan plan = read_chain_plan(document, options.plan);
    require_sound(verify(plan), options.plan);
    return html_report(plan);
  }
  if (kind == "train") {
    const TrainPlan plan = read_train_plan(document, options.plan);
    require_sound(verify(plan), options.plan);
    return html_report(plan);
  }
  const ServePlan plan = read_plan(document, options.plan);
  require_sound(plan, options.plan);
  return html_report(plan, options.page);
}

int write_report(const ReportOptions& options) {
  check_output_folder({.json = false, .file = options.file, .quiet = options.quiet});
  const std::string page = page_of(options);
  if (options.file.empty()) {
    std::fwrite(page.data(), 1, page.size(), stdout);
    return 0;
  }
  write_file(options.file, page);
  if (!options.quiet) fmt::print(stderr, "wrote {}\n", options.file);
  return 0;
}

}  // namespace

void add_report(CLI::App& parent, Action& action) {
  auto options = std::make_shared<ReportOptions>();
  auto* verb =
      parent.add_subcommand("report", "Draw a plan as one page for a browser: cluster, stages, memory, cost, timeline");
  verb->footer(
      "example: motley report plan.json -o report.html\n"
      "         the file needs nothing beside it, and holds no script: open it, mail it, print it");
  verb->add_option("plan", options->plan, "The plan")->required()->type_name("PLAN");
  verb->add_option("-o,--output", options->file, "Write the page to this file; default: to the standard output")
      ->type_name("FILE");
  verb->add_option("--requests", options->page.requests,
                   fmt::format("Of a serving plan: requests that the timeline's simulation plays; default {}",
                               PageOptions{}.requests))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{10'000}));
  verb->add_option("--seed", options->page.seed, "Of their arrivals; default 0");
  verb->add_flag("-q,--quiet", options->quiet, "Do not say on stderr what was written");
  verb->callback([options, &action] { action = [options] { return write_report(*options); }; });
}

}  // namespace motley::cli
