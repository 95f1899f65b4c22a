// For the tests of codecs: recorded answers, model folders that live as long as a test, and errors as values.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/text/text_codec.hpp"

namespace motley {

namespace fs = std::filesystem;

inline const fs::path text_data = fs::path(MOTLEY_SOURCE_DIR) / "tests/data/text";

inline const Value& member(const Value& object, std::string_view key) {
  const Value* member = object.find(key);
  if (!member) throw input_error("goldens.json lacks " + std::string(key), "write it again with its script");
  return *member;
}

inline std::vector<std::int32_t> tokens_of(const Value& list) {
  std::vector<std::int32_t> tokens;
  for (const auto& item : list.as_array()) tokens.push_back(static_cast<std::int32_t>(item.as_integer()));
  return tokens;
}

// A model folder that lives as long as the test.
class Folder {
 public:
  Folder() {
    std::string pattern = fs::temp_directory_path() / "motley-text-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  const Folder& write(const std::string& name, const std::string& content) const {
    write_file(path_ / name, content);
    return *this;
  }
  const Folder& copy(const fs::path& file) const {
    fs::copy_file(file, path_ / file.filename());
    return *this;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

template <class Work>
Error error_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::internal, "nothing was thrown");
}

}  // namespace motley
