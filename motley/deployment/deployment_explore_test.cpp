// Whatever order losses, returns, plans and the progress of workers come in: every reachable state of a small
// deployment, and random schedules of a larger one.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <unordered_set>

#include "motley/deployment/deployment_state.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

using Devices = std::set<std::string>;

constexpr RestartRule twice_then_lost{.deaths = 2, .away_s = 60, .waits = true};

// Plans over each part of a few devices, one stage on each.
class PlanTable {
 public:
  explicit PlanTable(std::size_t count) {
    const ServePlan whole = toy_plan({std::vector<int>(count, 1)});
    const std::vector<std::string> devices = worker_devices(whole);
    all_ = {devices.begin(), devices.end()};
    for (unsigned part = 1; part < 1U << count; ++part) {
      std::vector<std::string> on;
      for (std::size_t i = 0; i < count; ++i)
        if ((part >> i & 1) == 1) on.push_back(devices[i]);
      plans_.emplace(Devices(on.begin(), on.end()), placed_on(toy_plan({std::vector<int>(on.size(), 1)}), whole, on));
    }
  }
  const Devices& all() const { return all_; }
  const ServePlan& on(const Devices& devices) const { return plans_.at(devices); }

 private:
  Devices all_;
  std::map<Devices, ServePlan> plans_;
};

// A deployment, and the devices that are really there.
struct World {
  DeploymentState deployment;
  Devices there;
  Devices known_gone;  // by what the deployment was told and decided since
  bool has_served = false;
};

class DeploymentModel {
 public:
  explicit DeploymentModel(const PlanTable& plans, std::vector<Devices> asked)
      : plans_(plans), asked_(std::move(asked)) {}

  // The first contradiction; empty: none so far.
  const std::string& failure() const { return failure_; }

  World beginning() {
    return {DeploymentState(
                plans_.on(plans_.all()), [this](const ServePlan&, const Devices& lost) { return replan(lost); },
                twice_then_lost),
            plans_.all(),
            {},
            false};
  }

  using Event = std::function<void(World&)>;

  // All that may happen next.
  std::vector<std::pair<std::string, Event>> events(const World& world) {
    std::vector<std::pair<std::string, Event>> possible;
    const auto add = [&](const std::string& name, Event event) {
      possible.emplace_back(name, [this, name, event = std::move(event)](World& next) { take(next, name, event); });
    };
    const DeploymentPhase phase = world.deployment.phase();
    for (const std::string& device : plans_.all())
      add("is there or not: " + device, [device](World& next) {
        if (next.there.erase(device) == 0) next.there.insert(device);
      });
    if (phase == DeploymentPhase::failed) return possible;
    for (const Devices& devices : asked_)
      add(fmt::format("change to {}", fmt::join(devices, " ")), [this, devices](World& next) {
        for (const std::string& device : devices) next.known_gone.erase(device);
        next.deployment.change_to(plans_.on(devices));
      });
    if (phase == DeploymentPhase::down) return possible;
    const std::vector<std::string> used = worker_devices(*world.deployment.plan());
    for (const std::string& device : used) {
      add("dies: " + device, [this, device](World& next) { lose(next, {device}, false, ErrorCode::peer); });
      add("fails: " + device, [this, device](World& next) { lose(next, {device}, false, ErrorCode::limit); });
      add("is gone: " + device, [this, device](World& next) { lose(next, {device}, true, ErrorCode::peer); });
    }
    add("all are gone", [this, used](World& next) { lose(next, {used.begin(), used.end()}, true, ErrorCode::peer); });
    const bool can_run =
        std::ranges::all_of(used, [&](const std::string& device) { return world.there.contains(device); });
    if (phase == DeploymentPhase::loading && can_run) add("loaded", [](World& next) { next.deployment.loaded(); });
    if (phase == DeploymentPhase::warming_up && can_run)
      add("warmed up", [](World& next) {
        next.deployment.warmed_up();
        next.has_served = true;
      });
    if (phase == DeploymentPhase::pausing) add("paused", [](World& next) { next.deployment.paused(); });
    if (phase == DeploymentPhase::serving) {
      if (can_run) add("produced", [](World& next) { next.deployment.produced(); });
      if (world.deployment.returns_s())
        add("lost return", [](World& next) { next.deployment.return_lost(twice_then_lost.away_s); });
    }
    return possible;
  }

  // With everything there and nothing lost any more, a plan that is asked for comes to serve.
  void check_heals(World world) {
    if (world.deployment.phase() == DeploymentPhase::failed) return;
    world.there = plans_.all();
    world.deployment.change_to(plans_.on(plans_.all()));
    for (int step = 0; step < 4 && world.deployment.phase() != DeploymentPhase::serving; ++step)
      switch (world.deployment.phase()) {
        case DeploymentPhase::loading: world.deployment.loaded(); break;
        case DeploymentPhase::warming_up: world.deployment.warmed_up(); break;
        case DeploymentPhase::pausing: world.deployment.paused(); break;
        default: return fail("does not heal", world);
      }
    if (world.deployment.phase() != DeploymentPhase::serving || devices_of(world) != plans_.all())
      fail("does not heal", world);
  }

  static std::string fingerprint(const World& world) {
    return fmt::format("{}\n{}\n{}", world.deployment.fingerprint(), fmt::join(world.there, " "),
                       fmt::join(world.known_gone, " "));
  }

 private:
  static Devices devices_of(const World& world) {
    const std::vector<std::string> devices = worker_devices(*world.deployment.plan());
    return {devices.begin(), devices.end()};
  }

  static bool meet(const Devices& some, const Devices& others) {
    return std::ranges::any_of(some, [&](const std::string& device) { return others.contains(device); });
  }

  std::optional<ServePlan> replan(const Devices& lost) {
    Devices left;
    std::ranges::set_difference(there_, lost, std::inserter(left, left.end()));
    replanned_ = left;
    return left.empty() ? std::nullopt : std::optional(plans_.on(left));
  }

  void lose(World& world, const Devices& devices, bool gone, ErrorCode code) {
    there_ = world.there;
    replanned_.reset();
    if (gone) world.known_gone.insert(devices.begin(), devices.end());
    const std::uint64_t epoch = world.deployment.epoch();
    const bool is_final = code != ErrorCode::peer && !world.has_served;
    world.deployment.lost({Error(code, "lost"), {devices.begin(), devices.end()}, gone});
    if (is_final != (world.deployment.phase() == DeploymentPhase::failed)) fail("fails, or does not", world);
    if (world.deployment.phase() == DeploymentPhase::down && (!replanned_ || !replanned_->empty()))
      fail("is down though something is left", world);
    if (world.deployment.epoch() == epoch || meet(devices_of(world), devices)) return;
    // Who planned knows what is there.
    if (replanned_ == devices_of(world))
      for (const std::string& device : *replanned_) world.known_gone.erase(device);
  }

  void take(World& world, const std::string& name, const Event& event) {
    const DeploymentState before = world.deployment;
    event(world);
    const DeploymentState& after = world.deployment;
    trace_ = name;
    const bool took_effect = after.epoch() != before.epoch();
    if (after.epoch() != before.epoch() + (took_effect ? 1 : 0)) fail("skips an epoch", world);
    if (!took_effect && after.plan() != before.plan()) fail("gives an epoch to two plans", world);
    if (took_effect && after.phase() != DeploymentPhase::loading) fail("does not load what took effect", world);
    if (took_effect && (meet(devices_of(world), after.lost_devices()) || meet(devices_of(world), world.known_gone)))
      fail("starts what is lost", world);
    if (before.phase() == DeploymentPhase::down && !took_effect && after.phase() != DeploymentPhase::down)
      fail("leaves `down` without a plan", world);
  }

  void fail(const std::string& what, const World& world) {
    if (failure_.empty()) failure_ = fmt::format("{} after \"{}\":\n{}", what, trace_, fingerprint(world));
  }

  const PlanTable& plans_;
  const std::vector<Devices> asked_;
  Devices there_;                     // when a replacement is asked for
  std::optional<Devices> replanned_;  // what it was; empty: none
  std::string trace_, failure_;
};

TEST(DeploymentExploration, EveryStateKeepsThePromisesAndHeals) {
  const PlanTable plans(3);
  DeploymentModel model(plans, {{"box/0", "box/1"}, {"box/2"}});
  std::unordered_set<std::string> seen;
  std::vector<World> open;
  const auto visit = [&](World world) {
    if (seen.insert(DeploymentModel::fingerprint(world)).second) open.push_back(std::move(world));
  };
  visit(model.beginning());
  std::size_t transitions = 0;
  while (!open.empty() && model.failure().empty()) {
    const World world = std::move(open.back());
    open.pop_back();
    model.check_heals(world);
    for (const auto& [name, event] : model.events(world)) {
      World next = world;
      event(next);
      ++transitions;
      visit(std::move(next));
    }
  }
  EXPECT_EQ(model.failure(), "");
  EXPECT_GT(seen.size(), 1000u);
  EXPECT_GT(transitions, 10'000u);
}

TEST(DeploymentExploration, RandomSchedulesKeepThePromisesAndHeal) {
  const PlanTable plans(4);
  DeploymentModel model(plans,
                        {{"box/0", "box/1"}, {"box/2"}, {"box/0", "box/1", "box/2", "box/3"}, {"box/1", "box/3"}});
  std::size_t epochs = 0, downs = 0;
  for (unsigned seed = 1; seed <= 10'000; ++seed) {
    std::minstd_rand random(seed);
    World world = model.beginning();
    for (int event = 0; event < 20; ++event) {
      const auto possible = model.events(world);
      possible[random() % possible.size()].second(world);
      if (world.deployment.phase() == DeploymentPhase::down) ++downs;
    }
    epochs += world.deployment.epoch();
    model.check_heals(world);
    ASSERT_EQ(model.failure(), "") << "seed " << seed;
  }
  EXPECT_GT(epochs, 10'000u);
  EXPECT_GT(downs, 100u);
}

}  // namespace
}  // namespace motley
