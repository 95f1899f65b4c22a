// Training plans against published ones: figures and the time they take. `train_bench [grids|layouts|homogeneous]`.
#include <string_view>

#include "train_tables.hpp"

int main(int argc, char** argv) {
  const std::string_view which = argc > 1 ? argv[1] : "";
  if (which.empty() || which == "grids") motley::print_grids();
  if (which.empty() || which == "layouts") motley::print_layouts();
  if (which.empty() || which == "homogeneous") motley::print_homogeneous();
}
