#include "motley/cli/collective.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/train.hpp"
#include "motley/report/compare_report.hpp"

namespace motley::cli {

void add_compare(CLI::App& parent, Action& action) {
  struct Options {
    std::vector<std::string> plans;
    Output output;
  };
  auto options = std::make_shared<Options>();
  auto* verb = parent.add_subcommand("compare", "Show plans side by side, and relative to the first");
  verb->footer("example: motley compare before.json after.json");
  verb->add_option("plans", options->plans, "Plan files of one kind")->required()->expected(2, 16)->type_name("PLAN");
  add_output_options(*verb, options->output);
  verb->callback([options, &action] {
    action = [options] {
      if (plan_kind(read_document(options->plans.front())) == "train")
        return compare_train(options->plans, options->output);
      if (plan_kind(read_document(options->plans.front())) == "collective")
        return compare_collectives(options->plans, options->output);
      std::vector<ServePlan> plans;
      for (const auto& path : options->plans) plans.push_back(read_plan_file(path));
      std::vector<NamedPlan> named;
      for (std::size_t i = 0; i < plans.size(); ++i)
        named.push_back({std::filesystem::path(options->plans[i]).filename().string(), &plans[i]});
      emit(options->output, compare_json(named), compare_report(named));
      return 0;
    };
  });
}

}  // namespace motley::cli
