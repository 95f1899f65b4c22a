// How quickly the real server answers people.
#pragma once

#include <cstdint>
#include <filesystem>

#include "motley/plan/serve.hpp"
#include "motley/serving/driver.hpp"

namespace motley {

// Serves the plan with the driver of these options and asks it over HTTP, under light load, for answers of so many
// tokens; for `seconds` at most, but once. `text_folder`: whose tokenizer reads the prompts; empty: they are token ids.
// Throws as Driver and stream_completion().
AnswerTimes measure_answers(const ServePlan& plan, DriverOptions driver, const std::filesystem::path& text_folder,
                            std::int64_t answer_tokens, double seconds);

}  // namespace motley
