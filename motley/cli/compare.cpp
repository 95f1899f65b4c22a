#include "motley/report/compare_report.hpp"

#include <filesystem>

#include "motley/cli/command.hpp"
#include "motley/report/collective_report.hpp"
#include "motley/report/train_report.hpp"

namespace motley::cli {
namespace {

struct CompareOptions {
  std::vector<std::string> files;
  Output output;
};

// The plans of all files, which are of the first one's kind.
template <class Plan>
int compare(const Plan& first, const CompareOptions& options) {
  std::vector<Plan> plans = {first};
  for (std::size_t i = 1; i < options.files.size(); ++i) plans.push_back(read_plan_file<Plan>(options.files[i]));
  std::vector<NamedPlan<Plan>> named;
  for (std::size_t i = 0; i < plans.size(); ++i)
    named.push_back({std::filesystem::path(options.files[i]).filename().string(), &plans[i]});
  emit(options.output, compare_json(named), compare_report(named));
  return 0;
}

int compare_any(const CompareOptions& options) {
  return std::visit([&](const auto& first) { return compare(first, options); },
                    read_plan_file<ServePlan, TrainPlan, CollectivePlan>(options.files.front()));
}

}  // namespace

void add_compare(CLI::App& parent, Action& action) {
  const auto [verb, options] = add_verb<CompareOptions>(
      parent, action, "compare", "Show plans side by side, and relative to the first", compare_any);
  verb->footer("example: motley compare before.json after.json");
  verb->add_option("plans", options->files, "Plan files of one kind")->required()->expected(2, 16)->type_name("PLAN");
  add_output_options(*verb, options->output);
}

}  // namespace motley::cli
