// How quickly the real server answers people.
#pragma once

#include <cstdint>
#include <filesystem>

#include "motley/plan/serve_plan.hpp"
#include "motley/serving/requests.hpp"
#include "motley/workers/fleet.hpp"

namespace motley {

// Serves the plan by workers of this fleet and asks it over HTTP, under light load, for answers of this many tokens;
// for about `seconds` at most. `text_folder`: whose tokenizer reads the prompts; empty: they are token ids. Throws as
// Driver and stream_completion().
AnswerTimes measure_answers(const ServePlan& plan, Fleet& fleet, const std::filesystem::path& model_folder,
                            const std::filesystem::path& text_folder, std::int64_t answer_tokens, double seconds);

}  // namespace motley
