// A deployment on this machine's loopback, with agents that a test writes message by message.
#include "motley/fleet/gathering.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "motley/agent/join_link.hpp"
#include "motley/checkpoint/safetensors_test.hpp"
#include "motley/comm/membership/enrolment.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/fleet/hand_agent_test.hpp"
#include "motley/fleet/state_folder_test.hpp"

namespace motley {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

// One that a test can take away.
class HandStore : public DeploymentStore {
 public:
  struct Content {
    std::optional<KeptDeployment> kept;
    std::atomic<bool> full = false, taken = false, shared = false;
  };
  explicit HandStore(Content& content) : content_(content) {}
  std::optional<KeptDeployment> read() override { return content_.kept; }
  void keep(const KeptDeployment& deployment) override {
    if (content_.full) throw Error(ErrorCode::environment, "no room");
    content_.kept = deployment;
  }
  void remove() override { content_.kept.reset(); }
  bool is_shared() const override { return content_.shared; }
  void check_held() const override {
    if (content_.taken) throw StoreFenced("another driver has it");
  }

 private:
  Content& content_;
};

class GatheringTest : public SafetensorsTest {
 protected:
  GatheringOptions options() {
    return {.model = folder,
            .name = "desk",
            .host = "127.0.0.1",
            .own_agent = {"/bin/sh", "-c", "echo $MOTLEY_LINK > " + own_link_file() + "; exit 2"},
            .report = [this](const std::string& what, const std::string& detail) { told_(what, detail); },
            .show_link = [this](const JoinLink& link) { links_.push_back(link); },
            .stop = stop_.descriptor()};
  }
  std::unique_ptr<Gathering> gather(GatheringOptions options) {
    return std::make_unique<Gathering>(std::make_unique<HandStore>(store_), std::move(options));
  }
  std::unique_ptr<Gathering> gather() { return gather(options()); }

  std::string own_link_file() const { return (state_.path / "own-link").string(); }

  // What a machine of this name is given that comes by the link.
  static Enrolment enrolled(const JoinLink& link, const std::string& name) {
    constexpr double patience_s = 20;
    return enrol(link.coordinator,
                 {.group = link.group, .token = link.token, .authority = link.authority, .member = name}, patience_s);
  }
  static std::unique_ptr<HandAgent> agent_of(const Gathering& gathering, const std::string& name,
                                             const Enrolment& given) {
    const RelayAccess access{.key = given.key, .identity = TlsContext(given.identity)};
    auto agent = std::make_unique<HandAgent>(gathering.members(), name, "1", this_version, access);
    agent->report();
    return agent;
  }
  static std::unique_ptr<HandAgent> joined(const Gathering& gathering, const JoinLink& link, const std::string& name) {
    return agent_of(gathering, name, enrolled(link, name));
  }
  bool tells(const std::string& part) const {
    for (const Instant until = soon(); seconds_until(until) > 0;
         std::this_thread::sleep_for(std::chrono::milliseconds(2)))
      for (const std::string& line : told_.lines())
        if (line.find(part) != std::string::npos) return true;
    return false;
  }
  template <class Action>
  static ErrorCode code_of(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  }

  StateFolder state_;
  Told told_;
  std::vector<JoinLink> links_;
  Wakeup stop_;
  HandStore::Content store_;
};

TEST_F(GatheringTest, MachinesJoinByTheLinkThatIsShown) {
  const auto gathering = gather();
  gathering->open();
  ASSERT_EQ(links_.size(), 1u);
  EXPECT_EQ(links_[0].driver, gathering->members().address());
  EXPECT_THAT(links_[0].coordinator, StartsWith("127.0.0.1:"));
  EXPECT_EQ(links_[0].relay, "");
  const auto box = joined(*gathering, links_[0], "box"), attic = joined(*gathering, links_[0], "attic");
  gathering->wait_for(2, {"box"});
  gathering->wait_for(1, {"attic", "box"});
  EXPECT_THAT(told_.lines(), Contains("waiting: for 2 machines").Times(0));
  EXPECT_THAT(told_.lines(), Contains("waiting: for box"));
  EXPECT_THAT(told_.lines(), Contains("waiting: for attic, box"));
  EXPECT_EQ(gathering->members().list().size(), 2u);
}

// No other machine takes its name, and its link is shown to nobody.
TEST_F(GatheringTest, TheOwnAgentComesByALinkOfItsOwn) {
  const auto gathering = gather();
  gathering->open();
  std::string text;
  std::getline(std::ifstream(own_link_file()) >> std::ws, text);
  const JoinLink own = parse_join_link(text);
  EXPECT_NE(own.token, links_[0].token);
  EXPECT_THAT([&] { enrolled(links_[0], "desk"); }, ThrowsMessage<Error>(HasSubstr("it is the driver's")));
  const auto desk = joined(*gathering, own, "desk");
  gathering->wait_for(1, {"desk"});
}

TEST_F(GatheringTest, TheLinkIsShownOnceTheOwnAgentHasItsName) {
  GatheringOptions waits = options();
  waits.own_agent[2] = "echo $MOTLEY_LINK > " + own_link_file() + "~; mv " + own_link_file() + "~ " + own_link_file() +
                       "; exec sleep 100";
  const auto gathering = gather(waits);
  auto opened = std::async(std::launch::async, [&] { gathering->open(); });
  for (const Instant until = soon(); !std::filesystem::exists(own_link_file()) && seconds_until(until) > 0;)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(opened.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  std::string text;
  std::getline(std::ifstream(own_link_file()), text);
  const auto desk = joined(*gathering, parse_join_link(text), "desk");
  opened.get();
  EXPECT_EQ(links_.size(), 1u);
  gathering->leave();  // the script would not end by itself
}

TEST_F(GatheringTest, MachinesFetchTheWeightsOfTheModel) {
  write(file_of(small_header, std::string(28, 'x')));
  const auto gathering = gather();
  gathering->open();
  const auto box = joined(*gathering, links_[0], "box");
  const ModelManifest manifest = gathering->offer_weights();
  EXPECT_EQ(box->receive<Weights>().manifest, manifest);
  EXPECT_EQ(manifest.files.size(), 1u);
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
    box = enrolled(links_[0], "box");
    address = gathering->members().address();
    gathering->leave();
  }
  ASSERT_TRUE(store_.kept);
  const auto again = gather();
  EXPECT_THAT(told_.lines(), Contains("resumed: machines of the deployment that was here come back by themselves"));
  EXPECT_EQ(again->members().address(), address);
  const auto agent = agent_of(*again, "box", *box);
  again->wait_for(1, {"box"});
  const auto attic = joined(*again, links_[0], "attic");  // also by a link from before
  again->wait_for(2, {"attic"});
}

TEST_F(GatheringTest, OneThatHasEndedLeavesNothing) {
  auto gathering = gather();
  gathering->open();
  auto box = joined(*gathering, links_[0], "box");
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
  const auto box = joined(*gathering, links_[0], "box");
  gathering->wait_for(1, {"box"});
  store_.taken = true;
  EXPECT_FALSE(gathering->is_held());
  gathering.reset();
  EXPECT_TRUE(store_.kept);
  EXPECT_FALSE(box->receive().has_value());
}

// A driver whose address is taken begins anew, unless other machines look for it there.
TEST_F(GatheringTest, AnAddressThatIsTakenIsWaitedForInASharedStore) {
  {
    const auto gathering = gather();
    gathering->leave();
  }
  const KeptDeployment kept = *store_.kept;
  const auto squatter = std::make_unique<ControlListener>(kept.driver, with_secret, std::map<std::string, ControlService>{});
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
  EXPECT_EQ(gathering->show_new_link(false, 60), 60);
  ASSERT_EQ(links_.size(), 2u);
  enrolled(links_[0], "box");
  EXPECT_EQ(gathering->show_new_link(true, {}), 24 * 3600);
  EXPECT_THAT(told_.lines(), Contains(HasSubstr("; those before it are revoked")));
  EXPECT_THAT([&] { enrolled(links_[0], "attic"); }, ThrowsMessage<Error>(HasSubstr("revoked")));
  enrolled(links_.back(), "attic");
}

TEST_F(GatheringTest, AMachineThatIsRevokedIsCutOffAndThoseOfItsLinkAreNamed) {
  const auto gathering = gather();
  gathering->open();
  const auto box = joined(*gathering, links_[0], "box"), attic = joined(*gathering, links_[0], "attic");
  gathering->wait_for(2, {"box"});
  EXPECT_EQ(gathering->revoke("box"), std::vector<std::string>{"attic"});
  EXPECT_TRUE(box->has_ended());
  EXPECT_THAT(told_.lines(), Contains("revoked: box, and every link so far; the new one is printed"));
  EXPECT_THAT(told_.lines(),
              Contains("revoked: not attic, which came by the same link: motley drain attic --revoke"));
  EXPECT_EQ(links_.size(), 2u);
  gathering->wait_for(1, {"attic"});
}

// Nobody is admitted whom the next driver would not know.
TEST_F(GatheringTest, WithoutRoomToKeepItNothingChanges) {
  const auto gathering = gather();
  gathering->open();
  store_.full = true;
  EXPECT_EQ(code_of([&] { gathering->show_new_link(false, {}); }), ErrorCode::environment);
  EXPECT_EQ(links_.size(), 1u);
  EXPECT_THAT(told_.lines(), Contains("store: cannot hold who may come, so that nothing of it changes: no room"));
}

TEST_F(GatheringTest, ARelayIsInTheLinkAndKeptWithTheDeployment) {
  GatheringOptions relays = options();
  relays.relays = true;
  std::string relay;
  {
    const auto gathering = gather(relays);
    gathering->open();
    relay = links_[0].relay;
    EXPECT_THAT(relay, StartsWith("127.0.0.1:"));
    gathering->leave();
  }
  const auto again = gather();  // without asking for one
  again->open();
  EXPECT_EQ(links_.back().relay, relay);
}

TEST_F(GatheringTest, ADescribedMachineOffersWhatIsDescribed) {
  const auto gathering = gather();
  gathering->open();
  const auto box = joined(*gathering, links_[0], "box");
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
)", devices, memory), "cluster.toml"));
  };
  gathering->check_described(described(1, "1 MiB"));
  EXPECT_THAT(refusal([&] { gathering->check_described(described(2, "1 MiB")); }),
              HasSubstr("the cluster file gives box 2 devices, and its agent offers 1"));
  EXPECT_THAT(refusal([&] { gathering->check_described(described(1, "2 MiB")); }),
              HasSubstr("the cluster file gives box/0 2.00 MiB, and its agent offers 1.00 MiB"));
}

}  // namespace
}  // namespace motley
