#include "motley/serving/prefix_keys.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(PrefixKeys, OfFullBlocksAlone) {
  PrefixKeys keys(4, "");
  EXPECT_TRUE(keys.extend({1, 2, 3}).empty());
  EXPECT_EQ(keys.extend({1, 2, 3, 4, 5}).size(), 1u);
  EXPECT_EQ(keys.extend({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}).size(), 2u);
}

TEST(PrefixKeys, AreTheSameInPartsAndAtOnce) {
  PrefixKeys at_once(2, "salt"), in_parts(2, "salt");
  const std::vector<BlockKey> all = at_once.extend({1, 2, 3, 4, 5, 6});
  std::vector<BlockKey> parts = in_parts.extend({1, 2, 3});
  for (const BlockKey& key : in_parts.extend({1, 2, 3, 4, 5, 6})) parts.push_back(key);
  EXPECT_EQ(parts, all);
  EXPECT_EQ(all.size(), 3u);
}

TEST(PrefixKeys, DifferWhereAnyTokenBeforeOrTheSaltDiffers) {
  const auto second = [](const std::string& salt, const Tokens& tokens) {
    return PrefixKeys(2, salt).extend(tokens).at(1);
  };
  const BlockKey key = second("a", {1, 2, 3, 4});
  EXPECT_EQ(second("a", {1, 2, 3, 4, 5}), key);
  EXPECT_NE(second("b", {1, 2, 3, 4}), key);
  EXPECT_NE(second("a", {1, 7, 3, 4}), key);
  EXPECT_NE(second("a", {1, 2, 3, 7}), key);
  EXPECT_NE(second("a", {3, 4, 1, 2}), key);
  EXPECT_NE(PrefixKeys(4, "a").extend({1, 2, 3, 4}).at(0), key);
}

// By hashlib: of the salt's digest and the ids in little endian.
TEST(PrefixKeys, AreSha256) {
  const BlockKey key = PrefixKeys(2, "motley").extend({258, 3}).at(0);
  EXPECT_EQ(key, (BlockKey{{0x605f2af32e36fb90, 0x5ccc67e883901b8d, 0xdb776619bf9cd6e1, 0xd9fef01b8d24c463}}));
}

}  // namespace
}  // namespace motley
