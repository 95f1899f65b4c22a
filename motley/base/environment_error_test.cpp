#include "motley/base/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace motley {
namespace {

TEST(EnvironmentError, SaysTheCauseAndWhatToDo) {
  errno = EMFILE;
  const Error error = environment_error("cannot make a socket");
  EXPECT_EQ(error.code(), ErrorCode::environment);
  EXPECT_STREQ(error.what(), "cannot make a socket: Too many open files");
  EXPECT_EQ(error.hint(), "raise the limit of open files with ulimit -n");
  errno = EMFILE;
  EXPECT_EQ(environment_error("cannot make a socket", "the caller's own").hint(), "the caller's own");
  for (const int cause : {ENFILE, EAGAIN, ENOMEM, ENOSPC, EACCES, EPERM, EROFS}) {
    errno = cause;
    EXPECT_FALSE(environment_error("cannot").hint().empty()) << cause;
  }
}

}  // namespace
}  // namespace motley
