// Writes a GGUF file of version 3: what GgufFile reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace motley {

class GgufWriter {
 public:
  // Metadata, in the order of the calls. Each key once.
  void set_u32(std::string_view key, std::uint32_t value);
  void set_f32(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_text(std::string_view key, std::string_view value);
  void set_texts(std::string_view key, const std::vector<std::string>& values);
  void set_i32s(std::string_view key, const std::vector<std::int32_t>& values);
  void set_bools(std::string_view key, const std::vector<bool>& values);
  void set_f32s(std::string_view key, const std::vector<float>& values);

  // Announces a tensor of a type of gguf_types(); the last size of the shape counts the values of a row.
  void add_tensor(std::string_view name, std::string_view type, const std::vector<std::int64_t>& shape);
  std::int64_t tensor_count() const { return static_cast<std::int64_t>(sizes_.size()); }

  // Header and tensors into a temporary file that is then renamed, so that a file of this name is whole. `bytes_of`
  // gives the tensors' bytes one after another, in the order they were announced, in as many parts as it likes.
  using Sink = std::function<void(std::span<const std::byte>)>;
  void write(const std::filesystem::path& path, const std::function<void(std::int64_t tensor, const Sink&)>& bytes_of);

 private:
  void key(std::string_view name, std::uint32_t kind);

  std::string metadata_, tensors_;
  std::uint64_t keys_ = 0;
  std::vector<std::uint64_t> sizes_;  // of the tensors, in bytes
  std::uint64_t end_ = 0;             // where the next tensor begins
};

}  // namespace motley
