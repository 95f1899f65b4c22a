#include "motley/model/warnings.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

TEST(ModelWarnings, NameTheFirstTensorsThatNothingReads) {
  Model model;
  model.name = "tales";
  EXPECT_TRUE(model_warnings(model).empty());
  model.unread = {"a"};
  EXPECT_EQ(model_warnings(model).at(0), "tales: 1 tensor in its files that the model does not use: a");
  model.unread = {"a", "b", "c", "d", "e"};
  EXPECT_EQ(model_warnings(model).at(0), "tales: 5 tensors in its files that the model does not use: a, b, c, d, ...");
}

}  // namespace
}  // namespace motley
