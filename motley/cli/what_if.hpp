// "What if": the options of a plan made again under changed conditions.
#pragma once

#include <CLI/CLI.hpp>

#include "motley/planner/serve/plan_again.hpp"

namespace motley::cli {

void add_change_options(CLI::App& verb, Changes& changes);

}  // namespace motley::cli
