#include "motley/cli/command.hpp"

namespace motley::cli {

void add_plan(CLI::App& parent, Action& action) {
  auto* verbs = parent.add_subcommand("plan", "Make a plan from files, without the devices");
  verbs->require_subcommand(1);
  verbs->footer(
      "examples:\n"
      "  motley plan serve --cluster examples/clusters/motivating-box.toml --model llama-2-70b -o plan.json\n"
      "  motley plan offload --machine examples/clusters/desk.toml --model llama-2-70b -o plan.json\n"
      "  motley plan allreduce --cluster examples/collectives/star.toml --bytes \"400 MB\"\n"
      "  motley plan rent --offers examples/renting/measured.json --budget \"8 $/h\"");
  for (const auto add : {add_plan_serve, add_plan_rent, add_plan_train, add_plan_offload, add_plan_collectives})
    add(*verbs, action);
}

}  // namespace motley::cli
