// What every fuzz target does: foreign bytes in; an answer or a motley::Error out, and nothing else.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "motley/base/error.hpp"

namespace motley {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Any other exception, a broken invariant, and a broken environment, which would hide the parser, end the program, and
// libFuzzer keeps the input.
template <class Parse>
int refused_or_read(const Parse& parse) {
  try {
    parse();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal || error.code() == ErrorCode::environment) throw;
  }
  return 0;
}

// For parsers that take a path: the bytes in a file in memory, of this process alone.
inline std::filesystem::path file_of(std::string_view bytes, std::string_view extension) {
  static const std::string folder = [] {
    std::string name = "/dev/shm/motley-fuzz-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    static std::string made = name;
    std::atexit([] { std::filesystem::remove_all(made); });
    return name;
  }();
  const std::filesystem::path path = folder + "/input" + std::string(extension);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) std::abort();
  std::fclose(file);
  return path;
}

}  // namespace motley
