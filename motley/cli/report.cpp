#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <type_traits>

#include "motley/cli/command.hpp"
#include "motley/plan/plan.hpp"
#include "motley/report/html_report.hpp"

namespace motley::cli {
namespace {

struct ReportOptions {
  std::string plan;
  std::string file;
  PageOptions page;
  bool quiet = false;
};

std::string plan_page(const ReportOptions& options) {
  const AnyPlan plan = read_plan_file(options.plan);
  require_sound(verify(plan), options.plan);
  return std::visit(
      [&](const auto& one) {
        if constexpr (std::is_same_v<decltype(one), const ServePlan&>)
          return html_report(one, options.page);
        else
          return html_report(one);
      },
      plan);
}

int write_report(const ReportOptions& options) {
  check_output_folder({.json = false, .file = options.file, .quiet = options.quiet});
  std::error_code ignored;
  const bool run = std::filesystem::is_directory(options.plan, ignored);
  const std::string page = run ? html_report(read_train_run(options.plan)) : plan_page(options);
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
  const auto [verb, options] = add_verb<ReportOptions>(
      parent, action, "report", "Draw a plan, or a training run, as one page for a browser", write_report);
  verb->footer(
      "examples:\n"
      "  motley report plan.json -o report.html     cluster, stages, memory, cost, timeline\n"
      "  motley report run/ -o report.html          loss and speed of a training run, its newest step\n"
      "The page is one file without scripts.");
  verb->add_option("plan", options->plan, "Plan file, or the folder of a training run")
      ->required()
      ->type_name("PLAN|RUN");
  verb->add_option("-o,--output", options->file, "Write the page to this file (default: standard output)")
      ->type_name("FILE");
  verb->add_option(
          "--requests", options->page.requests,
          fmt::format("Requests that the timeline of a serving plan simulates (default {})", PageOptions{}.requests))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{10'000}));
  verb->add_option("--seed", options->page.seed, "Seed of the arrivals (default 0)");
  verb->add_flag("-q,--quiet", options->quiet, "Print nothing on stderr");
}

}  // namespace motley::cli
