// A worker without a model, for the driver's tests: it speaks the control protocol, keeps token ids where a worker
// keeps keys and values, and sends no activations. In the last stage it answers a function of all tokens.
//
// `--control-fd N`: started by its driver, or by an agent that tells it whom to call. Who calls connects a fabric with
// the other workers.
//
// The "model folder" is a list of settings: "step_ms=5;refuse=box/1". A device may be told to `exit`, be killed
// (`kill`), send rubbish (`babble`) or `refuse` instead of starting; `lie` makes the answers wrong. Where a stage has
// more than `room` tokens of keys and values, its memory is short, at once or (`room_after`) after this many steps.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/plan/serve_plan.hpp"
#include "motley/workers/block_tables.hpp"
#include "motley/workers/control_connection.hpp"
#include "motley/workers/launch.hpp"
#include "motley/workers/remote_workers.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {
namespace {

std::map<std::string, std::string> read_settings(const std::string& text) {
  std::map<std::string, std::string> settings;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(';', at), text.size());
    const std::string setting = text.substr(at, end - at);
    const std::size_t equals = setting.find('=');
    settings[setting.substr(0, equals)] = setting.substr(equals + 1);
    at = end + 1;
  }
  return settings;
}

class FakeWorker {
 public:
  FakeWorker(ControlConnection& control, const CallDriver& self)
      : control_(control), device_(self.device), settings_(read_settings(self.model_folder)) {}

  // What it keeps for another stage's layers is of no use to this one's.
  void launch(const Launch& launch) {
    plan_ = read_plan<ServePlan>(parse_json(launch.plan_json, "plan"), "plan");
    const auto own = std::ranges::find_if(
        plan_.stages, [&](const Stage& stage) { return std::ranges::count(stage.devices, device_) > 0; });
    if (own->layers != layers_) {
      cache_.clear();
      layers_ = own->layers;
      cache_epoch_ = launch.epoch;
    }
    tables_.emplace(own->kv_tokens / plan_.step.block_tokens + 1);
    answers_.clear();
    if (settings_.contains("step_ms")) step_ms_ = std::stoi(settings_["step_ms"]);
    numbers_.clear();
    for (const Route& route : plan_.routes) {
      const auto hop = std::ranges::find(route.path, own->id, &Hop::stage);
      numbers_.push_back(hop - route.path.begin());
      answers_.push_back(hop != route.path.end() && std::next(hop) == route.path.end() &&
                         own->devices.front() == device_);
    }
    epoch_ = launch.epoch;
    crowded_ = settings_.contains("room") && own->kv_tokens > std::stoll(settings_["room"]);
    steps_left_ = settings_.contains("room_after") ? std::stoi(settings_["room_after"]) : 0;
    control_.send(Progress{"weights", 1});
    if (crowded_ && steps_left_ == 0) return interrupt();
    control_.send(Ready{.weight_bytes = 100,
                        .kv_bytes = 10,
                        .activation_bytes = 1,
                        .load_s = 0,
                        .kernels = "none",
                        .epoch = launch.epoch,
                        .cache_epoch = cache_epoch_});
  }

  void execute(Step step) {
    if (crowded_ && steps_left_ == 0) interrupt();
    if (crowded_ && steps_left_-- <= 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(step_ms_));
    StepResult result{.step = step.step, .compute_s = step_ms_ * 1e-3, .wait_s = 0, .tokens = {}};
    std::erase_if(step.sequences, [&](const StepSequence& part) {
      return !passes(part, static_cast<std::size_t>(numbers_.at(step.route)));
    });
    tables_->complete(step);
    for (const StepSequence& sequence : step.sequences) {
      keep(sequence);
      if (!answers_.at(step.route)) continue;
      if (sequence.sampling) result.tokens.push_back(choose(sequence));
      if (sequence.scoring) result.scores.push_back(score(sequence));
    }
    const std::string& lie = settings_["lie"];
    if (lie == "step") result.step += 100;
    if (lie == "missing") result.tokens.clear();
    if (lie == "scores") result.scores.clear();
    if (lie == "token") result.tokens.at(0).token = -1;
    control_.send(result);
    if (lie == "step") control_.send(StepResult{.step = step.step, .compute_s = 0, .wait_s = 0, .tokens = {}});
  }

 private:
  void interrupt() { control_.send(Interrupted{epoch_, "1 MiB is free", {}, std::stoll(settings_["room"])}); }

  std::int32_t& slot(const StepSequence& sequence, std::int64_t position) {
    const std::int32_t block = sequence.blocks.at(static_cast<std::size_t>(position / plan_.step.block_tokens));
    return cache_[block * plan_.step.block_tokens + position % plan_.step.block_tokens];
  }

  void keep(const StepSequence& sequence) {
    for (std::size_t i = 0; i < sequence.tokens.size(); ++i)
      slot(sequence, sequence.position + static_cast<std::int64_t>(i)) = sequence.tokens[i];
  }

  SampledToken choose(const StepSequence& sequence) {
    const std::int64_t known = sequence.position + sequence.count;
    std::uint64_t hash = 17;
    for (std::int64_t position = 0; position < known; ++position)
      hash = (hash + static_cast<std::uint64_t>(slot(sequence, position))) * 0x9E3779B97F4A7C15;
    // From the upper half of the vocabulary, where tokenizers keep ordinary text.
    const std::int64_t half = plan_.model.arch.vocabulary / 2;
    auto token =
        static_cast<std::int32_t>(half + static_cast<std::int64_t>((hash >> 32) % static_cast<std::uint64_t>(half)));
    for (const auto& forbidden = sequence.sampling->forbidden;
         std::find(forbidden.begin(), forbidden.end(), token) != forbidden.end();)
      token = static_cast<std::int32_t>((token + 1) % plan_.model.arch.vocabulary);
    return {.sequence = sequence.sequence, .token = token, .logprob = 0, .top = {}};
  }

  // A token's log-probability says where it stands and which it is.
  static SequenceScores score(const StepSequence& sequence) {
    SequenceScores scores{.sequence = sequence.sequence};
    for (const std::int32_t token : sequence.scoring->targets) {
      const auto position = sequence.position + 1 + std::ssize(scores.scores);
      TokenScore& score = scores.scores.emplace_back();
      score.logprob = -static_cast<float>(position) - static_cast<float>(token) / 1024;
      for (std::int32_t i = 0; i < sequence.scoring->top; ++i) score.top.push_back({i, -0.5F});
    }
    return scores;
  }

  ControlConnection& control_;
  const std::string device_;
  std::map<std::string, std::string> settings_;
  ServePlan plan_;
  std::vector<bool> answers_;            // per route: this worker reports its tokens
  std::vector<std::ptrdiff_t> numbers_;  // per route: of its stage
  LayerRange layers_ = {-1, -1};
  std::uint64_t epoch_ = 0, cache_epoch_ = 0;
  std::optional<BlockTables> tables_;
  bool crowded_ = false;
  int steps_left_ = 0;  // until memory is short
  std::map<std::int64_t, std::int32_t> cache_;
  int step_ms_ = 0;
};

constexpr double timeout_s = 20;

// The workers of the plan, once all of them have added their part of a sum.
std::unique_ptr<WorkerGroup> connect(const Launch& launch, const CallDriver& self, Fabric& fabric) {
  const std::vector<std::string>& devices = launch.devices;
  const auto rank = static_cast<int>(std::ranges::find(devices, self.device) - devices.begin());
  auto group =
      std::make_unique<WorkerGroup>("between stages", devices, rank, launch.epoch, launch.workers, fabric, timeout_s);
  float sum = 1;
  group->all_reduce(std::as_writable_bytes(std::span(&sum, 1)), CollectiveElement::fp32);
  if (sum != static_cast<float>(devices.size()))
    throw Error(ErrorCode::peer, fmt::format("{} of {} workers are there", sum, devices.size()));
  return group;
}

// What it is told to do instead of starting; the exit code, if it ends by that.
std::optional<int> misbehave(ControlConnection& control, const CallDriver& self) {
  auto settings = read_settings(self.model_folder);
  if (settings["exit"] == self.device) return 9;
  if (settings["kill"] == self.device) ::raise(SIGKILL);
  if (settings["babble"] == self.device) {
    const std::string rubbish(64, 'x');
    if (::write(control.descriptor(), rubbish.data(), rubbish.size()) > 0) ::pause();
  }
  if (settings["refuse"] == self.device) {
    control.send(Failure{static_cast<std::int32_t>(ErrorCode::limit), "it does not fit", "buy memory"});
    return 4;
  }
  return std::nullopt;
}

int run(ControlConnection& control, const CallDriver& self, Fabric& fabric) {
  std::unique_ptr<WorkerGroup> group;
  FakeWorker worker(control, self);
  while (const auto message = control.receive()) {
    if (std::holds_alternative<Stop>(*message)) break;
    if (const auto* launch = std::get_if<Launch>(&*message)) {
      if (const auto code = misbehave(control, self)) return *code;
      if (!self.driver.empty()) group = connect(*launch, self, fabric);
      worker.launch(*launch);
    } else if (std::holds_alternative<Preload>(*message)) {
      control.send(Preloaded{});
    } else if (const auto* standby = std::get_if<LoadStandby>(&*message)) {
      control.send(StandbyHeld{standby->epoch, 1});
    } else {
      worker.execute(std::get<Step>(*message));
    }
  }
  return 0;
}

int run_started(int descriptor) {
  ControlConnection starter(descriptor);
  const auto first = starter.receive();
  if (!first) return 0;
  const auto& self = std::get<CallDriver>(*first);
  if (const char* file = std::getenv("MOTLEY_FAKE_WORKER_TELLS"))
    std::ofstream(file) << self.device << " on " << self.backend << " sees " << std::getenv("CUDA_VISIBLE_DEVICES")
                        << std::endl;
  Fabric fabric({.key = self.key, .identity = {}, .shared_memory = SharedMemoryUse::never});
  if (self.driver.empty()) {
    starter.send(Listening{fabric.address()});
    return run(starter, self, fabric);
  }
  ControlConnection control(
      call_driver(self.driver, {.device = self.device, .start = self.start, .fabric_address = fabric.address()},
                  {.key = self.key}, deadline_in(timeout_s)));
  return run(control, self, fabric);
}

}  // namespace
}  // namespace motley

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  try {
    if (words.size() == 2 && words[0] == "--control-fd") return motley::run_started(std::stoi(words[1]));
    return 2;
  } catch (const motley::Error& error) {
    if (error.code() == motley::ErrorCode::peer) return 5;  // the driver has gone
    fmt::print(stderr, "fake worker: {}\n", error.what());
    return 70;
  }
}
