// The two files of a batch in OpenAI's format: requests that are read line by line, and answers that are appended.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>

#include "motley/base/value.hpp"
#include "motley/comm/net/file_descriptor.hpp"

namespace motley {

struct BatchRequest {
  std::int64_t line = 0;  // from 1
  std::string custom_id, url;
  Value body;
};

// Reads one line after the other, so that a long file takes no memory. Throws input errors that name the line.
class BatchReader {
 public:
  explicit BatchReader(const std::filesystem::path& path);
  std::optional<BatchRequest> next();  // empty lines are skipped

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  std::int64_t line_ = 0;
};

// Names, 16 bytes each whatever their length.
class NameSet {
 public:
  bool insert(const std::string& name);  // false: it was there
  bool contains(const std::string& name) const { return digests_.contains(digest(name)); }
  std::size_t size() const { return digests_.size(); }

 private:
  using Digest = std::array<std::uint64_t, 2>;
  static Digest digest(const std::string& name);
  std::set<Digest> digests_;
};

// Of one process at a time.
class AnswerFile {
 public:
  // Made where it does not exist. A last line without an end was being written when its process ended: it goes. Throws
  // an input error where the file holds other things than answers, or an answer twice, and where another process has
  // it.
  explicit AnswerFile(std::filesystem::path path);
  const NameSet& answered() const { return answered_; }
  // Throws an environment error where it cannot be written whole; then nothing of it is.
  void append(const Value& answer);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::int64_t bytes_ = 0;
  NameSet answered_;
};

}  // namespace motley
