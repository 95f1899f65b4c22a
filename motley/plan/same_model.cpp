#include "motley/plan/same_model.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"

namespace motley {
namespace {

void require_same_model(const Architecture& planned, const Architecture& given, const std::string& named) {
  if (planned == given) return;
  const std::string plan_again = fmt::format("plan again with --model {}", named);
  Architecture tied_alike = given;
  tied_alike.tied_embeddings = planned.tied_embeddings;
  if (planned == tied_alike)
    throw input_error(fmt::format("{} has a head that {} the embedding, and the plan counts otherwise", named,
                                  given.tied_embeddings ? "is" : "differs from"),
                      plan_again);
  throw input_error(fmt::format("{} has another model than the plan: {} layers of hidden size {}, not {} of {}", named,
                                given.layers, given.hidden, planned.layers, planned.hidden),
                    plan_again);
}

}  // namespace

void require_same_model(const ServePlan& plan, const Model& model, const std::string& named) {
  Architecture planned = plan.model.arch, given = model.arch;
  planned.eos_tokens = given.eos_tokens = {};  // generation settings may differ
  // The same model may be given in another form: its tensors' types count only where the plan takes them from a file.
  const bool of_a_file = std::any_of(plan.stages.begin(), plan.stages.end(),
                                     [](const Stage& stage) { return stage.weight_type == DType::file; });
  if (of_a_file && planned.tensor_types != given.tensor_types)
    throw input_error(fmt::format("{} holds its tensors in other types than the plan counts with", named),
                      fmt::format("plan again with --model {}", named));
  set_tensor_types(planned, {});
  set_tensor_types(given, {});
  planned.checkpoint_type = given.checkpoint_type;
  planned.pad_token = given.pad_token;  // of training alone
  if (plan.model.context) given.context = planned.context;
  require_same_model(planned, given, named);
  if (!plan.model.digest.empty() && !model.digest.empty() && plan.model.digest != model.digest)
    throw input_error(fmt::format("{} is not the file or folder that the plan was made for: its digest is {}, the "
                                  "plan's is {}",
                                  named, model.digest, plan.model.digest),
                      "give the model that was planned for, or plan again with --model " + named);
}

void require_same_model(const TrainPlan& plan, const Model& model, const std::string& named) {
  Architecture planned = plan.model.arch, given = model.arch;
  planned.eos_tokens = given.eos_tokens = {};
  set_tensor_types(planned, {});
  set_tensor_types(given, {});
  planned.checkpoint_type = given.checkpoint_type;
  require_same_model(planned, given, named);
}

}  // namespace motley
