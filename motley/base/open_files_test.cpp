#include "motley/base/open_files.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

namespace motley {
namespace {

TEST(OpenFiles, TheLimitIsRaisedAsFarAsItMayBe) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{64, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  raise_open_files();
  rlimit raised{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, std::min<rlim_t>(before.rlim_max, 65536));
  EXPECT_EQ(raised.rlim_max, before.rlim_max);
  // One that is higher stays.
  raise_open_files();
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_GE(raised.rlim_cur, std::min<rlim_t>(before.rlim_max, 65536));
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace motley
