// Keys by which requests find blocks of keys and values that others have filled with the same tokens: each is the
// SHA-256 of the key before it and of its block's token ids, the first of them of a salt. Who does not know the salt
// finds nothing, and cannot tell from times what others have asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/batching/block_pool.hpp"

namespace motley {

class PrefixKeys {
 public:
  PrefixKeys(std::int64_t block_tokens, const std::string& salt);
  // Of the blocks that these tokens fill, less those of the tokens that were given before, which these begin with.
  std::vector<BlockKey> extend(const std::vector<std::int32_t>& tokens);

 private:
  std::int64_t block_tokens_;
  BlockKey last_;
  std::int64_t blocks_ = 0;
};

}  // namespace motley
