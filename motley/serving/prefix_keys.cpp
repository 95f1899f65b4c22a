#include "motley/serving/prefix_keys.hpp"

#include <bit>
#include <span>

#include "motley/base/error.hpp"
#include "motley/checkpoint/digest.hpp"

namespace motley {

PrefixKeys::PrefixKeys(std::int64_t block_tokens, const std::string& salt)
    : block_tokens_(block_tokens),
      last_(std::bit_cast<BlockKey>(sha256_of(std::as_bytes(std::span<const char>(salt))))) {
  MOTLEY_CHECK(block_tokens > 0);
}

std::vector<BlockKey> PrefixKeys::extend(const std::vector<std::int32_t>& tokens) {
  std::vector<BlockKey> keys;
  for (; (blocks_ + 1) * block_tokens_ <= std::ssize(tokens); ++blocks_) {
    const auto of_block = std::span(tokens).subspan(static_cast<std::size_t>(blocks_ * block_tokens_),
                                                    static_cast<std::size_t>(block_tokens_));
    const auto before = std::as_bytes(std::span(last_.digest));
    const auto ids = std::as_bytes(of_block);
    std::vector<std::byte> hashed(before.begin(), before.end());
    hashed.insert(hashed.end(), ids.begin(), ids.end());
    last_ = std::bit_cast<BlockKey>(sha256_of(hashed));
    keys.push_back(last_);
  }
  return keys;
}

}  // namespace motley
