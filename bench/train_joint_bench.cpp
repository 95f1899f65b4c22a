// The training planner on pools that mix everything: against each published view applied alone, and as the cluster
// grows. `train_joint_bench [PLANNING_SECONDS [views|growth]]`; every plan is priced event by event by the same form.
#include <cstdlib>
#include <string_view>

#include "train_tables.hpp"

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 30;
  const std::string_view which = argc > 2 ? argv[2] : "";
  if (which != "growth") motley::print_views(seconds);
  if (which != "views") motley::print_growth(2 * seconds);
}
