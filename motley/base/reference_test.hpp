// For tests: the tables in docs/reference are those that the program works by. `./dev docs` writes them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "motley/base/binding.hpp"

namespace motley {

// The text between the markers of docs/reference/FILE must be `generated`. With MOTLEY_UPDATE_DOCS set, it is put
// there.
inline void expect_text_is_current(const std::string& file, const std::string& generated) {
  const std::string begin = "<!-- generated: begin -->\n", end = "<!-- generated: end -->\n";
  const std::string path = MOTLEY_SOURCE_DIR "/docs/reference/" + file;
  const std::string text = read_file(path);
  const auto first = text.find(begin), last = text.find(end);
  ASSERT_TRUE(first != std::string::npos && last != std::string::npos && first < last) << path << " has no markers";
  const auto from = first + begin.size();
  if (std::getenv("MOTLEY_UPDATE_DOCS")) return write_file(path, text.substr(0, from) + generated + text.substr(last));
  EXPECT_TRUE(text.substr(from, last - from) == generated) << path << " is not current: run ./dev docs";
}

inline void expect_reference_is_current(const std::string& file, const SchemaDoc& doc) {
  expect_text_is_current(file, document_markdown(doc));
}

}  // namespace motley
