#include "motley/fleet/deployment_group.hpp"

#include <gmock/gmock.h>

#include "motley/base/clock.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

using ::testing::StartsWith;

TEST(DeploymentGroup, ADriverListensWhereItIsFoundUnlessThatIsAName) {
  for (const std::string address : {"10.0.0.5:0", "127.0.0.1:4700", "localhost:0", "[fd00::5]:0"}) {
    EXPECT_EQ(listen_address(address), address);
    EXPECT_EQ(found_at(address, "10.0.0.5:41000"), "10.0.0.5:41000");
  }
  EXPECT_EQ(listen_address("tales.example:4700"), "0.0.0.0:4700");
  EXPECT_EQ(found_at("tales.example:0", "0.0.0.0:41000"), "tales.example:41000");
}

// The name stays in the link and in what is kept, whichever machine takes it up.
TEST(DeploymentGroup, ANameIsWhatOthersAreTold) {
  SavedDeployment kept;
  std::string coordinator;
  {
    const DeploymentGroup group("lab", "tales.example:0");
    coordinator = group.invitation("tales.example:41000").coordinator;
    EXPECT_THAT(coordinator, StartsWith("tales.example:"));
    EXPECT_NE(parse_host_port(coordinator).port, "0");
    kept = group.record("tales.example:41000");
  }
  EXPECT_EQ(kept.coordinator, coordinator);
  const DeploymentGroup again("lab", kept);
  EXPECT_EQ(again.invitation("tales.example:41000").coordinator, coordinator);
  ConnectFailure failure;
  EXPECT_TRUE(connect_tcp("127.0.0.1:" + parse_host_port(coordinator).port, deadline_in(5), failure)) << failure.cause;
}

}  // namespace
}  // namespace motley
