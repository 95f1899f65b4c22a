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

template <class Plan, class... More>
std::string page_of(const Plan& plan, const std::string& file, const More&... more) {
  require_sound(verify(plan), file);
  return html_report(plan, more...);
}

std::string page_of(const ReportOptions& options) {
  const std::string& file = options.plan;
  const Value document = read_document(file);
  const std::string kind = plan_kind(document);
  if (kind == "train") return page_of(read_train_plan(document, file), file);
  if (kind == "rent") return page_of(read_rent_plan(document, file), file);
  if (kind == "chain") return page_of(read_chain_plan(document, file), file);
  if (kind == "collective") return page_of(read_collective_plan(document, file), file);
  return page_of(read_plan(document, file), file, options.page);
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
  auto* verb = parent.add_subcommand("report", "Draw a plan as one page for a browser");
  verb->footer(
      "example: motley report plan.json -o report.html\n"
      "         The page is one file without scripts: cluster, stages, memory, cost, timeline.");
  verb->add_option("plan", options->plan, "Plan file")->required()->type_name("PLAN");
  verb->add_option("-o,--output", options->file, "Write the page to this file (default: standard output)")
      ->type_name("FILE");
  verb->add_option(
          "--requests", options->page.requests,
          fmt::format("Requests that the timeline of a serving plan simulates (default {})", PageOptions{}.requests))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{10'000}));
  verb->add_option("--seed", options->page.seed, "Seed of the arrivals (default 0)");
  verb->add_flag("-q,--quiet", options->quiet, "Print nothing on stderr");
  verb->callback([options, &action] { action = [options] { return write_report(*options); }; });
}

}  // namespace motley::cli
