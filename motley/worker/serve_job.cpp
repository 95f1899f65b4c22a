// Serving: loads the stage and runs the steps in the order of their arrival.
//
// All workers of a route receive its steps in one order, also where routes share stages: so the worker that is at the
// earliest step of all finds whatever it waits for sent or about to be sent, and there is no deadlock.
//
// A later Launch stops what this one waits for, and makes of its part of the model the next one.
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <variant>

#include "motley/engine/device/device_errors.hpp"
#include "motley/engine/device/test_faults.hpp"
#include "motley/engine/devices.hpp"
#include "motley/engine/stage/stage_executor.hpp"
#include "motley/worker/job.hpp"
#include "motley/workers/launch.hpp"

namespace motley {
namespace {

std::vector<std::int32_t> places_of(const std::vector<std::string>& of, const std::vector<std::string>& devices) {
  std::vector<std::int32_t> places;
  for (const std::string& device : of)
    places.push_back(static_cast<std::int32_t>(std::ranges::find(devices, device) - devices.begin()));
  return places;
}

void tell(ControlConnection& control, const Message& message) {
  try {
    control.send(message);
  } catch (const Error&) {
    // The main thread sees that the connection has ended.
  }
}

// Once another worker is lost, or memory is short, steps make no sense until the next Launch.
[[noreturn]] void serve(const WorkerSide& worker) {
  const c10::InferenceMode guard;
  const auto& [control, self, fabric, queue, activity] = worker;
  const ComputeDevice& device = open_device(self.backend);
  std::unique_ptr<StageModel> preloaded;
  std::unique_ptr<StageExecutor> executor;
  LoadAhead ahead;
  std::uint64_t epoch = 0;
  ServePlan plan;                    // this worker's part
  std::vector<std::string> devices;  // of all workers
  bool interrupted = false;
  const std::optional<TestFault> test_fault = asked_test_fault();
  // Of the first plan alone: the processes that take the place of those that ended count their steps again.
  const auto is_faulty = [&](const Step& step) {
    return test_fault && epoch == 1 && step.step == test_fault->step &&
           (test_fault->device.empty() || test_fault->device == self.device);
  };
  const auto run = [&](WorkQueue::Work work) {
    if (Launch* launch = std::get_if<Launch>(&work.message)) {
      if (launch->epoch <= epoch)
        throw Error(ErrorCode::peer, fmt::format("a launch of epoch {} after one of epoch {}", launch->epoch, epoch));
      epoch = launch->epoch;
      plan = read_sent_plan(launch->plan_json);
      devices = launch->devices;
      if (executor) ahead.end_into(*executor->model());
      if (executor) executor->leave_ranks();
      executor = std::make_unique<StageExecutor>(LaunchedPart{std::move(*launch), work.stop}, plan, self, device,
                                                 control, fabric, executor ? executor->retire() : preloaded, activity);
      queue.announce_steps([&executor = *executor](const Step& step) { executor.expect(step); });
      interrupted = false;
    } else if (const Preload* asked = std::get_if<Preload>(&work.message); asked != nullptr && executor) {
      executor->load_ahead(*asked, ahead, [&control] { tell(control, Preloaded{}); });
    } else if (asked != nullptr) {
      preloaded = preload(*asked, self, device, control);
    } else if (const auto* standby = std::get_if<LoadStandby>(&work.message); standby != nullptr && epoch > 0) {
      if (standby->epoch == epoch && !interrupted)
        executor->load_standby(ahead, [&control, epoch](std::int64_t bytes) {
          tell(control, StandbyHeld{epoch, bytes});
        });
    } else if (auto* step = std::get_if<Step>(&work.message); step != nullptr && epoch > 0) {
      if (interrupted) return;
      if (is_faulty(*step)) access_illegally(device);
      control.send(executor->execute(std::move(*step)));
    } else {
      throw Error(ErrorCode::peer, "the driver sent a message that is not for workers, or not now");
    }
  };
  const auto interrupt = [&](Interrupted why) {
    interrupted = true;
    if (executor && !executor->model()) executor.reset();  // it was taken by the part that could not be made
    activity.set(epoch, 0, Doing::waiting_for_steps);
    control.send(std::move(why));
  };
  // Nothing is taken apart on a device whose context is broken: that would wait, or fail again.
  const auto take_fault = [&](DeviceFault fault, const char* text) {
    if (fault == DeviceFault::memory) fail_without_memory(plan, self.device, assignment_of(plan, self.device));
    if (fault == DeviceFault::program) fail(control, std::current_exception());
    const Error error = fault_error(fault, self.device, activity.get().step, text);
    if (fault == DeviceFault::link) return interrupt({epoch, with_hint(error), {}});
    fail(control, std::make_exception_ptr(error));
  };
  for (;;) {
    try {
      try {
        run(queue.pop());
      } catch (const c10::Error& error) {
        take_fault(fault_of(error, health_of(device)), error.what_without_backtrace());
      } catch (const DeviceError& error) {
        take_fault(fault_of(error.number(), error.what(), health_of(device)), error.what());
      }
    } catch (const GroupBroken& error) {
      interrupt({epoch, error.what(), places_of(error.suspects, devices)});
    } catch (const MemoryShort& error) {
      interrupt({epoch, error.what(), {}, error.kv_tokens});
    }
  }
}

}  // namespace

// Takes what other jobs leave; a message that serving cannot begin with is refused.
const Job serve_job{[](const Message&) { return true; }, serve};

}  // namespace motley
