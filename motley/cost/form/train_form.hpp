// What a cost form says of a training plan.
#pragma once

#include <string>
#include <vector>

#include "motley/cost/form/term.hpp"

namespace motley {

// A figure in addition to the total, for people: "the worst whole pipeline".
struct TrainRemark {
  std::string name;
  double seconds = 0;
};

struct TrainCost {
  double iteration_s = 0;
  double tokens_per_s = 0;  // 0 where the form does not count all of a step
  double mfu = 0;           // model FLOPs per second as a share of the working devices' peak; 0 where it does not
  Term tree;                // of iteration_s
  std::vector<TrainRemark> remarks;
};

}  // namespace motley
