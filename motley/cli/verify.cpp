#include "motley/cli/command.hpp"
#include "motley/plan/plan.hpp"
#include "motley/report/plan_report.hpp"

namespace motley::cli {

namespace {

struct VerifyOptions {
  std::string plan;
  Output output;
};

int list_violations(const VerifyOptions& options) {
  const auto violations = verify(read_plan_file(options.plan));
  Value list = Value::array();
  for (const auto& violation : violations)
    list.push_back(Value::object({{"place", violation.place}, {"what", violation.what}, {"hint", violation.hint}}));
  emit(options.output, Value::object({{"violations", list}}), violations_report(violations));
  return violations.empty() ? 0 : static_cast<int>(ErrorCode::negative);
}

}  // namespace

void add_verify(CLI::App& parent, Action& action) {
  const auto [verb, options] = add_verb<VerifyOptions>(
      parent, action, "verify", "Check a plan: coverage, memory, shares, links. Exit code 1 if anything is wrong",
      list_violations);
  verb->footer("example: motley verify plan.json");
  verb->add_option("plan", options->plan, "Plan file")->required()->type_name("PLAN");
  add_output_options(*verb, options->output);
}

}  // namespace motley::cli
