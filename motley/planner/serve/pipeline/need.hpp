// What a model asks for at least, what devices have, and what to say where that is too little.
#pragma once

#include "motley/planner/serve/pipeline/classes.hpp"
#include "motley/planner/serve/pipeline/search.hpp"

namespace motley {

// All weights once, and the KV cache of one request; bytes.
struct Need {
  double weights = 0;
  double kv = 0;
  double total() const { return weights + kv; }
};
Need least_need(const ServeProblem& problem);

// What a device has left without its reserve; and with its part of host memory and disk, where it may offload.
double usable_bytes(const ServeProblem& problem, int device);
double usable_with_tiers(const ServeProblem& problem, int device);

// Fills in reason and hint where no plan was found.
void say_why(const ServeProblem& problem, ServeOutcome& outcome);

}  // namespace motley
