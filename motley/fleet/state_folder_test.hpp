// A folder of a test's own where state and digests are kept in place of the user's.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

namespace motley {

class StateFolder {
 public:
  StateFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "motley-state-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path = pattern;
    for (const char* name : names) {
      if (const char* given = std::getenv(name)) before_[name] = given;
      ::setenv(name, path.c_str(), 1);
    }
  }
  ~StateFolder() {
    for (const char* name : names) before_.contains(name) ? ::setenv(name, before_[name].c_str(), 1) : ::unsetenv(name);
    std::filesystem::remove_all(path);
  }
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  std::filesystem::path path;

 private:
  static constexpr const char* names[] = {"XDG_STATE_HOME", "XDG_CACHE_HOME"};
  std::map<std::string, std::string> before_;
};

}  // namespace motley
