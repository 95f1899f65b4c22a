#include "motley/agent/members.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/base/version.hpp"
#include "motley/checkpoint/chunk_cache.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/workers/remote_workers.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley {
namespace {

constexpr double start_patience_s = 30;  // for the next sign of a worker that is to start
constexpr double probe_patience_s = 20;  // beyond the seconds of traffic
constexpr std::size_t most_request_bytes = 1024;

bool is_rate(double per_s) { return std::isfinite(per_s) && per_s > 0; }

// What is learned of a worker beside its control connection.
struct WorkerNews {
  std::mutex mutex;
  std::optional<WorkerExit> exit;
  bool gone = false;  // its machine
  int process = 0;
  Wakeup wake;

  void set(std::optional<WorkerExit> how) {
    const std::lock_guard lock(mutex);
    if (how)
      exit = how;
    else
      gone = true;
    wake.notify();
  }
};

class MemberWorker final : public RemoteWorker {
 public:
  MemberWorker(ByteStream control, std::shared_ptr<WorkerNews> news, std::function<void()> end)
      : RemoteWorker(std::move(control)), news_(std::move(news)), end_(std::move(end)) {}
  ~MemberWorker() override { MemberWorker::kill(); }

  bool ended() const override { return RemoteWorker::ended() || news().has_value(); }
  std::optional<WorkerExit> exit() override {
    const auto known = news();
    return known ? known : RemoteWorker::exit();
  }
  std::vector<pollfd> events() const override {
    std::vector<pollfd> all = RemoteWorker::events();
    all.push_back({news_->wake.descriptor(), POLLIN, 0});
    return all;
  }
  void close() override {
    RemoteWorker::close();
    if (end_) std::exchange(end_, nullptr)();
  }
  void kill() override { close(); }
  int process() const override {
    const std::lock_guard lock(news_->mutex);
    return news_->process;
  }

 private:
  std::optional<WorkerExit> news() const {
    const std::lock_guard lock(news_->mutex);
    if (news_->exit) return news_->exit;
    return news_->gone ? std::optional(WorkerExit{.how = WorkerExit::How::machine}) : std::nullopt;
  }

  const std::shared_ptr<WorkerNews> news_;
  std::function<void()> end_;
};

}  // namespace

struct Members::State {
  struct Agent {
    std::string name, run;
    MessageStream stream;
    std::string address;
    Instant heard = Clock::now(), told = Clock::now();
    std::optional<AgentReport> report = {};
    bool leaving = false, gone = false;
  };
  using WorkerKey = std::pair<std::string, std::uint64_t>;  // device and epoch

  explicit State(MembersOptions given) : options(std::move(given)) {}

  const MembersOptions options;
  WorkerCalls calls;
  Wakeup wake, changed;
  mutable std::mutex mutex;
  std::list<Agent> agents;
  std::optional<ModelManifest> manifest;
  std::filesystem::path folder;
  std::map<WorkerKey, std::weak_ptr<WorkerNews>> news;
  std::map<WorkerKey, Fetched> fetched;
  std::map<WorkerKey, WorkerEnded> failed_starts;
  std::set<WorkerKey> fetching;          // for workers that run, and the epoch of their next launch
  Instant start_stirred = Clock::now();  // when a worker that is to start has last shown something
  std::set<int> weight_sockets;
  std::map<std::pair<std::string, std::string>, MachineLink> links;
  std::uint64_t probe_number = 0;
  std::vector<std::string> probed;  // members of the newest probe
  std::size_t probes_awaited = 0;   // answers to it
  std::string probe_failure;
  bool ending = false;
  std::mutex report_mutex;
  std::unique_ptr<ControlListener> listener;
  std::jthread thread;

  void say(const std::string& what, const std::string& detail) {
    const std::lock_guard lock(report_mutex);
    if (options.report) options.report(what, detail);
  }

  // ---- services ----

  std::map<std::string, ControlService> services() {
    return {{workers_service, calls.service()},
            {agents_service,
             {.admit = [this](const LinkHello& hello, const std::string& name) { return admit(hello, name); },
              .take = [this](const LinkHello& hello, ByteStream stream) { take(hello, std::move(stream)); }}},
            {weights_service,
             {.admit =
                  [](const LinkHello& hello, const std::string& name) {
                    return name == hello.from_id ? "" : fmt::format("the certificate names \"{}\"", name);
                  },
              .take = [this](const LinkHello&, ByteStream stream) { give_weights(std::move(stream)); }}}};
  }

  static std::string run_of(const LinkHello& hello) { return hello.word.substr(hello.word.find(' ') + 1); }

  std::string admit(const LinkHello& hello, const std::string& certified) {
    if (certified != hello.from_id)
      return fmt::format("the certificate names \"{}\", not \"{}\"", certified, hello.from_id);
    if (hello.from_id.find('/') != std::string::npos) return "a machine's name cannot have a slash";
    const std::string version = hello.word.substr(0, hello.word.find(' '));
    if (version != motley::version())
      return fmt::format("it runs motley {}, and this deployment {}: install the same version", version,
                         motley::version());
    const std::lock_guard lock(mutex);
    if (ending) return "the deployment has ended";
    for (const Agent& agent : agents)
      if (!agent.gone && agent.name == hello.from_id && agent.run != run_of(hello))
        return fmt::format("another machine is called \"{}\": choose another name with --name", hello.from_id);
    return {};
  }

  void take(const LinkHello& hello, ByteStream stream) {
    const std::string address = peer_address(stream.descriptor());
    const std::lock_guard lock(mutex);
    if (ending) return;
    for (Agent& agent : agents) {
      if (agent.gone || agent.name != hello.from_id) continue;
      if (agent.run != run_of(hello)) return;  // two of this name were admitted at once: the first stays
      lose(agent, "has connected again");
    }
    agents.push_back({.name = hello.from_id,
                      .run = run_of(hello),
                      .stream = MessageStream(std::move(stream), max_agent_message_bytes),
                      .address = address.substr(0, address.rfind(':'))});
    if (manifest) queue(agents.back(), Weights{*manifest});
    wake.notify();
  }

  // Until the agent hangs up.
  void give_weights(ByteStream stream) {
    const int socket = stream.descriptor();
    {
      const std::lock_guard lock(mutex);
      if (ending || !manifest) return;
      weight_sockets.insert(socket);
    }
    try {
      stream_weights(std::move(stream));
    } catch (const Error&) {
      // The agent tries again.
    }
    const std::lock_guard lock(mutex);
    weight_sockets.erase(socket);
  }

  void stream_weights(ByteStream bytes) {
    MessageStream messages(std::move(bytes), max_agent_message_bytes);
    messages.accept_up_to(most_request_bytes);
    BlockingMessageStream stream(std::move(messages));
    while (const auto message = stream.receive()) {
      const ChunkId id = decode_request(*message).id;
      if (!has_chunk(*manifest, id)) throw Error(ErrorCode::peer, "a request for a chunk that the model does not have");
      std::vector<std::byte> chunk;
      try {
        chunk = read_chunk(folder, manifest->files[id.file], id.chunk);
      } catch (const Error& error) {
        say("weights", error.what());
      }
      stream.send({reinterpret_cast<const char*>(chunk.data()), chunk.size()});
    }
  }

  // ---- agents; all under the mutex ----

  void queue(Agent& agent, const AgentMessage& message) {
    agent.stream.queue(encode_agent(message));
    agent.told = Clock::now();
    wake.notify();
  }

  Agent* find(const std::string& name) {
    for (Agent& agent : agents)
      if (!agent.gone && agent.name == name) return &agent;
    return nullptr;
  }

  void lose(Agent& agent, const std::string& why) {
    if (agent.gone) return;
    agent.gone = true;
    agent.stream.close();
    for (auto& [key, worker] : news)
      if (machine_of(key.first) == agent.name)
        if (const auto known = worker.lock()) known->set(std::nullopt);
    say(agent.leaving || ending ? "left" : "lost", fmt::format("{} {}", agent.name, why));
    changed.notify();
  }

  void take_messages(Agent& agent) {
    try {
      agent.stream.flush();
      while (const auto message = agent.stream.receive()) {
        agent.heard = Clock::now();
        std::visit([&](const auto& m) { take(agent, m); }, decode_agent(*message));
      }
    } catch (const Error& error) {
      return lose(agent, fmt::format("broke the protocol: {}", error.what()));
    }
    if (agent.stream.ended()) return lose(agent, "has closed its connection");
    if (const double silent_s = seconds_since(agent.heard); silent_s > options.silence_s)
      return lose(agent, fmt::format("has been silent for {:.1f} s", silent_s));
    if (seconds_since(agent.told) > agent_alive_every_s) queue(agent, AgentAlive{});
  }

  template <class M>
  void take(Agent&, const M&) {
    throw Error(ErrorCode::peer, "a message that agents do not send");
  }
  void take(Agent&, const AgentAlive&) {}
  void take(Agent& agent, const AgentReport& report) {
    for (const OfferedDevice& device : report.devices)
      if (device.memory_bytes < 1 || !is_rate(device.bytes_per_s) || !is_rate(device.flop_per_s) || device.threads < 1)
        throw Error(ErrorCode::peer, "a device without memory or speed");
    if (report.devices.empty()) throw Error(ErrorCode::peer, "no device is offered");
    agent.report = report;
    std::vector<std::string> devices;
    for (const OfferedDevice& device : report.devices)
      devices.push_back(fmt::format("{} of {}", human_bytes(static_cast<double>(device.memory_bytes)), device.kind));
    say("joined", fmt::format("{} at {}: {}", agent.name, agent.address, fmt::join(devices, ", ")));
    changed.notify();
  }
  void take(Agent& agent, const ProbedLinks& measured) {
    if (measured.number != probe_number || probes_awaited == 0) return;
    --probes_awaited;
    if (!measured.failure.empty()) probe_failure = fmt::format("{}: {}", agent.name, measured.failure);
    for (const ProbedLink& link : measured.links) {
      if (link.from >= probed.size() || link.to >= probed.size() || link.from == link.to || !(link.latency_s >= 0) ||
          !(link.bytes_per_s > 0) || !std::isfinite(link.latency_s) || !std::isfinite(link.bytes_per_s))
        throw Error(ErrorCode::peer, "a measured link that cannot be one");
      links[{probed[link.from], probed[link.to]}] = {probed[link.from], probed[link.to], link.latency_s,
                                                     link.bytes_per_s};
    }
  }
  void take(Agent& agent, const Leave&) {
    agent.leaving = true;
    say("leaving", agent.name);
    changed.notify();
  }
  void take(Agent& agent, const Fetched& some) {
    if (machine_of(some.device) != agent.name) throw Error(ErrorCode::peer, "news of another machine's device");
    const WorkerKey key{some.device, some.epoch};
    if (!news.contains(key) && !fetching.contains(key)) return;
    if (some.bytes == some.of_bytes) fetching.erase(key);
    fetched[key] = some;
    start_stirred = Clock::now();
    std::uint64_t bytes = 0, of_bytes = 0;
    for (const auto& [worker, part] : fetched)
      if (worker.second == some.epoch) bytes += part.bytes, of_bytes += part.of_bytes;
    if (some.bytes == some.of_bytes && some.of_bytes > 0)
      say("fetched",
          fmt::format("{} has its {} of weights", some.device, human_bytes(static_cast<double>(some.bytes))));
    else if (of_bytes > 0)
      say("fetching", fmt::format("{:.0f} %", 100.0 * static_cast<double>(bytes) / static_cast<double>(of_bytes)));
  }
  void take(Agent& agent, const WorkerStarted& started) {
    if (machine_of(started.device) != agent.name) throw Error(ErrorCode::peer, "news of another machine's device");
    const auto worker = news.find({started.device, started.epoch});
    const auto known = worker == news.end() ? nullptr : worker->second.lock();
    if (!known) return;
    start_stirred = Clock::now();
    const std::lock_guard lock(known->mutex);
    known->process = started.process;
  }
  void take(Agent& agent, const WorkerEnded& ended) {
    if (machine_of(ended.device) != agent.name) throw Error(ErrorCode::peer, "news of another machine's device");
    const WorkerKey key{ended.device, ended.epoch};
    const auto worker = news.find(key);
    if (worker == news.end() && !fetching.contains(key)) return;
    failed_starts[key] = ended;
    if (worker == news.end()) return;
    if (const auto known = worker->second.lock())
      known->set(ended.signal != 0 ? WorkerExit{WorkerExit::How::signal, ended.signal}
                                   : WorkerExit{WorkerExit::How::code, ended.code});
  }

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<pollfd> waiting{{wake.descriptor(), POLLIN, 0}};
      {
        const std::lock_guard lock(mutex);
        for (const Agent& agent : agents) waiting.push_back({agent.stream.descriptor(), agent.stream.events(), 0});
      }
      constexpr int look_every_ms = 100;
      ::poll(waiting.data(), waiting.size(), look_every_ms);
      wake.clear();
      const std::lock_guard lock(mutex);
      for (Agent& agent : agents)
        if (!agent.gone) take_messages(agent);
      std::erase_if(agents, [](const Agent& agent) { return agent.gone; });
      std::erase_if(news, [](const auto& worker) { return worker.second.expired(); });
    }
  }

  // ---- workers ----

  void forget_starts() {
    const std::lock_guard lock(mutex);
    fetched.clear();
    failed_starts.clear();
    fetching.clear();
  }

  // Why workers of this epoch will not come or stay, where that is known.
  void check_starting(const std::vector<std::string>& devices, std::uint64_t epoch,
                      const std::vector<std::string>& starting, const Workers& staying) {
    for (const Worker& worker : staying) check_staying(worker, devices);
    const std::lock_guard lock(mutex);
    if (ending) throw WorkersNotStarted({Error(ErrorCode::interrupted, "the deployment is ending")});
    for (const std::string& device : devices) {
      if (const auto ended = failed_starts.find({device, epoch}); ended != failed_starts.end())
        throw WorkersNotStarted(
            {Error(ErrorCode::peer,
                   fmt::format("{} cannot be started: {}", device,
                               ended->second.cause.empty()
                                   ? fmt::format("exit code {}, signal {}", ended->second.code, ended->second.signal)
                                   : ended->second.cause)),
             {device}});
    }
    // An agent that has connected again does not know what its earlier connection was told.
    for (const std::string& device : starting)
      if (find(machine_of(device)) == nullptr || has_gone({device, epoch}))
        throw WorkersNotStarted(gone(devices, machine_of(device)));
    if (seconds_since(start_stirred) < start_patience_s) return;
    std::vector<std::string> silent = calls.missing();
    for (const auto& [device, of_epoch] : fetching) silent.push_back(device);
    throw WorkersNotStarted({Error(ErrorCode::peer, fmt::format("{} shown nothing for {:.0f} s: {}",
                                                                silent.size() == 1 ? "a worker has" : "workers have",
                                                                start_patience_s, fmt::join(silent, ", "))),
                             silent});
  }

  static void check_staying(const Worker& worker, const std::vector<std::string>& devices) {
    const auto exit = worker.link->exit();
    if (!exit) return;
    if (exit->how == WorkerExit::How::machine) throw WorkersNotStarted(gone(devices, machine_of(worker.device)));
    throw WorkersNotStarted(
        {Error(ErrorCode::peer, fmt::format("{} {}", worker.name(), exit->text())), {worker.device}});
  }

  bool all_fetched() const {
    const std::lock_guard lock(mutex);
    return fetching.empty();
  }

  bool has_gone(const WorkerKey& key) const {
    const auto worker = news.find(key);
    const auto known = worker == news.end() ? nullptr : worker->second.lock();
    if (!known) return false;
    const std::lock_guard lock(known->mutex);
    return known->gone;
  }

  static WorkerLoss gone(const std::vector<std::string>& devices, const std::string& machine) {
    WorkerLoss loss{Error(ErrorCode::peer, fmt::format("{} is not there", machine)), {}, true};
    std::ranges::copy_if(devices, std::back_inserter(loss.devices),
                         [&](const std::string& device) { return machine_of(device) == machine; });
    return loss;
  }

  void tell_end(const std::string& device, std::uint64_t epoch) {
    const std::lock_guard lock(mutex);
    news.erase({device, epoch});
    if (Agent* agent = find(machine_of(device))) queue(*agent, EndWorker{device, epoch});
  }
};

Members::Members(MembersOptions options) : state_(std::make_unique<State>(std::move(options))) {
  state_->listener =
      std::make_unique<ControlListener>(state_->options.listen, state_->options.access, state_->services());
  state_->thread = std::jthread([state = state_.get()](const std::stop_token& stop) { state->run(stop); });
}

Members::~Members() {
  end(0);
  state_->listener.reset();
}

const std::string& Members::address() const { return state_->listener->address(); }

std::vector<MemberStatus> Members::list() const {
  std::vector<MemberStatus> all;
  {
    const std::lock_guard lock(state_->mutex);
    for (const State::Agent& agent : state_->agents)
      if (agent.report && !agent.leaving && !agent.gone)
        all.push_back({agent.name, agent.address, agent.report->devices});
  }
  std::ranges::sort(all, {}, &MemberStatus::name);
  return all;
}

std::set<std::string> Members::leaving() const {
  const std::lock_guard lock(state_->mutex);
  std::set<std::string> names;
  for (const State::Agent& agent : state_->agents)
    if (agent.leaving && !agent.gone) names.insert(agent.name);
  return names;
}

void Members::drain(const std::string& name) {
  const std::lock_guard lock(state_->mutex);
  State::Agent* agent = state_->find(name);
  if (agent == nullptr)
    throw input_error(fmt::format("there is no machine called \"{}\"", name), "`motley status` lists those there are");
  agent->leaving = true;
  state_->say("leaving", fmt::format("{}, as asked", name));
  state_->changed.notify();
}

int Members::changed() const { return state_->changed.descriptor(); }
void Members::clear_changed() { state_->changed.clear(); }

std::vector<MachineLink> Members::links() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<MachineLink> all;
  for (const auto& [ends, link] : state_->links) all.push_back(link);
  return all;
}

std::vector<MachineLink> Members::measure_links(double seconds, int stop) {
  State& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    ProbeLinks asked{.number = ++state.probe_number, .seconds = seconds, .members = {}};
    state.probed.clear();
    for (const State::Agent& agent : state.agents)
      if (!agent.gone && !agent.leaving && agent.report && !agent.report->fabric_address.empty()) {
        asked.members.push_back({agent.name, agent.report->fabric_address});
        state.probed.push_back(agent.name);
      }
    if (asked.members.size() < 2) return {};
    state.probes_awaited = asked.members.size();
    state.probe_failure.clear();
    for (const ProbeMember& member : asked.members) state.queue(*state.find(member.name), asked);
  }
  const Instant until = deadline_in(seconds + probe_patience_s);
  std::string failure;
  for (bool done = false; !done;) {
    pollfd waiting{stop, POLLIN, 0};
    constexpr int look_every_ms = 50;
    if (::poll(&waiting, 1, look_every_ms) == 1) break;
    const std::lock_guard lock(state.mutex);
    failure = state.probe_failure;
    if (seconds_until(until) <= 0) failure = "not all have answered in time";
    done = state.probes_awaited == 0 || !failure.empty();
  }
  if (!failure.empty()) state.say("links", fmt::format("were not measured: {}", failure));
  return links();
}

void Members::offer_weights(ModelManifest manifest, std::filesystem::path folder) {
  const std::lock_guard lock(state_->mutex);
  MOTLEY_CHECK(!state_->manifest);  // who streams reads it without the mutex
  state_->manifest = std::move(manifest);
  state_->folder = std::move(folder);
  for (State::Agent& agent : state_->agents)
    if (!agent.gone) state_->queue(agent, Weights{*state_->manifest});
}

Workers Members::start_workers(const ServePlan& plan, std::uint64_t epoch,
                               const std::function<std::vector<ChunkId>(const std::string& device)>& chunks,
                               Workers& earlier) {
  State& state = *state_;
  const std::vector<std::string> devices = worker_devices(plan);
  std::erase_if(earlier, [&](const Worker& worker) {
    return worker.link->exit() || std::ranges::count(devices, worker.device) == 0;
  });
  std::vector<std::string> starting;
  for (const std::string& device : devices)
    if (std::ranges::find(earlier, device, &Worker::device) == earlier.end()) starting.push_back(device);

  state.calls.expect(starting, epoch);
  state.forget_starts();
  std::map<std::string, std::shared_ptr<WorkerNews>> news;
  for (const std::string& device : devices) {
    std::vector<ChunkId> read = chunks(device);
    const std::lock_guard lock(state.mutex);
    state.start_stirred = Clock::now();
    State::Agent* agent = state.find(machine_of(device));
    if (agent == nullptr) break;  // check_starting() finds it
    if (std::ranges::count(starting, device) > 0) {
      news[device] = std::make_shared<WorkerNews>();
      state.news[{device, epoch}] = news[device];
      state.queue(*agent, StartWorker{device, epoch, std::move(read)});
    } else {
      state.fetching.insert({device, epoch});
      state.queue(*agent, FetchWeights{device, epoch, std::move(read)});
    }
  }
  const auto check = [&] { state.check_starting(devices, epoch, starting, earlier); };
  try {
    auto called = state.calls.wait(no_deadline, check);
    constexpr std::chrono::milliseconds look_every(10);
    for (; !state.all_fetched(); std::this_thread::sleep_for(look_every)) check();
    return launch_remote_workers(
        plan, epoch, std::move(called), {.model_folder = {}, .program = {}, .transport = {}, .backend = "cpu"},
        [&](const std::string& device, ByteStream control) -> std::unique_ptr<WorkerLink> {
          return std::make_unique<MemberWorker>(std::move(control), news.at(device),
                                                [this, device, epoch] { state_->tell_end(device, epoch); });
        },
        earlier);
  } catch (const Error&) {
    for (const std::string& device : starting) state.tell_end(device, epoch);
    throw;
  }
}

void Members::end(double grace_s) {
  State& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    state.ending = true;
    for (State::Agent& agent : state.agents)
      if (!agent.gone) state.queue(agent, End{});
    for (const int socket : state.weight_sockets) ::shutdown(socket, SHUT_RDWR);
  }
  const Instant until = deadline_in(grace_s);
  const auto left = [&] {
    const std::lock_guard lock(state.mutex);
    return !state.agents.empty();
  };
  while (left() && seconds_until(until) > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  state.thread.request_stop();
  state.wake.notify();
  if (state.thread.joinable()) state.thread.join();
}

}  // namespace motley
