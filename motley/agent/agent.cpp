#include "motley/agent/agent.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "motley/agent/link_probe.hpp"
#include "motley/agent/local_weights.hpp"
#include "motley/agent/local_workers.hpp"
#include "motley/agent/saved_identity.hpp"
#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/version.hpp"
#include "motley/comm/membership/enrolment.hpp"
#include "motley/comm/membership/member_client.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/workers/control_listener.hpp"

namespace motley {
namespace {

constexpr double driver_silence_s = 5;  // after which another connection is tried
constexpr double call_s = 5;            // for a driver or coordinator to answer
constexpr double again_s = 1;           // between two calls
constexpr double leave_s = 8;           // for the driver to take over what this machine does
constexpr double progress_every_s = 0.2;
constexpr double most_probe_s = 600;  // of links

// The weights of one worker: they are fetched before it starts, and later more for it.
struct WorkerWeights {
  std::uint64_t start = 0;
  bool starts_then = false;  // the worker, once they are here
  std::shared_ptr<WeightsFetch> fetch = {};
  std::uint64_t fetch_start = 0;
  Instant told = Clock::now();
};

GpuWatchOptions watched(const AgentOptions& options) {
  GpuWatchOptions watch = options.watch;
  for (const OfferedDevice& device : options.devices)
    if (!device.uuid.empty()) watch.gpus.push_back({device_name(options.name, device), device.uuid});
  return watch;
}

class Agent {
 public:
  Agent(const AgentOptions& options, int stop)
      : options_(options),
        stop_(stop),
        run_(run_number()),
        identity_file_(state_file(".identity")),
        key_file_(state_file(".key")) {}
  ~Agent() { workers_.end_all(); }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  bool run() {
    enrol_when_reachable();
    while (!ended_) {
      if (stop_requested() && !leave_until_) start_leaving();
      if (leave_until_ && (has_no_worker() || !stream_ || seconds_until(*leave_until_) <= 0)) break;
      if (!stream_) connect();
      wait();
      if (stream_) take_messages();
      look_after_workers();
      if (!stream_ && (workers_.any() || !weights_of_.empty()) && seconds_since(driver_heard_) > options_.lease_s) {
        say("lease", fmt::format("the driver has been gone for {:.0f} s: the workers end", options_.lease_s));
        weights_of_.clear();
        workers_.kill_all();
      }
    }
    if (!ended_) say("left", "as asked");
    weights_of_.clear();
    workers_.end_all();
    if (stream_) stream_->flush();
    return ended_;
  }

 private:
  void say(const std::string& what, const std::string& detail) const {
    if (options_.report) options_.report(what, detail);
  }

  bool stop_requested() const {
    pollfd waiting{stop_, POLLIN, 0};
    return ::poll(&waiting, 1, 0) == 1;
  }
  // True: it is time to stop.
  bool pause(double seconds) const {
    pollfd waiting{stop_, POLLIN, 0};
    return ::poll(&waiting, 1, static_cast<int>(seconds * 1e3)) == 1;
  }

  // Of this machine's place in this deployment.
  std::filesystem::path state_file(const std::string& ending) const {
    const std::string& authority = options_.invitation.authority;
    return options_.state / (authority.substr(authority.find(':') + 1) + "-" + options_.name + ending);
  }

  // The same for every process that this machine's folder has started: one that is killed and started again takes its
  // own place.
  std::string run_number() const {
    const std::filesystem::path file = state_file("");
    std::string number;
    std::ifstream(file) >> number;
    if (!number.empty()) return number;
    number = fmt::format("{:016x}", draw_process_number());
    try {
      std::filesystem::create_directories(options_.state);
      replace_file(file, number + "\n");
    } catch (const std::exception&) {
      // A restart comes as another process then, once the driver has missed this one.
    }
    return number;
  }

  // ---- the driver ----

  bool answers(const std::string& address) const {
    ConnectFailure failure;
    return static_cast<bool>(connect_tcp(address, deadline_in(call_s), failure));
  }

  void enrol_when_reachable() {
    for (bool told = false; !answers(options_.invitation.coordinator); told = true) {
      if (!told) say("waiting", fmt::format("no answer from {}", options_.invitation.coordinator));
      if (pause(again_s)) return;
    }
    identity_.emplace(std::vector{options_.invitation.coordinator},
                      EnrolmentOptions{.group = options_.invitation.group,
                                       .token = options_.invitation.token,
                                       .authority = options_.invitation.authority,
                                       .member = options_.name,
                                       .key = saved_key(key_file_, options_.name)},
                      call_s, read_saved_identity(identity_file_),
                      [file = identity_file_, report = options_.report](const Enrolment& enrolment) {
                        try {
                          save_identity(file, enrolment);
                        } catch (const Error& error) {
                          if (report)
                            report("state", fmt::format("a restart needs the link's token: {}", error.what()));
                        }
                      });
  }

  RelayAccess access() const { return {.key = identity_->key(), .identity = identity_->context()}; }

  void connect() {
    if (!identity_ || seconds_since(called_) < again_s) return;
    called_ = Clock::now();
    LinkHello hello;
    hello.group = agents_service;
    hello.from_id = options_.name;
    hello.word = fmt::format("{} {}", version(), run_);
    try {
      stream_.emplace(call_service(options_.invitation.driver, hello, access(), deadline_in(call_s)),
                      max_agent_message_bytes);
    } catch (const ServiceUnreachable& error) {
      if (!told_unreachable_) say("waiting", error.what());
      told_unreachable_ = true;
      return;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::input || !was_connected_) throw;  // refused
      return;
    }
    was_connected_ = true;
    told_unreachable_ = false;
    driver_heard_ = Clock::now();
    const std::string own = local_address(stream_->descriptor());
    listen_ = options_.relayed ? "relay:" + options_.invitation.relay : own.substr(0, own.rfind(':')) + ":0";
    open_fabric();
    serve_weights();
    weights_.forget_told();
    send(AgentReport{options_.devices, fabric_ ? fabric_->address() : std::string(), weights_.address()});
    workers_.tell_again();
    say("connected", fmt::format("to the deployment \"{}\" at {}, as {}", options_.invitation.group,
                                 options_.invitation.driver, options_.name));
  }

  // For measuring links; workers have fabrics of their own.
  void open_fabric() {
    if (fabric_) return;
    try {
      fabric_ = std::make_shared<Fabric>(FabricOptions{.listen = listen_,
                                                       .key = identity_->key(),
                                                       .identity = identity_->context(),
                                                       .shared_memory = SharedMemoryUse::never});
    } catch (const Error& error) {
      say("links", fmt::format("cannot be measured: {}", error.what()));
    }
  }

  void serve_weights() {
    try {
      weights_.listen(listen_, access());
    } catch (const Error& error) {
      say("weights", fmt::format("other machines cannot fetch them from here: {}", error.what()));
    }
  }

  void send(const AgentMessage& message) {
    if (!stream_) return;
    stream_->send(encode_agent(message));
    sent_ = Clock::now();
  }

  void take_messages() {
    try {
      stream_->flush();
      for (ReadingTurn turn(*stream_); const auto message = turn.next();) {
        driver_heard_ = Clock::now();
        std::visit([&](const auto& m) { take(m); }, decode_agent(*message));
        if (ended_) return;
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::environment) throw;  // this machine lacks something
      say("driver", fmt::format("broke the protocol: {}", error.what()));
      return stream_.reset();
    }
    if (stream_->ended() || seconds_since(driver_heard_) > driver_silence_s) {
      say("driver", stream_->ended() ? "the connection has ended" : "is silent");
      return stream_.reset();
    }
    if (seconds_since(sent_) > agent_alive_every_s) send(AgentAlive{});
  }

  template <class M>
  void take(const M&) {
    throw Error(ErrorCode::peer, "a message that drivers do not send");
  }
  void take(const AgentAlive&) {}
  void take(const End&) {
    say("ended", "the deployment has ended");
    ended_ = true;
    std::error_code ignored;
    for (const auto& file : {identity_file_, key_file_}) std::filesystem::remove(file, ignored);
  }

  void take(const Weights& weights) {
    // To read this machine's own copy may take a while, in which it must not seem lost.
    weights_.set_manifest(weights.manifest, [this] {
      if (seconds_since(sent_) > agent_alive_every_s) send(AgentAlive{});
    });
  }
  void take(const WeightsSources& told) { weights_.set_sources(told.sources); }

  void check_chunks(const std::vector<ChunkId>& chunks) const {
    if (weights_.known() && !weights_.has_chunks(chunks))
      throw Error(ErrorCode::peer, "a chunk that the model does not have");
  }

  void start_fetch(WorkerWeights& weights, std::uint64_t start, const std::vector<ChunkId>& chunks) {
    weights.fetch_start = start;
    weights.fetch = weights_.fetch(chunks, access());
  }

  void take(const StartWorker& asked) {
    offered(asked.device);  // or it is none of this machine
    check_chunks(asked.chunks);
    workers_.end(asked.device);
    WorkerWeights& weights = weights_of_[asked.device] = {.start = asked.start, .starts_then = true};
    if (!weights_.known()) return fail_start(asked.device, "the driver has not said which weights are served");
    if (weights_.has_own())
      start_worker(asked.device, weights);
    else
      start_fetch(weights, asked.start, asked.chunks);
  }

  void take(const FetchWeights& asked) {
    check_chunks(asked.chunks);
    if (!workers_.runs(asked.device) || !weights_.known())
      return send(WorkerEnded{asked.device, asked.start, 0, static_cast<int>(ErrorCode::peer), "it does not run"});
    if (weights_.has_own())
      send(Fetched{asked.device, asked.start, 0, 0});
    else
      start_fetch(weights_of_[asked.device], asked.start, asked.chunks);
  }

  void take(const ProbeLinks& asked) {
    if (!fabric_ || !(asked.seconds > 0 && asked.seconds < most_probe_s))
      return send(ProbedLinks{asked.number, {}, "this machine cannot measure its links"});
    probe_ = std::make_unique<LinkProbe>(asked, options_.name, fabric_, wake_);
  }

  void take(const EndWorker& end) {
    const auto weights = weights_of_.find(end.device);
    if (weights == weights_of_.end() || weights->second.start > end.start) return;
    weights_of_.erase(weights);
    workers_.end(end.device);
  }

  void start_leaving() {
    leave_until_ = deadline_in(leave_s);
    say("leaving", "the driver plans without this machine");
    send(Leave{});
  }

  // ---- workers ----

  const OfferedDevice& offered(const std::string& device) const {
    for (const OfferedDevice& offer : options_.devices)
      if (device == device_name(options_.name, offer)) return offer;
    throw Error(ErrorCode::peer, fmt::format("{} is not a device of this machine", device));
  }

  bool has_no_worker() const { return workers_.none_left() && weights_of_.empty(); }

  CallDriver call_of(const std::string& device, std::uint64_t start) const {
    const OfferedDevice& offer = offered(device);
    CallDriver call{.driver = options_.invitation.driver,
                    .device = device,
                    .start = start,
                    .model_folder = weights_.model().string(),
                    .backend = offer.backend,
                    .threads = offer.threads,
                    .listen = listen_,
                    .key = identity_->key(),
                    .certificate = {},
                    .private_key = {},
                    .authority = {}};
    const TlsIdentity identity = identity_->identity();
    call.certificate = identity.certificate;
    call.private_key = identity.key;
    call.authority = identity.authority;
    return call;
  }

  Variables variables_of(const std::string& device) const {
    const std::string& uuid = offered(device).uuid;
    return uuid.empty() ? Variables() : gpu_variables(uuid);
  }

  // It may be that the worker cannot start, and these weights are gone then.
  void start_worker(const std::string& device, WorkerWeights& weights) {
    weights.starts_then = false;
    workers_.start(device, weights.start);
  }

  void fail_start(const std::string& device, const std::string& cause) {
    say("worker", fmt::format("{} cannot start: {}", device, cause));
    tell_of_worker(WorkerEnded{device, weights_of_.at(device).start, 0, static_cast<int>(ErrorCode::peer), cause});
  }

  void tell_of_worker(const AgentMessage& message) {
    if (const auto* ended = std::get_if<WorkerEnded>(&message)) weights_of_.erase(ended->device);
    send(message);
  }

  void look_after_workers() {
    wake_.clear();
    for (const AgentMessage& news : weights_.news()) send(news);
    if (const auto links = probe_ ? probe_->result() : std::nullopt) {
      send(*links);
      probe_.reset();
    }
    workers_.look();
    std::vector<std::string> devices;
    for (const auto& [device, weights] : weights_of_) devices.push_back(device);
    for (const std::string& device : devices)
      if (const auto weights = weights_of_.find(device); weights != weights_of_.end() && weights->second.fetch)
        look_after_fetch(device, weights->second);
  }

  void look_after_fetch(const std::string& device, WorkerWeights& weights) {
    const FetchProgress progress = weights.fetch->progress();
    if (!progress.failure.empty()) {
      if (weights.starts_then) return fail_start(device, progress.failure);
      send(WorkerEnded{device, weights.fetch_start, 0, static_cast<int>(ErrorCode::peer), progress.failure});
      return weights.fetch.reset();
    }
    const bool news = progress.bytes < progress.of_bytes && seconds_since(weights.told) > progress_every_s;
    if (!progress.done && !news) return;
    weights.told = Clock::now();
    Fetched fetched{device, weights.fetch_start, progress.bytes, progress.of_bytes};
    for (const auto& [source, bytes] : progress.from) fetched.from.push_back({source, bytes});
    send(fetched);
    if (!progress.done) return;
    weights.fetch.reset();
    if (weights.starts_then) start_worker(device, weights);
  }

  void wait() {
    std::vector<pollfd> waiting{{wake_.descriptor(), POLLIN, 0}};
    if (!leave_until_) waiting.push_back({stop_, POLLIN, 0});
    if (stream_) waiting.push_back({stream_->descriptor(), stream_->events(), 0});
    workers_.add_events(waiting);
    constexpr int look_every_ms = 200;
    ::poll(waiting.data(), waiting.size(), stream_ && stream_->pending() ? 0 : look_every_ms);
  }

  const AgentOptions& options_;
  const int stop_;
  const std::string run_;
  const std::filesystem::path identity_file_, key_file_;
  Wakeup wake_;
  std::optional<EnrolledIdentity> identity_;
  std::optional<MessageStream> stream_;
  Instant called_, sent_, driver_heard_;
  std::string listen_;
  bool was_connected_ = false, told_unreachable_ = false, ended_ = false;
  std::optional<Instant> leave_until_;
  std::shared_ptr<Fabric> fabric_;
  std::unique_ptr<LinkProbe> probe_;
  LocalWeights weights_{{.name = options_.name,
                         .driver = options_.invitation.driver,
                         .cache = options_.cache,
                         .cache_bytes = options_.cache_bytes,
                         .model = options_.model,
                         .report = [this](const std::string& detail) { say("weights", detail); }},
                        wake_};
  std::map<std::string, WorkerWeights> weights_of_;  // by device: of a worker that is there, or is to be
  GpuWatch gpus_{watched(options_), wake_};
  LocalWorkers workers_{
      {.program = options_.worker_program,
       .patience_s = options_.patience_s,
       .call = [this](const std::string& device, std::uint64_t start) { return call_of(device, start); },
       .variables = [this](const std::string& device) { return variables_of(device); },
       .tell = [this](const AgentMessage& message) { tell_of_worker(message); },
       .say = [this](const std::string& what, const std::string& detail) { say(what, detail); }},
      gpus_};
};

}  // namespace

bool run_agent(const AgentOptions& options, int stop) { return Agent(options, stop).run(); }

}  // namespace motley
