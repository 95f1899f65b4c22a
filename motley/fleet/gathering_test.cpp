#include "motley/fleet/gathering.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <future>
#include <thread>

#include "motley/agent/invitation.hpp"
#include "motley/fleet/gathering_fixture_test.hpp"
#include "motley/workers/control_listener.hpp"

namespace motley {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

using GatheringTest = GatheringFixture;

TEST_F(GatheringTest, MachinesJoinByTheLinkThatIsShown) {
  const auto gathering = gather();
  gathering->open();
  ASSERT_EQ(invitations_.size(), 1u);
  EXPECT_EQ(invitations_[0].driver, gathering->machines().address());
  EXPECT_THAT(invitations_[0].coordinator, StartsWith("127.0.0.1:"));
  EXPECT_EQ(invitations_[0].relay, "");
  const auto box = joined(invitations_[0], "box"), attic = joined(invitations_[0], "attic");
  gathering->wait_for(2, {"box"});
  gathering->wait_for(1, {"attic", "box"});
  EXPECT_THAT(told_.lines(), Contains("waiting: for 2 machines").Times(0));
  EXPECT_THAT(told_.lines(), Contains("waiting: for box"));
  EXPECT_THAT(told_.lines(), Contains("waiting: for attic, box"));
  EXPECT_EQ(gathering->machines().list().size(), 2u);
}

// No other machine takes its name, and its link is not shown.
TEST_F(GatheringTest, TheOwnAgentComesByALinkOfItsOwn) {
  const auto gathering = gather();
  gathering->open();
  std::string text;
  std::getline(std::ifstream(own_link_file()) >> std::ws, text);
  const Invitation own = parse_invitation(text);
  EXPECT_NE(own.token, invitations_[0].token);
  EXPECT_THAT([&] { enrolled(invitations_[0], "desk"); }, ThrowsMessage<Error>(HasSubstr("it is the driver's")));
  const auto desk = joined(own, "desk");
  gathering->wait_for(1, {"desk"});
}

TEST_F(GatheringTest, TheLinkIsShownOnceTheOwnAgentHasItsName) {
  GatheringOptions waits = options();
  waits.local_agent[2] = "echo $MOTLEY_LINK > " + own_link_file() + "~; mv " + own_link_file() + "~ " +
                         own_link_file() + "; exec sleep 100";
  const auto gathering = gather(waits);
  auto opened = std::async(std::launch::async, [&] { gathering->open(); });
  for (const Instant until = soon(); !std::filesystem::exists(own_link_file()) && seconds_until(until) > 0;)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(opened.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  std::string text;
  std::getline(std::ifstream(own_link_file()), text);
  const auto desk = joined(parse_invitation(text), "desk");
  opened.get();
  EXPECT_EQ(invitations_.size(), 1u);
  gathering->leave();  // the script would not end by itself
}

TEST_F(GatheringTest, MachinesFetchTheWeightsOfTheModel) {
  write(file_of(small_header, std::string(28, 'x')));
  const auto gathering = gather();
  gathering->open();
  const auto box = joined(invitations_[0], "box");
  gathering->offer_weights();
  EXPECT_EQ(box->receive<Weights>().manifest, make_manifest(folder));
  EXPECT_TRUE(std::filesystem::exists(state_.path / "motley/digests"));
}

TEST_F(GatheringTest, WhatWaitsIsStopped) {
  write(file_of(small_header, std::string(28, 'x')));
  const auto gathering = gather();
  gathering->open();
  auto waiting = std::async(std::launch::async, [&] { gathering->wait_for(2, {}); });
  ASSERT_TRUE(tells("waiting: for 2 machines"));
  stop_.notify();
  EXPECT_EQ(code_of([&] { waiting.get(); }), ErrorCode::interrupted);
  EXPECT_EQ(code_of([&] { gathering->offer_weights(); }), ErrorCode::interrupted);
  store_.taken = true;  // why it stops is known then
  EXPECT_THROW(gathering->wait_for(2, {}), StoreFenced);
}

TEST_F(GatheringTest, ADeploymentIsTakenUpWithItsMachines) {
  std::optional<Enrolment> box;
  std::string address;
  {
    const auto gathering = gather();
    gathering->open();
    box = enrolled(invitations_[0], "box");
    address = gathering->machines().address();
    gathering->leave();
  }
  ASSERT_TRUE(store_.kept);
  const auto again = gather();
  EXPECT_THAT(told_.lines(), Contains("resumed: machines of the deployment that was here come back by themselves"));
  EXPECT_EQ(again->machines().address(), address);
  const auto agent = agent_of(again->machines().address(), "box", *box);
  again->wait_for(1, {"box"});
  const auto attic = joined(invitations_[0], "attic");  // also by a link from before
  again->wait_for(2, {"attic"});
}

TEST_F(GatheringTest, OneThatHasEndedLeavesNothing) {
  auto gathering = gather();
  gathering->open();
  auto box = joined(invitations_[0], "box");
  gathering->wait_for(1, {"box"});
  auto told = std::async(std::launch::async, [&] {
    box->receive<End>();
    box.reset();
  });
  gathering->end();
  told.get();
  EXPECT_FALSE(store_.kept);
  gathering.reset();
  EXPECT_FALSE(store_.kept);
  gather();
  EXPECT_THAT(told_.lines(), Not(Contains(StartsWith("resumed"))));
}

TEST_F(GatheringTest, WhereAnotherDriverHasItTheMachinesAreLeftAlone) {
  auto gathering = gather();
  gathering->open();
  const auto box = joined(invitations_[0], "box");
  gathering->wait_for(1, {"box"});
  store_.taken = true;
  EXPECT_FALSE(gathering->is_held());
  gathering.reset();
  EXPECT_TRUE(store_.kept);
  EXPECT_FALSE(box->receive().has_value());
}

// Where the address is taken another deployment begins, unless other machines look for it there.
TEST_F(GatheringTest, AnAddressThatIsTakenIsWaitedForInASharedStore) {
  {
    const auto gathering = gather();
    gathering->leave();
  }
  const SavedDeployment kept = *store_.kept;
  const auto squatter =
      std::make_unique<ControlListener>(kept.driver, with_secret, std::map<std::string, ControlService>{});
  gather();
  EXPECT_THAT(told_.lines(), Contains(StartsWith("resumed: nothing: ")));
  store_.kept = kept;
  store_.shared = true;
  auto resumed = std::async(std::launch::async, [&] { return gather(); });
  ASSERT_TRUE(tells("resumed: not yet: "));
  stop_.notify();
  EXPECT_EQ(code_of([&] { resumed.get(); }), ErrorCode::interrupted);
}

TEST_F(GatheringTest, ANewLinkCountsBesideTheOthersUnlessTheyAreRevoked) {
  const auto gathering = gather();
  gathering->open();
  EXPECT_EQ(gathering->show_new_invitation(false, 60), 60);
  ASSERT_EQ(invitations_.size(), 2u);
  enrolled(invitations_[0], "box");
  EXPECT_EQ(gathering->show_new_invitation(true, {}), 24 * 3600);
  EXPECT_THAT(told_.lines(), Contains(HasSubstr("; those before it are revoked")));
  EXPECT_THAT([&] { enrolled(invitations_[0], "attic"); }, ThrowsMessage<Error>(HasSubstr("revoked")));
  enrolled(invitations_.back(), "attic");
}

TEST_F(GatheringTest, AMachineThatIsRevokedIsCutOffAndThoseOfItsLinkAreNamed) {
  const auto gathering = gather();
  gathering->open();
  const auto box = joined(invitations_[0], "box"), attic = joined(invitations_[0], "attic");
  gathering->wait_for(2, {"box"});
  EXPECT_EQ(gathering->revoke("box"), std::vector<std::string>{"attic"});
  EXPECT_TRUE(box->has_ended());
  EXPECT_THAT(told_.lines(), Contains("revoked: box, and every link so far; the new one is printed"));
  EXPECT_THAT(told_.lines(),
              Contains("revoked: not attic, which came by the same link: motley deployment drain attic --revoke"));
  EXPECT_EQ(invitations_.size(), 2u);
  gathering->wait_for(1, {"attic"});
}

// No machine is admitted that the next driver would not know.
TEST_F(GatheringTest, WithoutRoomToKeepItNothingChanges) {
  const auto gathering = gather();
  gathering->open();
  store_.full = true;
  EXPECT_EQ(code_of([&] { gathering->show_new_invitation(false, {}); }), ErrorCode::environment);
  EXPECT_EQ(invitations_.size(), 1u);
  EXPECT_THAT(told_.lines(), Contains("store: cannot hold who may come, so that nothing of it changes: no room"));
}

TEST_F(GatheringTest, ARelayIsInTheLinkAndKeptWithTheDeployment) {
  GatheringOptions relays = options();
  relays.relays = true;
  std::string relay;
  {
    const auto gathering = gather(relays);
    gathering->open();
    relay = invitations_[0].relay;
    EXPECT_THAT(relay, StartsWith("127.0.0.1:"));
    gathering->leave();
  }
  const auto again = gather();  // without asking for one
  again->open();
  EXPECT_EQ(invitations_.back().relay, relay);
}

TEST_F(GatheringTest, ADescribedMachineOffersWhatIsDescribed) {
  const auto gathering = gather();
  gathering->open();
  const auto box = joined(invitations_[0], "box");
  gathering->wait_for(1, {"box"});
  const auto described = [this](int devices, const std::string& memory) {
    return read_cluster(write(fmt::format(R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["core*{}"]
[[device_type]]
name = "core"
vendor = "cpu"
memory = "{}"
memory_bandwidth = "8 GB/s"
flops = {{ fp32 = "40 GFLOP/s" }}
reserve = "0 B"
)",
                                          devices, memory),
                              "cluster.toml"));
  };
  gathering->check_described(described(1, "1 MiB"));
  EXPECT_THAT(refusal([&] { gathering->check_described(described(2, "1 MiB")); }),
              HasSubstr("the cluster file gives box 2 devices, and its agent offers 1"));
  EXPECT_THAT(refusal([&] { gathering->check_described(described(1, "2 MiB")); }),
              HasSubstr("the cluster file gives box/0 2.00 MiB, and its agent offers 1.00 MiB"));
}

}  // namespace
}  // namespace motley
