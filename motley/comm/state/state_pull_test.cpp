// Pulls without sockets.
#include "motley/comm/state/state_pull.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "motley/comm/state/state_model_test.hpp"

namespace motley {
namespace {

using namespace state_test;
using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(const Model& model, const StateManifest& manifest, const StateDigest& wanted) {
  for (std::size_t i = 0; i < manifest.items.size(); ++i)
    for (std::size_t index = 0; index < manifest.items[i].chunks.size(); ++index)
      if (manifest.items[i].chunks[index] == wanted) {
        const auto [first, last] = chunk_range(manifest.items[i], index);
        return std::span(model.items[i].second)
            .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
      }
  return {};
}

TEST(StatePull, AsksForEveryChunkOnceAndForEqualOnesTogether) {
  const Model model(1);
  Model mine(9);
  mine.items[5].second = model.items[5].second;  // is there already
  const auto manifest = describe_state({1, 1}, model.read());
  StatePull pull(manifest, mine.written(), {});
  EXPECT_EQ(pull.kept_bytes(), 3 * chunk);
  pull.add_peer(0, 0);
  std::int64_t asked = 0;
  for (auto requests = pull.requests(0); !requests.empty(); requests = pull.requests(0)) {
    EXPECT_LE(requests.size(), 2u);
    for (const auto& request : requests) {
      asked += request.bytes;
      EXPECT_TRUE(pull.deliver(0, request.chunk, bytes_of(model, manifest, request.chunk), 0));
    }
  }
  EXPECT_TRUE(pull.done());
  EXPECT_EQ(asked, 3 * chunk + 17);  // embedding, bias, and one of the tied
  EXPECT_EQ(mine.items, model.items);
}

TEST(StatePull, BelievesNoDigestOfTwoSizes) {
  StateManifest manifest;
  const StateDigest same = sha256({});
  manifest.items = {{"a", 5, {same}}, {"b", 6, {same}}};
  Bytes a(5), b(6);
  EXPECT_THAT(message_of([&] {
                StatePull(manifest, {{"a", a}, {"b", b}}, {});
              }),
              HasSubstr("chunks of two sizes have the digest " + to_hex(same)));
}

TEST(StatePull, GivesWhatALostPeerOwesToOthers) {
  const Model model(1);
  Model mine(9);
  const auto manifest = describe_state({1, 1}, model.read());
  StatePull pull(manifest, mine.written(), {});
  pull.add_peer(0, 0);
  const auto lost = pull.requests(0);
  ASSERT_EQ(lost.size(), 2u);
  pull.lose_peer(0, "gone");
  pull.add_peer(1, 0);
  EXPECT_EQ(pull.requests(0).front().chunk, lost.front().chunk);
  EXPECT_FALSE(pull.deliver(0, lost.front().chunk, bytes_of(model, manifest, lost.front().chunk), 0));
  pull.add_peer(0, 0);  // what is left out stays out
  EXPECT_FALSE(pull.active(0));
}

TEST(StatePull, LeavesOutWhoIsSilentAndAsksTheIdleForWhatOthersOwe) {
  const Model model(1);
  Model mine(9);
  mine.items.resize(2);
  Model whole(1);
  whole.items.resize(2);  // four chunks
  const auto manifest = describe_state({1, 1}, whole.read());
  StatePull pull(manifest, mine.written(), {.requests_per_peer = 2, .progress_timeout_s = 5});
  pull.add_peer(0, 0);
  pull.add_peer(1, 0);
  const auto first = pull.requests(0);
  ASSERT_EQ(first.size(), 4u);
  for (const auto& request : first)
    if (request.peer == 1) pull.deliver(1, request.chunk, bytes_of(model, manifest, request.chunk), 1);
  const auto second = pull.requests(1);  // nothing is left to ask for but what peer 0 owes
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].peer, 1);
  EXPECT_TRUE(pull.deliver(1, second[0].chunk, bytes_of(model, manifest, second[0].chunk), 2));
  // Late, but what was asked for: no fault, and no use.
  EXPECT_FALSE(pull.deliver(0, second[0].chunk, bytes_of(model, manifest, second[0].chunk), 2));
  EXPECT_TRUE(pull.active(0));
  pull.expire(7.5);
  EXPECT_FALSE(pull.active(0));
  EXPECT_EQ(pull.peers().at(0).fault, "sent nothing for 5 s");
  const auto third = pull.requests(7.5);
  ASSERT_EQ(third.size(), 1u);
  EXPECT_TRUE(pull.deliver(1, third[0].chunk, bytes_of(model, manifest, third[0].chunk), 8));
  EXPECT_TRUE(pull.done());
}

TEST(StatePull, NamesThePeerThatSendsWrongBytes) {
  const Model model(1);
  Model mine(9);
  const auto manifest = describe_state({1, 1}, model.read());
  StatePull pull(manifest, mine.written(), {});
  pull.add_peer(3, 0);
  const auto request = pull.requests(0).front();
  Bytes wrong(static_cast<std::size_t>(request.bytes));
  EXPECT_FALSE(pull.deliver(3, request.chunk, wrong, 0));
  EXPECT_EQ(pull.peers().at(3).fault, "sent wrong bytes for chunk 0 of \"embedding\"");
  pull.add_peer(4, 0);
  EXPECT_FALSE(pull.deliver(4, StateDigest{}, wrong, 0));
  EXPECT_THAT(pull.peers().at(4).fault, HasSubstr("for which it was not asked"));
}

TEST(StatePull, RefusesAnotherModel) {
  const Model model(1);
  Model mine(9);
  mine.items[1].second.resize(13);
  const auto manifest = describe_state({1, 1}, model.read());
  EXPECT_EQ(message_of([&] { StatePull(manifest, mine.written(), {}); }),
            "part 1 of the state is \"bias\" of 13 bytes here, \"bias\" of 12 there");
}

}  // namespace
}  // namespace motley
