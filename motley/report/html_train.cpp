// The page of a training plan.
#include <fmt/format.h>

#include "motley/base/units.hpp"
#include "motley/cost/train/train_cost.hpp"
#include "motley/report/html_layout.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/html_page.hpp"
#include "motley/report/html_report.hpp"
#include "motley/report/html_timeline.hpp"
#include "motley/report/table.hpp"
#include "motley/report/train_report.hpp"

namespace motley {
namespace {

// The strategies of a stage; with their layers where they differ.
std::vector<std::string> strategy_facts(const TrainStage& stage) {
  std::vector<std::string> facts;
  for (const LayerStrategy& strategy : stage.strategies)
    facts.push_back(stage.strategies.size() == 1 ? strategy_text(strategy)
                                                 : fmt::format("{}-{} {}", strategy.layers.first,
                                                               strategy.layers.end - 1, strategy_text(strategy)));
  return facts;
}

PageLayout layout_of_page(const TrainPlan& plan) {
  PageLayout layout{.cluster = &plan.cluster,
                    .layers = plan.model.arch.layers,
                    .hop_bytes = static_cast<double>(bytes_of(DType::bf16, plan.model.arch.hidden)),
                    .unused = plan.unused};
  for (std::size_t r = 0; r < plan.replicas.size(); ++r) {
    const TrainReplica& replica = plan.replicas[r];
    PagePipeline& pipeline = layout.pipelines.emplace_back();
    pipeline.name = fmt::format("replica {}", r);
    pipeline.note = fmt::format("{:.3g}% of the batch in {} micro-batches", 100 * replica.share, replica.micro_batches);
    for (std::size_t s = 0; s < replica.stages.size(); ++s) {
      const TrainStage& stage = replica.stages[s];
      pipeline.hops.push_back({layout.stages.size(), stage.layers});
      PageStage& made = layout.stages.emplace_back();
      made.name = fmt::format("r{}/s{}", r, s);
      made.css_class = colour_class(r);
      made.layers = stage.layers;
      for (const auto& device : stage.devices) made.devices.push_back(plan.cluster.find_device(device));
      made.facts = strategy_facts(stage);
    }
  }
  return layout;
}

Html memory(const TrainPlan& plan) {
  std::vector<PageMemory> bars;
  for (const Device& device : plan.cluster.devices)
    if (const auto found = plan.predicted.memory_bytes.find(device.name); found != plan.predicted.memory_bytes.end()) {
      const TrainMemory& held = found->second;
      bars.push_back({device.name,
                      plan.cluster.types[static_cast<std::size_t>(device.type)].name,
                      {held.weights, held.gradients, held.activations, held.optimizer, held.reserve},
                      held.total(),
                      held.limit});
    }
  return memory_content({"weights", "gradients", "activations", "optimizer", "reserve"}, bars);
}

Html head(const TrainPlan& plan) {
  const Training& training = training_of(plan.workload);
  std::vector<PageFigure> list = {{"one step", human_seconds(plan.predicted.iteration_s), "predicted"}};
  if (plan.predicted.tokens_per_s > 0) list.push_back({"tokens", short_figure(plan.predicted.tokens_per_s) + "/s", ""});
  if (plan.predicted.mfu > 0) list.push_back({"MFU", percent(plan.predicted.mfu), "of the peak of the devices in use"});
  list.push_back({"batch", fmt::format("{}", training.global_batch),
                  fmt::format("sequences of {} tokens, {}, {}", training.sequence_length, name_of(training.precision),
                              training.optimizer)});
  list.push_back({"schedule", std::string(name_of(plan.schedule)),
                  fmt::format("gradients: {}{}", name_of(plan.sync.algorithm),
                              plan.sync.overlap ? ", overlapped with the backward pass" : "")});
  list.push_back(gap_figure(plan.search));
  const std::string bound =
      plan.search.bound ? fmt::format("No plan takes less than {}.", human_seconds(*plan.search.bound)) : "";
  return {paragraph("lead", train_plan_summary(plan) + "."), figures(list), search_sentence(plan.search, bound)};
}

Html cost(const TrainPlan& plan) {
  const CostOptions options{.form = plan.search.cost.empty() ? "motley" : plan.search.cost};
  try {
    const TrainCost priced = price_train(plan, options);
    Html content = {paragraph("", fmt::format("Time of a step in cost form {}: {}. Click a term to unfold it.",
                                              options.form, human_seconds(priced.tree.value))),
                    cost_content(priced.tree)};
    for (const TrainRemark& remark : priced.remarks)
      content += paragraph("note", fmt::format("{}: {}", remark.name, human_seconds(remark.seconds)));
    return content;
  } catch (const Error& error) {
    return paragraph("note", fmt::format("Not priced: {}.", error.what()));
  }
}

}  // namespace

std::string html_report(const TrainPlan& plan) {
  const PageLayout layout = layout_of_page(plan);
  const std::string& cluster = plan.cluster.description.name;
  return page("motley plan: train", fmt::format("{} on {}", plan.model.name, cluster.empty() ? "the cluster" : cluster),
              head(plan),
              {{"cluster", "Cluster", cluster_content(layout)},
               {"stages", "Stages", stages_content(layout)},
               {"memory", "Memory", memory(plan)},
               {"cost", "Cost", cost(plan)},
               {"timeline", "Timeline", train_timeline(plan)}});
}

}  // namespace motley
