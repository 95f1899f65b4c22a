// `motley generate`: the requests of a file answered into another, by workers that run meanwhile. Both are in OpenAI's
// batch format: a line each.
#pragma once

#include <filesystem>

#include "motley/plan/serve_plan.hpp"
#include "motley/server/serve_settings.hpp"
#include "motley/serving/served_deployment.hpp"

namespace motley {

struct GenerateFiles {
  std::filesystem::path input, output;
};

// Appends a line for each request of `input` that `output` has no answer to, in the order in which they end, and
// returns 0 when there is none left. A line that was cut off by an earlier end is removed first. Of `settings` it uses
// `model_folder` and `report`. Throws an input error, before any worker starts, for a file that is not in
// the format and for answers to requests that `input` does not have; an environment error where an answer cannot be
// written, as on a full disk; a peer error where the deployment fails. What was answered stays in `output`.
int generate_answers(ServePlan plan, ServedDeployment& deployment, ServeSettings settings, const GenerateFiles& files);

}  // namespace motley
