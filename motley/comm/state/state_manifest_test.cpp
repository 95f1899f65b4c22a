#include "motley/comm/state/state_manifest.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "motley/comm/state/state_model_test.hpp"

namespace motley {
namespace {

using namespace state_test;
using ::testing::HasSubstr;

TEST(StateManifest, HasTheDigestsOfItsChunks) {
  // FIPS 180-2, appendix B.1.
  const std::string abc = "abc";
  EXPECT_EQ(to_hex(sha256(std::as_bytes(std::span(abc)))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const Model model(1);
  const auto manifest = describe_state({7, 42}, model.read());
  ASSERT_EQ(manifest.items.size(), 6u);
  EXPECT_EQ(manifest.bytes(), 7 * chunk + 17);
  EXPECT_EQ(manifest.items[0].chunks.size(), 3u);
  EXPECT_EQ(manifest.items[2].chunks.size(), 0u);
  EXPECT_EQ(chunk_range(manifest.items[0], 2), (StateRange{2 * chunk, 2 * chunk + 5}));
  EXPECT_EQ(manifest.items[0].chunks[2], sha256(std::span(model.items[0].second).last(5)));
  EXPECT_EQ(manifest.items[3].chunks, manifest.items[4].chunks);
  EXPECT_NE(digest(manifest), digest(describe_state({7, 43}, model.read())));
}

TEST(StateManifest, RefusesNamesThatAreNoNames) {
  const Bytes bytes(3);
  const std::vector<StateBuffer<const std::byte>> twice{{"a", bytes}, {"a", bytes}}, nameless{{"", bytes}};
  EXPECT_THAT(message_of([&] { describe_state({}, twice); }), HasSubstr("two parts of the state are called \"a\""));
  EXPECT_THAT(message_of([&] { describe_state({}, nameless); }), HasSubstr("name of 0 bytes"));
}

TEST(StateManifest, SurvivesEncoding) {
  const auto manifest = describe_state({7, 42}, Model(1).read());
  EXPECT_EQ(decode_manifest(encode_manifest(manifest)), manifest);
}

// Its digest is what groups have agreed on: other bytes are another state.
TEST(StateManifest, HasTheBytesThatItHad) {
  StateDigest digest;
  digest.bytes.fill(0xab);
  std::string hex;
  for (const char c : encode_manifest({{7, 42}, {{"w", 3, {digest}}}}))
    hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  std::string digits;
  for (std::size_t i = 0; i < digest.bytes.size(); ++i) digits += "ab";
  EXPECT_EQ(hex,
            "6d7453540100"
            "0700000000000000"
            "2a00000000000000"
            "01000000"
            "0100000077"
            "0300000000000000"
            "01000000" +
                digits);
}

RC_GTEST_PROP(StateManifest, BelievesNothing, ()) {
  static const std::string sound = encode_manifest(describe_state({7, 42}, Model(1).read()));
  std::string text = sound;
  const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
  if (*rc::gen::arbitrary<bool>())
    text.resize(at);
  else
    text[at] = static_cast<char>(text[at] ^ *rc::gen::inRange(1, 256));
  try {
    const auto manifest = decode_manifest(text);  // a changed digest, name or revision is a manifest still
    for (const auto& item : manifest.items)
      RC_ASSERT(static_cast<std::int64_t>(item.chunks.size()) == (item.bytes + chunk - 1) / chunk);
  } catch (const Error& error) {
    RC_ASSERT(error.code() == ErrorCode::peer);
  }
}

}  // namespace
}  // namespace motley
