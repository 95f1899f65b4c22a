// What AgentMachines knows, and its thread that listens to the agents.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <thread>

#include "motley/agent/chunk_service.hpp"
#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/base/version.hpp"
#include "motley/checkpoint/chunk_cache.hpp"
#include "motley/comm/authority/machine_name.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/fleet/cluster_of.hpp"
#include "motley/fleet/machine_status.hpp"
#include "motley/fleet/machine_worker.hpp"
#include "motley/fleet/message_budget.hpp"
#include "motley/fleet/needed_chunks.hpp"
#include "motley/fleet/offer.hpp"
#include "motley/workers/fleet.hpp"

namespace motley {

struct MachinesState {
  static constexpr std::size_t most_weights_callers = 1024;
  static constexpr double tell_sources_every_s = 0.5;
  static constexpr std::size_t most_told_ranges = std::size_t{1} << 20;          // in one message
  static constexpr std::size_t most_queued_bytes = 2 * max_agent_message_bytes;  // for an agent that reads slowly
  static constexpr std::size_t most_cause_bytes = 500, most_named_sources = 8;   // that are shown

  struct Agent {
    std::string name, run;
    MessageStream stream;
    std::string address;
    Instant heard = Clock::now(), told = Clock::now();
    std::optional<AgentReport> report = {};
    std::vector<ChunkRange> held = {};           // of the weights
    std::optional<WeightsSources> sources = {};  // as it was told
    std::set<std::string> bad_sources = {};      // that it has told of
    MessageBudget budget = {};
    std::map<std::string, std::string> out_of_service = {};  // devices, and why
    bool leaving = false, gone = false;
  };
  using WorkerKey = std::pair<std::string, std::uint64_t>;  // device and start

  explicit MachinesState(AgentMachinesOptions given) : options(std::move(given)) {}

  const AgentMachinesOptions options;
  WorkerCalls calls;
  Wakeup wake, changed;
  mutable std::mutex mutex;
  std::list<Agent> agents;
  struct KeptOut {
    Instant until;
    std::string why;
  };
  std::map<std::string, KeptOut> kept_out;  // members that broke the protocol
  std::optional<ModelManifest> manifest;
  std::optional<NeededChunks> needed;  // of the same model
  std::filesystem::path folder;
  std::map<WorkerKey, std::weak_ptr<WorkerNews>> news;
  std::map<std::string, std::shared_ptr<WorkerNews>> news_of_starting;  // until they have called
  std::map<WorkerKey, Fetched> fetched;
  std::map<WorkerKey, WorkerEnded> failed_starts;
  std::set<WorkerKey> fetching;          // for workers that run
  std::uint64_t starts = 0;              // so far; each has a number
  int percent_told = 0;                  // that is fetched, of the newest
  Instant start_stirred = Clock::now();  // when a worker that is to start has last shown something
  ChunkService chunk_service{[this](const ChunkId& id) { return read_weights(id); }, most_weights_callers};
  bool sources_changed = false;
  Instant sources_told = Clock::now();
  std::map<std::pair<std::string, std::string>, MachineLink> links;
  std::uint64_t probe_number = 0;
  std::vector<std::string> probed;       // members of the newest probe
  std::set<std::string> probes_awaited;  // of whom an answer to it is missing
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
                  [this](const LinkHello& hello, const std::string& name) {
                    return name == hello.from_id ? objection_to(name)
                                                 : fmt::format("the certificate names \"{}\"", name);
                  },
              .take = [this](const LinkHello& hello,
                             ByteStream stream) { serve_weights(hello.from_id, std::move(stream)); }}}};
  }

  static std::string run_of(const LinkHello& hello) { return hello.word.substr(hello.word.find(' ') + 1); }

  std::string objection_to(const std::string& name) const { return options.objection ? options.objection(name) : ""; }

  std::string admit(const LinkHello& hello, const std::string& certified) {
    if (certified != hello.from_id)
      return fmt::format("the certificate names \"{}\", not \"{}\"", certified, hello.from_id);
    if (const std::string objection = machine_name_objection(certified); !objection.empty()) return objection;
    if (const std::string objection = objection_to(certified); !objection.empty()) return objection;
    const std::string version = hello.word.substr(0, hello.word.find(' '));
    if (version != motley::version())
      return fmt::format("it runs motley {}, and this deployment {}: install the same version", version,
                         motley::version());
    const std::lock_guard lock(mutex);
    if (ending) return "the deployment has ended";
    if (const auto kept = kept_out.find(certified); kept != kept_out.end() && seconds_until(kept->second.until) > 0)
      return fmt::format("it broke the protocol, and may come again in {}: {}",
                         human_seconds(seconds_until(kept->second.until)), kept->second.why);
    const std::string folded = folded_machine_name(certified);
    for (const Agent& agent : agents)
      if (!agent.gone && folded_machine_name(agent.name) == folded &&
          (agent.name != certified || agent.run != run_of(hello)))
        return fmt::format("another machine is called \"{}\": choose another name with --name", agent.name);
    if (agents.size() >= max_members) return fmt::format("the deployment has {} machines already", max_members);
    return {};
  }

  void take(const LinkHello& hello, ByteStream stream) {
    const std::string address = peer_address(stream.descriptor());
    const std::lock_guard lock(mutex);
    if (ending) return;
    for (Agent& agent : agents) {
      if (agent.gone || folded_machine_name(agent.name) != folded_machine_name(hello.from_id)) continue;
      // Two of this name were admitted at once: the first stays.
      if (agent.name != hello.from_id || agent.run != run_of(hello)) return;
      lose(agent, "has connected again");
    }
    agents.push_back({.name = hello.from_id,
                      .run = run_of(hello),
                      .stream = MessageStream(std::move(stream), max_agent_message_bytes),
                      .address = address.substr(0, address.rfind(':'))});
    agents.back().stream.accept_up_to(max_agent_news_bytes);
    if (manifest) queue(agents.back(), Weights{*manifest});
    wake.notify();
  }

  // The manifest stays as it is once it is there.
  std::vector<std::byte> read_weights(const ChunkId& id) {
    if (!has_chunk(*manifest, id)) throw Error(ErrorCode::peer, "a request for a chunk that the model does not have");
    try {
      return read_chunk(folder, manifest->files[id.file], id.chunk);
    } catch (const Error& error) {
      say("weights", error.what());
      return {};
    }
  }

  void serve_weights(const std::string& name, ByteStream stream) {
    {
      const std::lock_guard lock(mutex);
      if (!manifest) return;
    }
    chunk_service.serve(std::move(stream), [&] { return objection_to(name).empty(); });
  }

  // ---- agents; all under the mutex ----

  void queue(Agent& agent, const AgentMessage& message) {
    agent.stream.queue(encode_agent(message));
    agent.told = Clock::now();
    if (agent.stream.queued_bytes() > most_queued_bytes) return lose(agent, "does not read what it is sent");
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
    sources_changed = true;
    say(agent.leaving || ending ? "left" : "lost", fmt::format("{} {}", agent.name, why));
    changed.notify();
  }

  void take_messages(Agent& agent) {
    try {
      agent.stream.flush();
      for (ReadingTurn turn(agent.stream); const auto message = turn.next();) {
        agent.heard = Clock::now();
        if (!agent.budget.take(message->size()))
          throw Error(ErrorCode::peer,
                      fmt::format("it sends more than {:.0f} messages or {} a second", MessageBudget::messages_per_s,
                                  human_bytes(MessageBudget::bytes_per_s)));
        std::visit([&](const auto& m) { take(agent, m); }, decode_agent(*message));
      }
    } catch (const Error& error) {
      return drop(agent, error.what());
    }
    if (agent.stream.ended()) return lose(agent, "has closed its connection");
    if (const double silent_s = seconds_since(agent.heard); silent_s > options.silence_s)
      return lose(agent, fmt::format("has been silent for {:.1f} s", silent_s));
    if (seconds_since(agent.told) > agent_alive_every_s && agent.stream.flushed()) queue(agent, AgentAlive{});
  }

  // It broke the protocol.
  void drop(Agent& agent, const std::string& why) {
    std::erase_if(kept_out, [](const auto& entry) { return seconds_until(entry.second.until) <= 0; });
    if (kept_out.size() < max_members) kept_out[agent.name] = {deadline_in(options.kept_out_s), why};
    lose(agent, fmt::format("broke the protocol: {}", why));
  }

  // All but itself. From the member on the driver's machine nothing is fetched: the driver sends the same by that link.
  WeightsSources sources_for(const Agent& asking) const {
    WeightsSources told;
    std::size_t ranges = 0, before = 0;
    for (const Agent& agent : agents) {
      if (&agent == &asking) before = told.sources.size();
      if (agent.gone || !agent.report || &agent == &asking) continue;
      WeightsSource& source = told.sources.emplace_back(WeightsSource{agent.name, {}, {}});
      if (agent.name == options.own_name || ranges + agent.held.size() > most_told_ranges) continue;
      source.address = agent.report->weights_address;
      source.chunks = agent.held;
      ranges += agent.held.size();
    }
    // Each begins with those behind itself, so that not all ask the same few.
    std::rotate(told.sources.begin(), told.sources.begin() + static_cast<std::ptrdiff_t>(before), told.sources.end());
    return told;
  }

  void tell_sources() {
    if (!manifest || !sources_changed || seconds_since(sources_told) < tell_sources_every_s) return;
    sources_changed = false;
    sources_told = Clock::now();
    for (Agent& agent : agents) {
      if (agent.gone || !agent.report) continue;
      // One that has not read the last is told the newest when it has.
      agent.stream.flush();
      if (!agent.stream.flushed()) {
        sources_changed = true;
        continue;
      }
      WeightsSources told = sources_for(agent);
      if (told == agent.sources) continue;
      queue(agent, told);
      agent.sources = std::move(told);
    }
  }

  template <class M>
  void take(Agent&, const M&) {
    throw Error(ErrorCode::peer, "a message that agents do not send");
  }
  void take(Agent&, const AgentAlive&) {}
  void take(Agent& agent, const AgentReport& report) {
    if (agent.report == report) return;
    if (agent.report) throw Error(ErrorCode::peer, "another report: what a machine offers stays while it is connected");
    check_report(report);
    std::vector<MachineStatus> with_it{{agent.name, agent.address, report.devices}};
    for (const Agent& other : agents)
      if (!other.gone && other.report) with_it.push_back({other.name, other.address, other.report->devices});
    cluster_of(with_it, {}, assumed_network());  // throws where it cannot be planned with
    agent.report = report;
    sources_changed = true;
    std::vector<std::string> devices;
    for (const OfferedDevice& device : report.devices)
      devices.push_back(fmt::format("{} of {}", human_bytes(static_cast<double>(device.memory_bytes)), device.kind));
    say("joined", fmt::format("{} at {}: {}", agent.name, agent.address, fmt::join(devices, ", ")));
    changed.notify();
  }
  void take(Agent& agent, const HeldChunks& held) {
    for (const ChunkRange& range : held.chunks)
      if (!manifest || !has_chunks(*manifest, range))
        throw Error(ErrorCode::peer, "it holds a chunk that the model does not have");
    agent.held = held.chunks;
    sources_changed = true;
  }
  void take(Agent& agent, const BadSource& bad) {
    check_name(bad.name);
    if (agent.bad_sources.size() < max_members && agent.bad_sources.insert(bad.name).second)
      say("weights",
          fmt::format("{} does without {}: {}", agent.name, bad.name, bad.cause.substr(0, most_cause_bytes)));
  }
  static void check_name(const std::string& name) {
    if (const std::string objection = machine_name_objection(name); !objection.empty())
      throw Error(ErrorCode::peer, objection);
  }
  void take(Agent& agent, const ProbedLinks& measured) {
    if (measured.number != probe_number || probes_awaited.erase(agent.name) == 0) return;
    if (!measured.failure.empty())
      probe_failure = fmt::format("{}: {}", agent.name, measured.failure.substr(0, most_cause_bytes));
    if (!measured.links.empty() && agent.name != probed.front())
      throw Error(ErrorCode::peer, "measured links from another than the first");
    for (const ProbedLink& link : measured.links) {
      if (link.from >= probed.size() || link.to >= probed.size() || link.from == link.to ||
          !can_be_link(link.latency_s, link.bytes_per_s))
        throw Error(ErrorCode::peer, "a measured link that cannot be one");
      links[{probed[link.from], probed[link.to]}] = {probed[link.from], probed[link.to], link.latency_s,
                                                     link.bytes_per_s};
    }
  }
  void take(Agent& agent, const Leave&) {
    if (agent.leaving) return;
    agent.leaving = true;
    say("leaving", agent.name);
    changed.notify();
  }
  void take(Agent& agent, const Fetched& some) {
    if (machine_of(some.device) != agent.name) throw Error(ErrorCode::peer, "news of another machine's device");
    const WorkerKey key{some.device, some.start};
    if (!news.contains(key) && !fetching.contains(key)) return;
    const auto before = fetched.find(key);
    if (before != fetched.end() && some.bytes <= before->second.bytes) return;  // no news
    if (some.bytes > some.of_bytes || (before != fetched.end() && some.of_bytes != before->second.of_bytes))
      throw Error(ErrorCode::peer, "it has fetched more than there is");
    if (some.bytes == some.of_bytes) fetching.erase(key);
    fetched[key] = some;
    start_stirred = Clock::now();
    std::uint64_t bytes = 0, of_bytes = 0;
    for (const auto& [worker, part] : fetched)
      if (worker.second == some.start) bytes += part.bytes, of_bytes += part.of_bytes;
    if (some.bytes == some.of_bytes && some.of_bytes > 0)
      say("fetched", fmt::format("{} has its {} of weights{}", some.device,
                                 human_bytes(static_cast<double>(some.bytes)), origins(some.from)));
    else if (const int percent = percent_of(bytes, of_bytes); percent > percent_told)
      say("fetching", fmt::format("{} %", percent_told = percent));
  }
  static int percent_of(std::uint64_t bytes, std::uint64_t of_bytes) {
    return of_bytes == 0 ? 0 : static_cast<int>(100.0 * static_cast<double>(bytes) / static_cast<double>(of_bytes));
  }
  // ": 1.5 GB from box, 0.5 GB from the driver"; nothing where all comes from the driver.
  static std::string origins(const std::vector<FetchedFrom>& from) {
    std::vector<std::string> parts;
    for (const FetchedFrom& part : from | std::views::take(most_named_sources)) {
      if (!part.source.empty()) check_name(part.source);
      parts.push_back(fmt::format("{} from {}", human_bytes(static_cast<double>(part.bytes)),
                                  part.source.empty() ? "the driver" : part.source));
    }
    if (from.size() > most_named_sources) parts.emplace_back("...");
    const bool others = std::ranges::any_of(from, [](const FetchedFrom& part) { return !part.source.empty(); });
    return others ? fmt::format(": {}", fmt::join(parts, ", ")) : std::string();
  }
  void take(Agent& agent, const WorkerStarted& started) {
    if (machine_of(started.device) != agent.name) throw Error(ErrorCode::peer, "news of another machine's device");
    const auto worker = news.find({started.device, started.start});
    const auto known = worker == news.end() ? nullptr : worker->second.lock();
    if (!known) return;
    const std::lock_guard lock(known->mutex);
    if (known->process == 0) start_stirred = Clock::now();
    known->process = started.process;
  }
  void take(Agent& agent, const WorkerEnded& ended) {
    if (machine_of(ended.device) != agent.name) throw Error(ErrorCode::peer, "news of another machine's device");
    const WorkerKey key{ended.device, ended.start};
    const auto worker = news.find(key);
    if (worker == news.end() && !fetching.contains(key)) return;
    failed_starts[key] = ended;
    failed_starts[key].cause.resize(std::min(ended.cause.size(), most_cause_bytes));
    if (worker == news.end()) return;
    if (const auto known = worker->second.lock())
      known->set(ended.signal != 0 ? WorkerExit{WorkerExit::How::signal, ended.signal}
                                   : WorkerExit{WorkerExit::How::code, ended.code});
  }

  void take(Agent& agent, const DeviceState& state) {
    const auto is_meant = [&](const OfferedDevice& device) { return state.device == device_name(agent.name, device); };
    if (!agent.report || std::ranges::none_of(agent.report->devices, is_meant))
      throw Error(ErrorCode::peer, "news of a device that it does not offer");
    const std::string cause = state.cause.substr(0, most_cause_bytes);
    const auto known = agent.out_of_service.find(state.device);
    if ((known == agent.out_of_service.end() ? std::string() : known->second) == cause) return;
    if (cause.empty())
      agent.out_of_service.erase(known);
    else
      agent.out_of_service[state.device] = cause;
    say("device", cause.empty() ? fmt::format("{} is in service again", state.device)
                                : fmt::format("{} is out of service: {}", state.device, cause));
    changed.notify();
  }
  std::map<std::string, std::string> out_of_service() const {
    std::map<std::string, std::string> all;
    for (const Agent& agent : agents)
      if (!agent.gone) all.insert(agent.out_of_service.begin(), agent.out_of_service.end());
    return all;
  }

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<pollfd> waiting{{wake.descriptor(), POLLIN, 0}};
      bool pending = false;
      {
        const std::lock_guard lock(mutex);
        for (const Agent& agent : agents) {
          waiting.push_back({agent.stream.descriptor(), agent.stream.events(), 0});
          pending = pending || agent.stream.pending();
        }
      }
      constexpr int look_every_ms = 100;
      ::poll(waiting.data(), waiting.size(), pending ? 0 : look_every_ms);
      wake.clear();
      const std::lock_guard lock(mutex);
      for (Agent& agent : agents)
        if (!agent.gone) take_messages(agent);
      std::erase_if(agents, [](const Agent& agent) { return agent.gone; });
      tell_sources();
      std::erase_if(news, [](const auto& worker) { return worker.second.expired(); });
    }
  }

  // ---- workers ----

  // False: its member is not there.
  bool start_worker(const std::string& device, std::uint64_t start, std::vector<ChunkId> chunks) {
    const std::lock_guard lock(mutex);
    start_stirred = Clock::now();
    Agent* agent = find(machine_of(device));
    if (agent == nullptr) return false;
    news_of_starting[device] = std::make_shared<WorkerNews>();
    news[{device, start}] = news_of_starting[device];
    queue(*agent, StartWorker{device, start, std::move(chunks)});
    return true;
  }

  bool fetch_for(const std::string& device, std::uint64_t start, std::vector<ChunkId> chunks) {
    const std::lock_guard lock(mutex);
    start_stirred = Clock::now();
    Agent* agent = find(machine_of(device));
    if (agent == nullptr) return false;
    fetching.insert({device, start});
    queue(*agent, FetchWeights{device, start, std::move(chunks)});
    return true;
  }

  // What an earlier start has left behind does not count any more. Returns the start's number; a worker that is not
  // there is found by check_starting().
  std::uint64_t begin_start(const std::vector<std::string>& starting, const std::vector<std::string>& running,
                            const ChunksOf& chunks) {
    std::uint64_t start = 0;
    {
      const std::lock_guard lock(mutex);
      fetched.clear();
      failed_starts.clear();
      fetching.clear();
      percent_told = 0;
      start = ++starts;
    }
    calls.expect(starting, start);
    for (const std::string& device : starting)
      if (!start_worker(device, start, chunks(device))) return start;
    for (const std::string& device : running)
      if (!fetch_for(device, start, chunks(device))) return start;
    return start;
  }

  std::unique_ptr<WorkerHandle> handle_of(const std::string& device, std::uint64_t start, ByteStream control) {
    const std::lock_guard lock(mutex);
    return std::make_unique<MachineWorker>(std::move(control), std::exchange(news_of_starting[device], nullptr),
                                           [this, device, start] { tell_end(device, start); });
  }

  // Why workers of this start will not come, where that is known.
  void check_starting(const std::vector<std::string>& devices, std::uint64_t start,
                      const std::vector<std::string>& starting) {
    const std::lock_guard lock(mutex);
    if (ending) throw WorkersNotStarted({Error(ErrorCode::interrupted, "the deployment is ending")});
    const std::map<std::string, std::string> cannot_be_used = out_of_service();
    for (const std::string& device : starting)
      if (const auto out = cannot_be_used.find(device); out != cannot_be_used.end())
        throw WorkersNotStarted(
            {Error(ErrorCode::peer, fmt::format("{} is out of service: {}", device, out->second)), {device}, true});
    for (const std::string& device : devices) {
      if (const auto ended = failed_starts.find({device, start}); ended != failed_starts.end())
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
      if (find(machine_of(device)) == nullptr || has_gone({device, start}))
        throw WorkersNotStarted(machine_gone(devices, machine_of(device)));
    if (seconds_since(start_stirred) < start_patience_s) return;
    std::vector<std::string> silent = calls.missing(starting);
    for (const auto& [device, of_start] : fetching) silent.push_back(device);
    throw WorkersNotStarted({Error(ErrorCode::peer, fmt::format("{} shown nothing for {:.0f} s: {}",
                                                                silent.size() == 1 ? "a worker has" : "workers have",
                                                                start_patience_s, fmt::join(silent, ", "))),
                             silent});
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

  void tell_end(const std::string& device, std::uint64_t start) {
    const std::lock_guard lock(mutex);
    news.erase({device, start});
    if (Agent* agent = find(machine_of(device))) queue(*agent, EndWorker{device, start});
  }
};

}  // namespace motley
