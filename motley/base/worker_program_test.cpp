#include "motley/base/worker_program.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

// An environment whose LibTorch the test writes.
class WorkerProgram : public ::testing::Test {
 protected:
  WorkerProgram() {
    std::string pattern = (std::filesystem::temp_directory_path() / "motley-venv-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    if (const char* given = std::getenv("MOTLEY_VENV")) before_ = given;
    ::setenv("MOTLEY_VENV", folder_.c_str(), 1);
  }
  ~WorkerProgram() override {
    before_.empty() ? ::unsetenv("MOTLEY_VENV") : ::setenv("MOTLEY_VENV", before_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  std::string complaint() {
    try {
      return "none: " + libtorch_version();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment);
      return error.what();
    }
  }
  std::filesystem::path folder_;
  std::string before_;
};

TEST_F(WorkerProgram, NeedsTheLibTorchThatItWasLinkedWith) {
  EXPECT_THAT(complaint(), HasSubstr("lacks LibTorch"));
  const std::filesystem::path torch = python_packages() / "torch";
  std::filesystem::create_directories(torch / "lib");
  std::ofstream(torch / "lib/libtorch_cpu.so") << "a library";
  EXPECT_THAT(complaint(), HasSubstr("has LibTorch of an unknown version"));
  std::ofstream(torch / "version.py") << "__version__ = '1.2.3+cu130'\n";
  EXPECT_THAT(complaint(), HasSubstr("has LibTorch 1.2.3, and motley-worker needs "));
}

}  // namespace
}  // namespace motley
