// A deployment on this machine's loopback, with agents that a test writes message by message.
#pragma once

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "motley/agent/invitation.hpp"
#include "motley/checkpoint/safetensors_test.hpp"
#include "motley/comm/membership/enrolment.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/fleet/gathering.hpp"
#include "motley/fleet/hand_agent_test.hpp"
#include "motley/fleet/state_folder_test.hpp"

namespace motley {

// One that a test can take away.
class HandStore : public DeploymentStore {
 public:
  struct Content {
    std::optional<SavedDeployment> kept;
    std::atomic<bool> full = false, taken = false, shared = false;
  };
  explicit HandStore(Content& content) : content_(content) {}
  std::optional<SavedDeployment> read() override { return content_.kept; }
  void keep(const SavedDeployment& deployment) override {
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

class GatheringFixture : public SafetensorsTest {
 protected:
  GatheringOptions options() {
    return {.model = folder,
            .name = "desk",
            .host = "127.0.0.1",
            .local_agent = {"/bin/sh", "-c", "echo $MOTLEY_LINK > " + own_link_file() + "; exit 2"},
            .report = [this](const std::string& what, const std::string& detail) { told_(what, detail); },
            .show_invitation = [this](const Invitation& invitation) { invitations_.push_back(invitation); },
            .stop = stop_.descriptor()};
  }
  std::unique_ptr<Gathering> gather(GatheringOptions options) {
    return std::make_unique<Gathering>(std::make_unique<HandStore>(store_), std::move(options));
  }
  std::unique_ptr<Gathering> gather() { return gather(options()); }

  std::string own_link_file() const { return (state_.path / "own-link").string(); }

  // What a machine of this name is given that comes by the link.
  static Enrolment enrolled(const Invitation& invitation, const std::string& name) {
    constexpr double patience_s = 20;
    return enrol(
        invitation.coordinator,
        {.group = invitation.group, .token = invitation.token, .authority = invitation.authority, .member = name},
        patience_s);
  }
  static std::unique_ptr<HandAgent> agent_of(const std::string& driver, const std::string& name, const Enrolment& given,
                                             std::size_t devices = 1) {
    auto agent = std::make_unique<HandAgent>(
        driver, RelayAccess{.key = given.key, .identity = TlsContext(given.identity)}, name);
    agent->report(devices);
    return agent;
  }
  static std::unique_ptr<HandAgent> joined(const Invitation& invitation, const std::string& name,
                                           std::size_t devices = 1) {
    return agent_of(invitation.driver, name, enrolled(invitation, name), devices);
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
  ToldLines told_;
  std::vector<Invitation> invitations_;
  Wakeup stop_;
  HandStore::Content store_;
};

}  // namespace motley
