// Files of token ids: mapped, so that only the pages of what is read are in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "motley/checkpoint/stored_tensor.hpp"

namespace motley {

// How ids lie in a file, little-endian. `marked`: uint32 whose highest bit says that the token is learned.
enum class TokenType { uint8, int8, uint16, int16, uint32, int32, int64, marked };
std::size_t bytes_of_token(TokenType type);

struct Tokens {
  std::vector<std::int64_t> ids;  // not checked against a vocabulary
  std::vector<bool> learned;      // whether it counts for the loss where it is to be predicted
};

class TokenFile {
 public:
  // A vector of uint16, uint32 or int64, as numpy saves it.
  static TokenFile open_npy(const std::filesystem::path& path);
  // Megatron's pair of files, FILE.bin and FILE.idx: the tokens of all documents in the order of the file. The index is
  // checked against the file.
  static TokenFile open_megatron(const std::filesystem::path& bin);
  // What MarkedTokenWriter writes.
  static TokenFile open_marked(const std::filesystem::path& path);

  std::int64_t size() const { return size_; }
  // [first, first + count), inside the file.
  Tokens read(std::int64_t first, std::int64_t count) const;

 private:
  TokenFile(std::shared_ptr<MappedFile> file, std::size_t header_bytes, TokenType type, std::int64_t size);

  std::shared_ptr<MappedFile> file_;
  std::span<const std::byte> bytes_;
  TokenType type_;
  std::int64_t size_;
};

// Maps a file of training data. Throws an input error that says what such a file is.
std::shared_ptr<MappedFile> map_data(const std::filesystem::path& path);

// Writes tokens, each with whether it is learned, to a new file that takes its name only once it is whole. Gone before
// finish(), it leaves nothing; errors are environment errors.
class MarkedTokenWriter {
 public:
  explicit MarkedTokenWriter(const std::filesystem::path& folder);
  ~MarkedTokenWriter();
  MarkedTokenWriter(const MarkedTokenWriter&) = delete;
  MarkedTokenWriter& operator=(const MarkedTokenWriter&) = delete;

  void add(std::int32_t token, bool learned);
  std::uint64_t size() const { return written_ + pending_.size(); }  // tokens so far
  void finish(const std::filesystem::path& path);
  // Without a name: the tokens stay as long as they are mapped.
  TokenFile finish_unnamed();

 private:
  void flush();
  void complete();

  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::vector<std::uint32_t> pending_;
  std::uint64_t written_ = 0;
};

}  // namespace motley
