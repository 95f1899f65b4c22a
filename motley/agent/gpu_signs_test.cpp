#include "motley/agent/gpu_signs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

GpuState state_of(const GpuSigns& signs) { return verdict_on(signs).state; }

TEST(GpuSigns, TheActionThatTheDriverNamesDecides) {
  constexpr auto works = GpuState::works, reset = GpuState::needs_reset, gone = GpuState::gone;
  constexpr GpuState by_action[] = {works, reset, gone, works, reset, works, reset, gone, works};
  for (unsigned action = 0; action < std::size(by_action); ++action)
    for (const auto& errors : std::vector<std::set<unsigned long long>>{{}, {13}, {48}, {79}})
      EXPECT_EQ(state_of({.recovery_action = action, .critical_errors = errors}), by_action[action]) << action;
}

TEST(GpuSigns, WithoutAnActionTheNumberOfTheErrorDecides) {
  for (const unsigned long long of_program : {8, 13, 31, 43, 45, 63, 64, 94, 1000})
    EXPECT_EQ(state_of({.critical_errors = {of_program}}), GpuState::works) << of_program;
  for (const unsigned long long of_card : {48, 74, 95, 119})
    EXPECT_EQ(state_of({.critical_errors = {13, of_card}}), GpuState::needs_reset) << of_card;
  for (const unsigned long long of_rows : {63, 64})
    EXPECT_EQ(state_of({.critical_errors = {of_rows}, .remap_pending = true}), GpuState::needs_reset) << of_rows;
  EXPECT_EQ(state_of({.critical_errors = {13, 48, 79}}), GpuState::gone);
  EXPECT_EQ(state_of({.remap_pending = true}), GpuState::works);
}

TEST(GpuSigns, AGpuThatDoesNotAnswerIsJudgedByItsAnswer) {
  EXPECT_EQ(state_of({.answer = NvmlAnswer::gpu_is_lost}), GpuState::gone);
  EXPECT_EQ(state_of({.answer = NvmlAnswer::gpu_is_lost, .recovery_action = 0}), GpuState::gone);
  EXPECT_EQ(state_of({.answer = NvmlAnswer::needs_reset}), GpuState::needs_reset);
  EXPECT_EQ(state_of({.answer = NvmlAnswer::needs_reset, .recovery_action = 2}), GpuState::gone);
  EXPECT_EQ(state_of({.answer = NvmlAnswer::not_supported}), GpuState::works);
}

TEST(GpuSigns, TheCauseSaysWhatTheDriverSaid) {
  EXPECT_THAT(verdict_on({}).cause, IsEmpty());
  EXPECT_THAT(verdict_on({.recovery_action = 4}).cause, HasSubstr("asks for a reset of the GPU (recovery action 4)"));
  EXPECT_THAT(verdict_on({.critical_errors = {79}}).cause, HasSubstr("has lost the GPU (Xid 79)"));
}

// ---- memory that comes back ----

class GpuReleaseTest : public ::testing::Test {
 protected:
  GpuRelease::Step look(double at_s, const std::vector<unsigned>& listed, std::int64_t free_bytes) {
    return release_.look(listed, free_bytes, begun_ + duration_of(at_s));
  }

  const Instant begun_ = Clock::now();
  GpuRelease release_{{4711, 4712}, begun_};
  static constexpr auto waits = GpuRelease::Step::waits, released = GpuRelease::Step::released,
                        given_up = GpuRelease::Step::given_up;
};

TEST_F(GpuReleaseTest, EndsOnceTheProcessesAreGoneAndNothingChanges) {
  EXPECT_EQ(look(0, {4711, 9}, 10), waits);
  EXPECT_EQ(look(3, {4711, 9}, 10), waits) << "it is listed, though nothing changes";
  EXPECT_EQ(look(3.1, {9}, 50), waits);
  EXPECT_EQ(look(3.2, {9}, 80), waits);
  EXPECT_EQ(look(3.35, {9}, 80), waits);
  EXPECT_EQ(look(3.41, {9}, 80), released) << "process 9 is another's";
}

TEST_F(GpuReleaseTest, IsShortWhereNothingWasHeld) {
  EXPECT_EQ(look(0, {}, 10), waits);
  EXPECT_EQ(look(0.21, {}, 10), released);
}

TEST_F(GpuReleaseTest, IsGivenUp) {
  EXPECT_EQ(look(9.9, {4712}, 10), waits);
  EXPECT_EQ(look(10.01, {4712}, 10), given_up);
  EXPECT_EQ(release_.left(), std::set<unsigned>{4712});
  std::int64_t free_bytes = 0;
  GpuRelease restless({}, begun_);
  for (double at_s = 0; at_s < 9.95; at_s += 0.1)
    EXPECT_EQ(restless.look({}, ++free_bytes, begun_ + duration_of(at_s)), waits) << at_s;
  EXPECT_EQ(restless.look({}, ++free_bytes, begun_ + duration_of(10.1)), given_up);
  EXPECT_THAT(restless.left(), IsEmpty());
}

}  // namespace
}  // namespace motley
