// Watches the members while a plan is served, and brings another where that pays.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "motley/cli/member_plans.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/deployment/slow_devices.hpp"
#include "motley/fleet/members.hpp"
#include "motley/serving/driver.hpp"

namespace motley::cli {

// By a thread of its own, and a second one that makes spare plans after each change.
class Replanning {
 public:
  // `measures_links`: those of machines that join are measured before they are planned with.
  Replanning(Members& members, MemberPlans& plans, Driver& driver, bool measures_links,
             std::function<void(const std::string&, const std::string&)> report);
  ~Replanning();
  Replanning(const Replanning&) = delete;
  Replanning& operator=(const Replanning&) = delete;

 private:
  void run(const std::stop_token& stop);
  bool must_move() const;
  bool looks_for_slow();
  void measure_newcomers();
  bool replan();
  void make_spares();

  Members& members_;
  MemberPlans& plans_;
  Driver& driver_;
  const bool measures_links_;
  const std::function<void(const std::string&, const std::string&)> report_;
  SlowDevices slow_;
  std::uint64_t spares_of_ = 0;  // epoch
  bool spares_due_ = true;
  Wakeup wake_;
  std::jthread spares_thread_;
  std::jthread thread_;
};

}  // namespace motley::cli
