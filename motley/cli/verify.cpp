#include "motley/cli/command.hpp"
#include "motley/plan/plan.hpp"
#include "motley/report/plan_report.hpp"

namespace motley::cli {

void add_verify(CLI::App& parent, Action& action) {
  struct Options {
    std::string plan;
    Output output;
  };
  auto options = std::make_shared<Options>();
  auto* verb = parent.add_subcommand("verify",
                                     "Check a plan: coverage, memory, shares, links. Exit code 1 if anything is wrong");
  verb->footer("example: motley verify plan.json");
  verb->add_option("plan", options->plan, "Plan file")->required()->type_name("PLAN");
  add_output_options(*verb, options->output);
  verb->callback([options, &action] {
    action = [options] {
      const auto violations = verify(read_plan_file(options->plan));
      Value list = Value::array();
      for (const auto& violation : violations)
        list.push_back(Value::object({{"place", violation.place}, {"what", violation.what}, {"hint", violation.hint}}));
      emit(options->output, Value::object({{"violations", list}}), violations_report(violations));
      return violations.empty() ? 0 : static_cast<int>(ErrorCode::negative);
    };
  });
}

}  // namespace motley::cli
