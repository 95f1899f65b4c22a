#include "motley/workload/workload_warnings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace motley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> warnings_of(const std::function<void(RequestClass&)>& change) {
  Workload workload = default_workload();
  change(workload.classes[0]);
  return workload_warnings(workload);
}

TEST(WorkloadWarnings, FiguresThatAreMostLikelyInAnotherUnit) {
  EXPECT_THAT(warnings_of([](RequestClass&) {}), IsEmpty());
  EXPECT_THAT(warnings_of([](RequestClass& c) { c.rate_per_s = 1e5; }), IsEmpty());
  EXPECT_THAT(warnings_of([](RequestClass& c) { c.rate_per_s = 2e5; }),
              ElementsAre("rate of class \"chat\" is read as 200000 /s: is the unit right?"));
  EXPECT_THAT(warnings_of([](RequestClass& c) { c.prompt_tokens.mean = 2e6; }), IsEmpty());
  EXPECT_THAT(warnings_of([](RequestClass& c) { c.prompt_tokens.mean = 3e6; }),
              ElementsAre("prompt_tokens of class \"chat\" is read as 3e+06: is the unit right?"));
}

TEST(WorkloadWarnings, DeadlinesThatNobodyMeans) {
  EXPECT_THAT(warnings_of([](RequestClass& c) { c.deadline = {1e-3, 50e-6, 24 * 3600}; }), IsEmpty());
  EXPECT_THAT(warnings_of([](RequestClass& c) { c.deadline = {24 * 3600, 60, 1e-3}; }), IsEmpty());
  EXPECT_THAT(warnings_of([](RequestClass& c) {
                c.deadline = {0.5e-3, 40e-6, 25 * 3600};
              }),
              ElementsAre("deadline.first_token of class \"chat\" is read as 0.5 ms: is the unit right?",
                          "deadline.per_token of class \"chat\" is read as 0.04 ms: is the unit right?",
                          "deadline.total of class \"chat\" is read as 90000 s: is the unit right?"));
  EXPECT_THAT(warnings_of([](RequestClass& c) { c.deadline = {25 * 3600, 61, 0.5e-3}; }), testing::SizeIs(3));
}

}  // namespace
}  // namespace motley
