#include "motley/deployment/deployment_state.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

WorkerLoss loss_of(const std::string& device) {
  return {Error(ErrorCode::peer, device + " was killed by signal 9", "look there"), {device}};
}

// Pipelines of one device per stage over those that are left of box/0, box/1, ...; none where nothing is left.
std::optional<ServePlan> pipeline_of_the_rest(const ServePlan& whole, const std::set<std::string>& lost) {
  std::vector<std::string> devices;
  for (const std::string& device : worker_devices(whole))
    if (!lost.contains(device)) devices.push_back(device);
  if (devices.empty()) return std::nullopt;
  return placed_on(toy_plan({std::vector<int>(devices.size(), 1)}), whole, devices);
}

Replan over_the_rest(const ServePlan& whole) {
  return [whole](const ServePlan&, const std::set<std::string>& lost) { return pipeline_of_the_rest(whole, lost); };
}

void serve(DeploymentState& deployment) {
  if (deployment.phase() == DeploymentPhase::pausing) deployment.paused();
  deployment.loaded();
  deployment.warmed_up();
}

DeploymentState serving(ServePlan plan, Replan replan = {}, RestartRule restart = {}) {
  DeploymentState deployment(std::move(plan), std::move(replan), restart);
  serve(deployment);
  return deployment;
}

TEST(Deployment, LoadsWarmsUpAndServes) {
  DeploymentState deployment(toy_plan({{1, 1}}));
  EXPECT_EQ(deployment.phase(), DeploymentPhase::loading);
  EXPECT_EQ(deployment.epoch(), 1u);
  deployment.loaded();
  EXPECT_EQ(deployment.phase(), DeploymentPhase::warming_up);
  deployment.warmed_up();
  EXPECT_EQ(deployment.phase(), DeploymentPhase::serving);
  EXPECT_FALSE(deployment.failure());
}

TEST(Deployment, RefusesAPlanThatCannotRun) {
  ServePlan gap = toy_plan({{1, 1}});
  gap.routes[0].path.pop_back();
  EXPECT_THROW(DeploymentState{gap}, Error);
  DeploymentState deployment = serving(toy_plan({{1}}));
  EXPECT_THROW(deployment.change_to(gap), Error);
  ServePlan other_model = toy_plan({{1}});
  other_model.model.arch.eos_tokens = {7};
  EXPECT_THROW(deployment.change_to(other_model), Error);
  EXPECT_EQ(deployment.phase(), DeploymentPhase::serving);
}

TEST(Deployment, WithoutAFunctionALossIsFinal) {
  DeploymentState deployment = serving(toy_plan({{1, 1}}));
  deployment.lost(loss_of("box/1"));
  EXPECT_EQ(deployment.phase(), DeploymentPhase::failed);
  EXPECT_STREQ(deployment.failure()->what(), "box/1 was killed by signal 9");
  EXPECT_EQ(deployment.failure()->hint(), "look there");
  EXPECT_THROW(deployment.change_to(toy_plan({{1}})), Error);
}

// Whatever ends a worker while it serves is the failure of a peer; before, it is what the worker says.
TEST(Deployment, TheFirstPlansFailureKeepsItsCode) {
  const WorkerLoss no_memory{Error(ErrorCode::limit, "it does not fit"), {"box/0"}};
  DeploymentState starting(toy_plan({{1, 1}}), over_the_rest(toy_plan({{1, 1}})));
  starting.lost(no_memory);
  EXPECT_EQ(starting.failure()->code(), ErrorCode::limit);
  DeploymentState deployment = serving(toy_plan({{1, 1}}));
  deployment.lost(no_memory);
  EXPECT_EQ(deployment.failure()->code(), ErrorCode::peer);
}

WorkerLoss short_of_memory(const std::string& device, std::int64_t kv_tokens) {
  return {.cause = Error(ErrorCode::environment, "1 MiB is free"), .devices = {device}, .kv_tokens = kv_tokens};
}

TEST(Deployment, ShortMemoryShrinksTheCacheOfTheStage) {
  ServePlan plan = toy_plan({{1, 2}});
  plan.predicted.memory_bytes["box/2"] = stage_memory(plan, plan.stages[1])[1];
  DeploymentState deployment(plan);  // also before it has served
  deployment.lost(short_of_memory("box/2", 160));
  EXPECT_EQ(deployment.phase(), DeploymentPhase::loading);
  EXPECT_EQ(deployment.epoch(), 2u);
  EXPECT_EQ(deployment.plan()->stages[0].kv_tokens, 1024);
  EXPECT_EQ(deployment.plan()->stages[1].kv_tokens, 160);
  EXPECT_TRUE(deployment.lost_devices().empty());
  serve(deployment);
  deployment.lost(short_of_memory("box/1", 96));
  EXPECT_EQ(deployment.plan()->stages[1].kv_tokens, 96);
  serve(deployment);
  for (const std::int64_t tokens : {96, 2048, 8}) {  // no fewer; less than a block
    DeploymentState next = deployment;
    next.lost(short_of_memory("box/1", tokens));
    EXPECT_EQ(next.phase(), DeploymentPhase::failed);
    EXPECT_STREQ(next.failure()->what(), "1 MiB is free");
  }
}

TEST(Deployment, ShortMemoryBringsThePlanThatWaits) {
  DeploymentState deployment = serving(toy_plan({{1}}));
  deployment.change_to(toy_plan({{1}}, 512));
  deployment.lost(short_of_memory("box/0", 160));
  EXPECT_EQ(deployment.plan()->stages[0].kv_tokens, 512);
}

TEST(Deployment, ReplansUntilNothingIsLeft) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  DeploymentState deployment = serving(whole, over_the_rest(whole));
  deployment.lost(loss_of("box/1"));
  EXPECT_EQ(deployment.phase(), DeploymentPhase::loading);
  EXPECT_EQ(deployment.epoch(), 2u);
  EXPECT_EQ(worker_devices(*deployment.plan()), (std::vector<std::string>{"box/0", "box/2"}));
  deployment.lost(loss_of("box/0"));  // while it loads
  EXPECT_EQ(deployment.epoch(), 3u);
  EXPECT_EQ(worker_devices(*deployment.plan()), std::vector<std::string>{"box/2"});
  deployment.lost(loss_of("box/2"));
  EXPECT_EQ(deployment.phase(), DeploymentPhase::failed);
  EXPECT_EQ(deployment.epoch(), 3u);
}

TEST(Deployment, AUselessReplacementIsSaid) {
  const ServePlan whole = toy_plan({{1, 1}});
  DeploymentState same = serving(whole, [&](const auto&...) { return std::optional(whole); });
  same.lost(loss_of("box/1"));
  EXPECT_STREQ(same.failure()->what(),
               "box/1 was killed by signal 9; no other plan: the plan uses a device that was lost");
  DeploymentState thrown = serving(
      whole, [](const auto&...) -> std::optional<ServePlan> { throw input_error("no planner here", "build one"); });
  thrown.lost(loss_of("box/1"));
  EXPECT_STREQ(thrown.failure()->what(), "box/1 was killed by signal 9; no other plan: no planner here");
}

TEST(Deployment, AChangeWaitsForTheStepsUnderWay) {
  DeploymentState deployment = serving(toy_plan({{1, 1}}));
  deployment.change_to(toy_plan({{2}}));
  EXPECT_EQ(deployment.phase(), DeploymentPhase::pausing);
  EXPECT_EQ(deployment.epoch(), 1u);
  deployment.change_to(toy_plan({{1}}));  // replaces it
  deployment.paused();
  EXPECT_EQ(deployment.phase(), DeploymentPhase::loading);
  EXPECT_EQ(deployment.epoch(), 2u);
  EXPECT_EQ(deployment.plan()->stages.size(), 1u);
}

TEST(Deployment, ALossWhileAPlanWaitsTakesItWhereItFits) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  const auto on = [&](const std::string& device) { return placed_on(toy_plan({{1}}), whole, {device}); };
  DeploymentState fits = serving(whole);
  fits.change_to(on("box/0"));
  fits.lost(loss_of("box/1"));
  EXPECT_EQ(fits.phase(), DeploymentPhase::loading);
  EXPECT_EQ(worker_devices(*fits.plan()), std::vector<std::string>{"box/0"});

  DeploymentState replanned = serving(whole, over_the_rest(whole));
  replanned.change_to(on("box/1"));
  replanned.lost(loss_of("box/1"));
  EXPECT_EQ(worker_devices(*replanned.plan()), (std::vector<std::string>{"box/0", "box/2"}));
  replanned.change_to(on("box/1"));  // asking for it says that it is back
  EXPECT_TRUE(replanned.lost_devices().empty());
}

// ---- restarts ----

constexpr RestartRule third_death{.deaths = 3};

TEST(Deployment, AWorkerStartsAgainOnItsDeviceUntilItHasDiedThrice) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  DeploymentState deployment = serving(whole, over_the_rest(whole), third_death);
  const auto plan = deployment.plan();
  deployment.lost(loss_of("box/1"), 10);
  EXPECT_EQ(deployment.phase(), DeploymentPhase::loading);
  EXPECT_EQ(deployment.epoch(), 2u);
  EXPECT_EQ(deployment.plan(), plan);
  EXPECT_EQ(deployment.wait_s(), 0);
  serve(deployment);
  deployment.lost(loss_of("box/1"), 20);
  EXPECT_EQ(deployment.plan(), plan);
  EXPECT_EQ(deployment.wait_s(), 1);
  deployment.lost(loss_of("box/1"), 69);  // while it loads
  EXPECT_EQ(worker_devices(*deployment.plan()), (std::vector<std::string>{"box/0", "box/2"}));
  EXPECT_EQ(deployment.lost_devices(), std::set<std::string>{"box/1"});
  EXPECT_EQ(deployment.wait_s(), 0);
}

TEST(Deployment, DeathsCountWhereTheyAreCloseAndOfOneDevice) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  const auto plan_after = [&](const std::function<void(DeploymentState&)>& between) {
    DeploymentState deployment = serving(whole, over_the_rest(whole), third_death);
    for (const double at_s : {10.0, 20.0}) {
      deployment.lost(loss_of("box/1"), at_s);
      serve(deployment);
    }
    between(deployment);
    deployment.lost(loss_of("box/1"), 30);
    return worker_devices(*deployment.plan()).size();
  };
  EXPECT_EQ(plan_after([](DeploymentState&) {}), 2u);
  EXPECT_EQ(plan_after([](DeploymentState& deployment) { deployment.produced(); }), 3u);
  DeploymentState late = serving(whole, over_the_rest(whole), third_death);
  for (const double at_s : {10.0, 20.0, 71.0, 75.0}) {  // the third within 60 s is that at 75
    EXPECT_EQ(worker_devices(*late.plan()).size(), 3u);
    late.lost(loss_of("box/1"), at_s);
    if (at_s < 75) serve(late);
  }
  EXPECT_EQ(worker_devices(*late.plan()).size(), 2u);
  DeploymentState others = serving(whole, over_the_rest(whole), third_death);
  for (const char* device : {"box/0", "box/1", "box/2", "box/0", "box/1", "box/2"}) {
    others.lost(loss_of(device), 10);
    serve(others);
  }
  EXPECT_EQ(worker_devices(*others.plan()).size(), 3u);
}

TEST(Deployment, WithoutAFunctionTheThirdDeathIsFinal) {
  DeploymentState deployment = serving(toy_plan({{1, 1}}), {}, third_death);
  deployment.lost(loss_of("box/1"), 1);
  deployment.lost(loss_of("box/1"), 2);
  EXPECT_EQ(deployment.phase(), DeploymentPhase::loading);
  deployment.lost(loss_of("box/1"), 3);
  EXPECT_EQ(deployment.phase(), DeploymentPhase::failed);
}

TEST(Deployment, ALostDeviceIsTriedAgain) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  DeploymentState deployment = serving(whole, over_the_rest(whole));
  const auto plan = deployment.plan();
  EXPECT_FALSE(deployment.returns_s());
  deployment.lost(loss_of("box/1"), 10);
  EXPECT_FALSE(deployment.returns_s());  // not while it loads
  serve(deployment);
  deployment.lost(loss_of("box/0"), 40);
  serve(deployment);
  EXPECT_EQ(deployment.returns_s(), 70);
  deployment.return_lost(69);
  EXPECT_EQ(deployment.lost_devices().size(), 2u);
  deployment.return_lost(70);  // the plan that was asked for needs the other one, too
  EXPECT_EQ(deployment.lost_devices(), std::set<std::string>{"box/0"});
  EXPECT_EQ(deployment.phase(), DeploymentPhase::serving);
  EXPECT_EQ(deployment.returns_s(), 100);
  deployment.return_lost(100);
  EXPECT_EQ(deployment.phase(), DeploymentPhase::pausing);
  serve(deployment);
  EXPECT_EQ(deployment.plan(), plan);
  EXPECT_FALSE(deployment.returns_s());
}

// As the loss of a link: the worker would find it as it was.
TEST(Deployment, ALossAtOnceIsNotTriedAgainUntilTheDeviceMayReturn) {
  const ServePlan whole = toy_plan({{1, 1}});
  DeploymentState deployment = serving(whole, over_the_rest(whole), third_death);
  WorkerLoss link = loss_of("box/1");
  link.at_once = true;
  deployment.lost(link, 10);
  EXPECT_EQ(worker_devices(*deployment.plan()), std::vector<std::string>{"box/0"});
  EXPECT_EQ(deployment.wait_s(), 0);
  serve(deployment);
  EXPECT_EQ(deployment.returns_s(), 70);
}

// ---- deployments that wait for devices ----

WorkerLoss gone(const std::vector<std::string>& devices) {
  return {Error(ErrorCode::peer, devices.front() + " is on a machine that is gone"), devices, true};
}

constexpr RestartRule waits{.waits = true};

// Knows which devices are away, whatever the deployment was told.
Replan over_what_is_there(const ServePlan& whole, const std::set<std::string>& away) {
  return [whole, &away](const ServePlan&, std::set<std::string> lost) {
    lost.insert(away.begin(), away.end());
    return pipeline_of_the_rest(whole, lost);
  };
}

TEST(WaitingDeployment, IsDownUntilAPlanIsAskedFor) {
  const ServePlan whole = toy_plan({{1, 1}});
  DeploymentState deployment = serving(whole, over_the_rest(whole), waits);
  deployment.lost(loss_of("box/0"));
  serve(deployment);
  deployment.lost(loss_of("box/1"));
  EXPECT_EQ(deployment.phase(), DeploymentPhase::down);
  EXPECT_EQ(name_of(deployment.phase()), "down");
  EXPECT_EQ(deployment.epoch(), 2u);
  EXPECT_FALSE(deployment.failure());
  EXPECT_FALSE(deployment.returns_s());
  EXPECT_THROW(deployment.change_to(toy_plan({{3}}, -1)), Error);
  EXPECT_EQ(deployment.phase(), DeploymentPhase::down);

  deployment.change_to(whole);
  EXPECT_EQ(deployment.phase(), DeploymentPhase::loading) << "at once: there are no steps to wait for";
  EXPECT_EQ(deployment.epoch(), 3u);
  EXPECT_TRUE(deployment.lost_devices().empty());
  serve(deployment);
  EXPECT_EQ(deployment.phase(), DeploymentPhase::serving);
}

TEST(WaitingDeployment, IsDownWithoutAFunctionToo) {
  DeploymentState deployment = serving(toy_plan({{1}}), {}, waits);
  deployment.change_to(toy_plan({{1}}));
  deployment.lost(loss_of("box/0"));
  EXPECT_EQ(deployment.phase(), DeploymentPhase::down);
  deployment.change_to(toy_plan({{1}}));
  EXPECT_EQ(deployment.phase(), DeploymentPhase::loading);
}

TEST(WaitingDeployment, ADeviceThatIsGoneIsNeitherStartedAgainNorCounted) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  DeploymentState deployment = serving(whole, over_the_rest(whole), {.deaths = 3, .first_wait_s = 5, .waits = true});
  deployment.lost(gone({"box/0", "box/1"}));
  EXPECT_EQ(worker_devices(*deployment.plan()), std::vector<std::string>{"box/2"});
  EXPECT_TRUE(deployment.lost_devices().empty());
  EXPECT_EQ(deployment.wait_s(), 0);
  serve(deployment);
  EXPECT_FALSE(deployment.returns_s());
  deployment.change_to(whole);
  serve(deployment);
  deployment.lost(loss_of("box/0"));  // its first death
  EXPECT_EQ(worker_devices(*deployment.plan()), worker_devices(whole));
  EXPECT_EQ(deployment.wait_s(), 0);
}

// A plan with a device that is gone would stop what serves, and could not start.
TEST(WaitingDeployment, NoPlanWithADeviceThatIsGoneReturnsByItself) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  const std::set<std::string> away{"box/2"};
  DeploymentState deployment = serving(whole, over_what_is_there(whole, away), waits);
  deployment.lost(gone({"box/2"}), 10);
  serve(deployment);
  deployment.lost(loss_of("box/1"), 20);
  serve(deployment);
  EXPECT_EQ(worker_devices(*deployment.plan()), std::vector<std::string>{"box/0"});
  deployment.return_lost(80);
  EXPECT_EQ(deployment.phase(), DeploymentPhase::pausing);
  serve(deployment);
  EXPECT_EQ(worker_devices(*deployment.plan()), (std::vector<std::string>{"box/0", "box/1"}));
}

// A link that stays dead: its end is tried again, and does not get to serve.
TEST(WaitingDeployment, ADeviceThatIsLostAgainBeforeItServesIsAwayTwiceAsLong) {
  const ServePlan whole = toy_plan({{1, 1}});
  DeploymentState deployment = serving(whole, over_the_rest(whole), waits);
  const WorkerLoss link{.cause = Error(ErrorCode::peer, "the link is lost"), .devices = {"box/1"}, .at_once = true};
  double now_s = 10;
  for (const double away_s : {60.0, 120.0, 240.0}) {
    deployment.lost(link, now_s);
    serve(deployment);
    EXPECT_EQ(worker_devices(*deployment.plan()), std::vector<std::string>{"box/0"});
    EXPECT_EQ(deployment.returns_s(), now_s + away_s);
    now_s += away_s;
    deployment.return_lost(now_s);
    deployment.paused();
    EXPECT_EQ(worker_devices(*deployment.plan()), worker_devices(whole));
  }
  serve(deployment);
  deployment.lost(link, now_s);
  serve(deployment);
  EXPECT_EQ(deployment.returns_s(), now_s + 60);
}

TEST(WaitingDeployment, ADeviceThatIsOutOfServiceIsAwayWithoutAnEnd) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  DeploymentState deployment = serving(whole, over_the_rest(whole), waits);
  deployment.lost(loss_of("box/1"), 10);
  serve(deployment);
  EXPECT_EQ(deployment.returns_s(), 70);
  deployment.return_lost(70, {{"box/1", "the driver has lost the GPU"}});
  EXPECT_EQ(deployment.phase(), DeploymentPhase::serving);
  EXPECT_FALSE(deployment.returns_s());
  deployment.return_lost(1e9);
  EXPECT_EQ(deployment.lost_devices(), std::set<std::string>{"box/1"});
  deployment.change_to(whole);  // it works again
  serve(deployment);
  EXPECT_TRUE(deployment.lost_devices().empty());
  EXPECT_EQ(worker_devices(*deployment.plan()), worker_devices(whole));
}

TEST(WaitingDeployment, BeforeTheFirstPlanServesOnlyWhatAWorkerSaysIsFinal) {
  const ServePlan whole = toy_plan({{1, 1}});
  const WorkerLoss no_memory{Error(ErrorCode::limit, "it does not fit"), {"box/0"}};
  const std::set<std::string> away{"box/0"};
  for (const bool is_loaded : {false, true}) {
    DeploymentState peers(whole, over_what_is_there(whole, away), waits);
    if (is_loaded) peers.loaded();
    DeploymentState own = peers;
    peers.lost(gone({"box/0"}));
    EXPECT_EQ(worker_devices(*peers.plan()), std::vector<std::string>{"box/1"});
    peers.lost(loss_of("box/1"));
    EXPECT_EQ(peers.phase(), DeploymentPhase::down);
    own.lost(no_memory);
    EXPECT_EQ(own.phase(), DeploymentPhase::failed);
    EXPECT_EQ(own.failure()->code(), ErrorCode::limit);
  }
  DeploymentState served = serving(whole, over_the_rest(whole), waits);
  served.lost(no_memory);
  EXPECT_EQ(served.phase(), DeploymentPhase::loading);
}

// One machine has less memory than it has offered: the others serve without it.
TEST(WaitingDeployment, AMachineThatLacksSomethingIsPlannedAround) {
  const ServePlan whole = toy_plan({{1, 1}});
  const WorkerLoss lacks{Error(ErrorCode::environment, "no memory is left"), {"box/0"}};
  DeploymentState deployment(whole, over_the_rest(whole), {.deaths = 2, .waits = true});
  deployment.lost(lacks, 1);
  EXPECT_EQ(worker_devices(*deployment.plan()), worker_devices(whole));
  deployment.lost(lacks, 2);
  EXPECT_EQ(worker_devices(*deployment.plan()), std::vector<std::string>{"box/1"});
  EXPECT_EQ(deployment.phase(), DeploymentPhase::loading);

  DeploymentState local(whole, over_the_rest(whole), {.deaths = 2});
  local.lost(lacks, 1);
  EXPECT_EQ(local.phase(), DeploymentPhase::failed) << "on one machine that is how it is";
}

// Every order of events that a driver can bring, in random schedules: the epoch counts the starts, no plan that takes
// effect has a lost device, only a failure is final.
TEST(Deployment, KeepsItsPromisesWhateverHappens) {
  const ServePlan whole = toy_plan({{1, 1, 1, 1}});
  const std::vector<std::string> all = worker_devices(whole);
  std::size_t failures = 0, times_down = 0, most_epochs = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::minstd_rand random(seed + 1);
    const auto one_of = [&](std::size_t count) { return static_cast<std::size_t>(random()) % count; };
    const RestartRule restart{.deaths = 1 + static_cast<int>(one_of(3)), .away_s = 10, .waits = one_of(4) == 0};
    DeploymentState deployment(whole, one_of(8) > 0 ? over_the_rest(whole) : Replan(), restart);
    for (int event = 0; event < 25 && deployment.phase() != DeploymentPhase::failed; ++event) {
      const DeploymentState before = deployment;
      const std::vector<std::string> used = worker_devices(*before.plan());
      const bool is_down = before.phase() == DeploymentPhase::down;
      const bool loses = !is_down && one_of(4) == 0, changes = is_down || (!loses && one_of(4) == 0);
      const double now_s = 3.0 * event;
      if (loses)
        deployment.lost(loss_of(used[one_of(used.size())]), now_s);
      else if (changes)
        deployment.change_to(placed_on(toy_plan({{1}}), whole, {all[one_of(all.size())]}));
      else if (before.phase() == DeploymentPhase::loading)
        deployment.loaded();
      else if (before.phase() == DeploymentPhase::warming_up)
        deployment.warmed_up();
      else if (before.phase() == DeploymentPhase::pausing)
        deployment.paused();
      else if (before.returns_s() && *before.returns_s() <= now_s)
        deployment.return_lost(now_s);
      else
        deployment.produced();

      const bool took_effect = deployment.epoch() != before.epoch();
      ASSERT_TRUE(took_effect || deployment.plan() == before.plan());
      ASSERT_LE(deployment.epoch(), before.epoch() + 1);
      if (is_down) {
        ASSERT_TRUE(took_effect);
      }
      if (deployment.phase() == DeploymentPhase::down) {
        ASSERT_TRUE(loses && restart.waits && !took_effect);
        ++times_down;
      } else if (took_effect || changes) {
        ASSERT_EQ(deployment.phase(), took_effect ? DeploymentPhase::loading : DeploymentPhase::pausing);
      }
      if (deployment.phase() == DeploymentPhase::failed) {
        ASSERT_TRUE(loses && deployment.failure());
        ASSERT_TRUE(!took_effect);
        ++failures;
      } else {
        ASSERT_FALSE(deployment.failure());
        for (const std::string& device : worker_devices(*deployment.plan())) {
          ASSERT_FALSE(took_effect && deployment.lost_devices().contains(device)) << device;
        }
      }
    }
    most_epochs = std::max<std::size_t>(most_epochs, deployment.epoch());
  }
  EXPECT_GT(failures, 50u);
  EXPECT_GT(times_down, 10u);
  EXPECT_GT(most_epochs, 4u);
}

}  // namespace
}  // namespace motley
