#include "motley/workers/remote_workers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/authority/authority.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/workers/control_connection.hpp"

namespace motley {
namespace {

using testing::HasSubstr;

constexpr double patience_s = 20;

RelayAccess with_key(const std::string& key) { return {.key = key, .identity = {}}; }

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

// A driver that awaits workers of start 7.
struct WaitingDriver {
  WaitingDriver(RelayAccess access, const std::vector<std::string>& devices)
      : listener("127.0.0.1:0", std::move(access), {{workers_service, calls.service()}}) {
    calls.expect(devices, 7);
  }
  // Its worker, once it has called.
  CalledWorker take(const std::string& device) {
    for (const Instant until = deadline_in(patience_s);; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      if (auto called = calls.take(device)) return *std::move(called);
      if (seconds_until(until) <= 0) throw Error(ErrorCode::peer, device + " has not called");
    }
  }
  WorkerCalls calls;
  ControlListener listener;
};

TEST(RemoteWorkers, EachDeviceIsTakenOnceAndStrangersNever) {
  WaitingDriver driver(with_key("secret"), {"box/0", "box/1"});
  const auto call = [&](const std::string& device, std::uint64_t start, const std::string& key) {
    return call_driver(driver.listener.address(), {device, start, "127.0.0.1:1"}, with_key(key),
                       deadline_in(patience_s));
  };
  ConnectFailure failure;
  const FileDescriptor silent = connect_tcp(driver.listener.address(), deadline_in(patience_s), failure);
  ASSERT_TRUE(silent);  // and does not delay the others
  ByteStream first = call("box/0", 7, "secret");
  EXPECT_THAT(error_of([&] { call("box/0", 7, "secret"); }),
              HasSubstr("a worker for this device is already connected"));
  EXPECT_THAT(error_of([&] { call("box/1", 6, "secret"); }), HasSubstr("start 6 is not 7"));
  EXPECT_THAT(error_of([&] { call("box/2", 7, "secret"); }), HasSubstr("the driver expects no worker for \"box/2\""));
  EXPECT_THAT(error_of([&] { call("box/1", 7, "guess"); }), HasSubstr("not this group's key"));
  ByteStream second = call("box/1", 7, "secret");
  driver.take("box/0");
  EXPECT_EQ(driver.take("box/1").fabric_address, "127.0.0.1:1");
  EXPECT_FALSE(driver.calls.take("box/1")) << "each is taken once";
}

TEST(RemoteWorkers, AFabricIsNoDriver) {
  Fabric fabric({.key = "secret", .identity = {}});
  EXPECT_THAT(error_of([&] {
                call_driver(fabric.address(), {"box/0", 7, ""}, with_key("secret"), deadline_in(patience_s));
              }),
              HasSubstr("refuses: this is not a driver"));
}

TEST(RemoteWorkers, ADriverNeedsAKey) {
  EXPECT_THAT(error_of([] { ControlListener("127.0.0.1:0", {}, {}); }),
              HasSubstr("the driver has no key: any process could connect to it"));
}

// Both sides show a certificate; the worker's names its device or its machine, the driver's the coordinator.
TEST(RemoteWorkers, UnderTlsCertificatesNameBothSides) {
  const Authority authority = Authority::create("tests");
  const auto access = [&](const std::string& name) {
    return RelayAccess{
        .key = "secret", .identity = TlsContext(authority.issue(name)), .encryption = Encryption::always};
  };
  WaitingDriver driver(access(std::string(coordinator_name)), {"box/0"});
  const auto call = [&](const RelayAccess& shown) {
    return call_driver(driver.listener.address(), {"box/0", 7, "here"}, shown, deadline_in(patience_s));
  };
  EXPECT_THAT(error_of([&] { call(access("box/1")); }), HasSubstr("the certificate names \"box/1\", not \"box/0\""));
  const Authority other = Authority::create("others");
  EXPECT_NE(error_of([&] {
              call({.key = "secret", .identity = TlsContext(other.issue("box/0")), .encryption = Encryption::always});
            }),
            "none");
  EXPECT_NE(error_of([&] { call(with_key("secret")); }), "none");  // without TLS

  EXPECT_THAT(error_of([&] { call(access("bo")); }), HasSubstr("the certificate names \"bo\", not \"box/0\""));

  ControlConnection worker(call(access("box")));
  CalledWorker called = driver.take("box/0");
  ASSERT_TRUE(called.control.encrypted());
  RemoteWorker handle(std::move(called.control));
  const Message large = Progress{std::string(60000, 'x'), 0.5};
  std::jthread sender([&] {
    for (int i = 0; i < 20; ++i) worker.send(large);
  });
  std::size_t received = 0;
  while (received < 20) {
    for (const Message& message : handle.receive()) {
      EXPECT_EQ(message, large);
      ++received;
    }
    auto events = handle.events();
    if (received < 20 && !handle.pending()) {
      ASSERT_EQ(::poll(events.data(), events.size(), 20000), 1);
    }
  }
  sender.join();
  handle.send(encode(Stop{}));
  EXPECT_EQ(worker.receive(), Message(Stop{}));
  EXPECT_FALSE(handle.exit());
  handle.close();
  EXPECT_TRUE(handle.ended() && handle.exit());
  EXPECT_EQ(worker.receive(), std::nullopt);
}

TEST(RemoteWorkers, AWorkerWhoseConnectionEndsHasEnded) {
  WaitingDriver driver(with_key("secret"), {"box/0"});
  ByteStream worker =
      call_driver(driver.listener.address(), {"box/0", 7, "here"}, with_key("secret"), deadline_in(patience_s));
  RemoteWorker handle(driver.take("box/0").control);
  EXPECT_FALSE(handle.exit());
  worker.close();
  auto events = handle.events();
  ASSERT_EQ(::poll(events.data(), events.size(), 20000), 1);
  EXPECT_TRUE(handle.receive().empty());
  EXPECT_TRUE(handle.ended());
  EXPECT_EQ(handle.exit()->text(), "closed its control connection");
  handle.send(encode(Stop{}));  // dropped
}

}  // namespace
}  // namespace motley
