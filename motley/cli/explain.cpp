#include "motley/cli/command.hpp"
#include "motley/cli/planning.hpp"
#include "motley/report/cost_report.hpp"

namespace motley::cli {

void add_explain(CLI::App& parent, Action& action) {
  struct Options {
    std::string plan;
    std::string form;
    std::vector<std::string> settings;
    Output output;
  };
  auto options = std::make_shared<Options>();
  auto* verb = parent.add_subcommand("explain", "Where a plan's time goes: the cost as a tree of terms with their shares");
  verb->footer("example: motley explain plan.json --cost hexgen");
  verb->add_option("plan", options->plan, "The plan")->required()->type_name("PLAN");
  add_cost_options(*verb, options->form, options->settings);
  add_output_options(*verb, options->output);
  verb->callback([options, &action] {
    action = [options] {
      const ServePlan plan = read_plan_file(options->plan);
      const std::string form = options->form.empty() ? plan.search.cost : options->form;
      const ServeCost cost = price_serve(plan, cost_options(form, options->settings));
      emit(options->output, cost_json(cost), cost_report(cost, form));
      return 0;
    };
  });
}

}  // namespace motley::cli
