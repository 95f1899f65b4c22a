// Training plans for a whole cluster: `plan train`, and what verify, explain, simulate and compare do with them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "motley/base/printable.hpp"
#include "motley/cli/explain.hpp"
#include "motley/cli/plan_train.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/model/warnings.hpp"
#include "motley/planner/train/joint/joint.hpp"
#include "motley/planner/train/plan_train.hpp"
#include "motley/report/cost_report.hpp"
#include "motley/report/train_report.hpp"

namespace motley::cli {

int plan_train_and_show(const TrainPlanOptions& options) {
  const Output& output = options.output;
  check_output_folder(output);
  const Cluster cluster = read_cluster(options.cluster);
  const Model model = read_named_model(options.model);
  warn(model_warnings(model), output.quiet);
  const Workload workload = read_workload(options.workload);
  TrainOptions planning{.cost = cost_options(options.cost.empty() ? "motley" : options.cost, options.settings),
                        .profile = options.profile.empty() ? Profile{} : read_profile(options.profile),
                        .deadline_s = parse_seconds_option(options.deadline, "--deadline"),
                        .seed = options.seed,
                        .threads = thread_count(options.threads)};
  if (options.stages > 0) planning.stages = options.stages;
  if (options.replicas > 0) planning.replicas = options.replicas;
  if (!output.quiet)
    fmt::print(stderr, "planning {} on {}, at most {:.3g} s\n", printable(model.name),
               printable(cluster.description.name), planning.deadline_s);
  const TrainOutcome outcome = plan_train(cluster, model, workload, planning);
  if (!outcome.plan) return emit_infeasible(output, outcome.reason, outcome.hint);
  emit(output, write(*outcome.plan), train_plan_report(*outcome.plan));
  return 0;
}

namespace {

constexpr int parts_depth = 2;  // of a replica: computing and what it is made of
constexpr int whole_depth = 4;  // of the whole tree, with these parts

// The replica that all others wait for, in parts.
std::string slowest_replica(const Term& tree, int depth) {
  if (tree.children.empty() || tree.children.front().kind != TermKind::max || depth >= whole_depth) return {};
  const std::vector<Term>& replicas = tree.children.front().children;
  const auto slowest = std::max_element(replicas.begin(), replicas.end(),
                                        [](const Term& a, const Term& b) { return a.value < b.value; });
  return fmt::format("\nparts of {}{}\n{}", slowest->name, replicas.size() > 1 ? ", the slowest" : "",
                     term_report(*slowest, parts_depth));
}

}  // namespace

int explain(const TrainPlan& plan, const ExplainOptions& options) {
  const std::string form = options.form.empty() ? plan.search.cost : options.form;
  const CostOptions cost = cost_options(form.empty() ? "motley" : form, options.settings);
  const TrainCost price = price_train(plan, cost);
  std::string text = fmt::format("cost form {}, {}\n\nwhere a step's time goes\n{}", cost.form,
                                 train_plan_summary(plan), term_report(price.tree, options.depth));
  if (cost.form == "motley") text += slowest_replica(price.tree, options.depth);
  for (const auto& remark : price.remarks) text += fmt::format("{}: {:.6g} s\n", remark.name, remark.seconds);
  const auto prices = cost.form == "motley" ? memory_prices_s_per_byte(plan, cost) : std::vector<std::vector<double>>{};
  text += train_memory_report(plan, prices);
  Value json = explain_json(price.tree);
  json.set("memory", train_memory_json(plan, prices));
  const std::vector<TypeUncertainty> uncertain = uncertainties(plan, cost);
  json.set("doubts", uncertainty_json(uncertain));
  text += uncertainty_report(uncertain, price.tokens_per_s);
  emit(options.output, json, text);
  return 0;
}

int simulate_train(const TrainPlan& plan, const std::string& file, const CostOptions& cost,
                   const std::string& trace_out, const Output& output) {
  require_sound(verify(plan), file);
  std::vector<PipelinePass> passes;
  const TrainStepPrice price = price_step(plan, cost, &passes);
  if (!trace_out.empty()) {
    write_file(trace_out, train_chrome_trace(plan, price, passes));
    if (!output.quiet) fmt::print(stderr, "wrote {}\n", trace_out);
  }
  emit(output, train_step_json(plan, price), train_step_report(plan, price));
  return 0;
}

}  // namespace motley::cli
