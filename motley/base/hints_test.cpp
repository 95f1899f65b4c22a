#include "motley/base/error.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace motley {
namespace {

TEST(DidYouMean, QuotesTheClosestOrSaysTheOther) {
  EXPECT_EQ(did_you_mean("box/l", {"box/1", "rack/1"}, "give a device as machine/slot"), "did you mean \"box/1\"?");
  EXPECT_EQ(did_you_mean("--modle", {"--model"}, "", '`'), "did you mean `--model`?");
  EXPECT_EQ(did_you_mean("gone", {"box/1"}, "give a device as machine/slot"), "give a device as machine/slot");
  EXPECT_EQ(did_you_mean("gone", {}), "");
}

TEST(WithHint, PutsTheHintBehindTheText) {
  Error error = input_error("is empty", "write a token into it");
  error.prepend_context("token");
  EXPECT_EQ(with_hint(error), "token: is empty (write a token into it)");
  EXPECT_EQ(with_hint(input_error("is empty")), "is empty");
  EXPECT_EQ(with_hint(std::runtime_error("is full")), "is full");
}

}  // namespace
}  // namespace motley
