#include "motley/checkpoint/digest.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <array>
#include <set>

#include "motley/base/error.hpp"
#include "motley/base/value.hpp"
#include "motley/checkpoint/safetensors.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "sha256:";

class Sha256 {
 public:
  Sha256() { MOTLEY_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1); }

  // Each piece with its length, so that no two lists of pieces read alike.
  void add(std::span<const std::byte> piece) {
    const std::uint64_t size = piece.size();
    MOTLEY_CHECK(EVP_DigestUpdate(context_.get(), &size, sizeof size) == 1 &&
                 EVP_DigestUpdate(context_.get(), piece.data(), piece.size()) == 1);
  }
  void add(const std::string& text) { add(std::as_bytes(std::span(text))); }

  std::string text() {
    std::array<unsigned char, 32> digest{};
    MOTLEY_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    return fmt::format("{}{:02x}", prefix, fmt::join(digest, ""));
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_{EVP_MD_CTX_new()};
};

// The files of the folder's weights, by name; none where it has no list of them that can be read.
std::set<std::string> weight_files(const fs::path& folder) {
  const fs::path index_path = folder / "model.safetensors.index.json";
  std::error_code ignored;
  if (!fs::is_regular_file(index_path, ignored)) return {"model.safetensors"};
  std::set<std::string> files;
  const Value index = read_document(index_path);
  if (const Value* weight_map = index.find("weight_map"); weight_map && weight_map->is_object())
    for (const auto& [tensor, file] : weight_map->as_object())
      if (file.is_string()) files.insert(file.as_string());
  return files;
}

}  // namespace

std::array<std::byte, 32> sha256_of(std::span<const std::byte> bytes) {
  std::array<std::byte, 32> digest{};
  MOTLEY_CHECK(EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
                          EVP_sha256(), nullptr) == 1);
  return digest;
}

bool is_digest(const std::string& text) {
  return text.size() == prefix.size() + 64 && text.starts_with(prefix) &&
         text.find_first_not_of("0123456789abcdef", prefix.size()) == std::string::npos;
}

std::string digest_of(const std::vector<std::unique_ptr<GgufFile>>& parts) {
  Sha256 digest;
  for (const auto& part : parts) digest.add(part->header());
  return digest.text();
}

std::string folder_digest(const fs::path& config_json) {
  const fs::path folder = config_json.parent_path();
  try {
    Sha256 digest;
    digest.add(read_file(config_json));
    const std::set<std::string> files = weight_files(folder);
    for (const std::string& file : files) {
      digest.add(file);
      digest.add(SafetensorsFile(folder / file).header());
    }
    return files.empty() ? std::string() : digest.text();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
    return {};
  }
}

}  // namespace motley
