// What driver and worker say to each other on the control connection. Data between workers travels elsewhere
// (worker_group.hpp).
//
// A worker does the job of its driver's first message: it serves (below), or does what JobMessages ask for. It tells of
// its start by Progress, and of its end by Failure; Stop, or the end of the connection, ends it.
//
// A worker is started as `motley-worker --control-fd N`, where N is its end of a connection that it inherits
// (worker_processes.hpp). The first message there is CallDriver, and the worker opens its fabric. Where its driver has
// started it, on the same machine, it answers Listening, and this is the control connection; where an agent has, it
// makes its control connection by the message (remote_workers.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "motley/base/bounded.hpp"
#include "motley/base/error.hpp"

namespace motley {

constexpr std::size_t max_message_bytes = std::size_t{64} << 20;
constexpr std::size_t max_plan_bytes = std::size_t{32} << 20;
constexpr std::size_t max_address_bytes = 1000;
constexpr std::size_t max_plan_workers = 4096;
constexpr std::size_t max_cache_moves = std::size_t{64} << 10;
constexpr std::size_t max_message_blocks = std::size_t{4} << 20;
constexpr std::size_t max_message_sequences = std::size_t{64} << 10;
constexpr std::size_t max_message_layers = std::size_t{64} << 10;
constexpr std::size_t max_message_tokens = std::size_t{4} << 20;

// Where a worker takes connections of others with its fabric (comm/transport/fabric.hpp).
struct WorkerAddress {
  BoundedText<max_address_bytes> address;
  BoundedText<max_address_bytes> host = {};  // workers of one host share memory; empty: with no other
  bool operator==(const WorkerAddress&) const = default;
};

struct Progress {
  std::string phase;  // "connect", "weights", "warm-up"
  double fraction = 0;
  bool operator==(const Progress&) const = default;
};

struct Failure {
  std::int32_t code = 70;  // ErrorCode
  std::string message;
  std::string hint;
  bool operator==(const Failure&) const = default;
};
// An unknown code counts as a bug.
Error error_of(const Failure& failure);

// What a worker is at.
enum class Doing : std::uint8_t {
  waiting_for_steps,
  computing,
  receiving,  // rows of a step from `peer`
  sending,    // rows of a step to `peer`
  meeting,    // the other ranks of its stage: `peer` is one of them
  last = meeting
};
struct Activity {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;  // or the last one, where it waits for steps
  Doing doing = Doing::waiting_for_steps;
  std::int32_t peer = -1;  // a place in worker_devices(), or in train_devices() (trainer/layout/worker_layout.hpp)
  double for_s = 0;
  double processor_s = 0;  // of the thread, meanwhile
  bool operator==(const Activity&) const = default;
};

// Sent twice a second by a thread that never computes, from the start on: the process runs.
struct Alive {
  Activity activity = {};
  bool operator==(const Alive&) const = default;
};

struct Stop {
  bool operator==(const Stop&) const = default;
};

// From the process that has started the worker: what it is, and what it shows its driver and other workers.
struct CallDriver {
  BoundedText<max_address_bytes> driver;  // the address to call; empty: it is at the other end of this connection
  std::string device;                     // "box/0"
  std::uint64_t start = 1;                // the number of this start
  std::string model_folder;
  std::string backend = "cpu";  // or "cuda:0"
  std::int32_t threads = 1;
  BoundedText<max_address_bytes> listen;            // where to take connections of other workers: "10.0.0.7:0"
  std::string key;                                  // the group's
  std::string certificate, private_key, authority;  // PEM; of the agent
  bool operator==(const CallDriver&) const = default;
};
// Where it has no driver to call: it takes connections of the others.
struct Listening {
  BoundedText<max_address_bytes> address;
  bool operator==(const Listening&) const = default;
};

// A message of a job's own kinds, encoded: for training those of trainer/layout/train_messages.hpp.
struct JobMessage {
  BoundedText<max_message_bytes> bytes;
  bool operator==(const JobMessage&) const = default;
};

// ---- serving ----
//
// Order: the driver sends Launch; the worker answers Progress (any number), then Ready or Failure; from then on the
// driver sends Step, and the worker answers each with a StepResult; Stop, or the end of the connection, ends the
// worker. At any time the driver may send Preload, which is answered by Preloaded: before the first Launch the worker
// then has all that it needs, and tells of its Progress; later it reads what it lacks while its steps run, if it has
// room. LoadStandby, sent once the plan serves, is answered by StandbyHeld. Another Launch, of a later epoch, may come
// at any time: what is under way of the earlier one is given up, and the worker keeps what it holds of the new part. A
// worker that loses a peer, or runs out of memory, sends Interrupted and waits for the next Launch.

// The keys and values of a layer that one worker had under the plan before, and another is to have now: places in
// worker_devices().
struct CacheMove {
  std::int64_t layer = 0;
  std::int32_t from = 0, to = 0;
  bool operator==(const CacheMove&) const = default;
};
// Each worker does its part of the moves in their order, before it is ready: with these blocks of each layer, or with
// these slots' where slots have blocks of their own there. Of layers that it does not have, and of which no move tells,
// a worker keeps nothing.
struct CacheHandover {
  BoundedList<CacheMove, max_cache_moves> moves = {};
  BoundedList<std::int32_t, max_message_blocks> blocks = {};
  BoundedList<std::int32_t, max_message_blocks> slots = {};
  bool operator==(const CacheHandover&) const = default;
};

struct Launch {
  BoundedText<max_plan_bytes> plan_json;  // the part of the worker's stage (plan/worker_part.hpp)
  std::uint64_t epoch = 1;
  // All workers of the plan, in the order of worker_devices() (launch.hpp): each connects with the others.
  BoundedList<std::string, max_plan_workers, max_address_bytes> devices;
  BoundedList<WorkerAddress, max_plan_workers> workers;
  CacheHandover handover = {};
  bool operator==(const Launch&) const = default;
};

// Loads the weights that a Launch of this plan will ask for.
struct Preload {
  BoundedText<max_plan_bytes> plan_json;  // as in Launch
  bool operator==(const Preload&) const = default;
};
struct Preloaded {
  bool operator==(const Preloaded&) const = default;
};

// Loads the copies of other stages' layers that the plan of this epoch sets aside, while steps run.
struct LoadStandby {
  std::uint64_t epoch = 1;
  bool operator==(const LoadStandby&) const = default;
};
// They are there, or as many of them as could be read.
struct StandbyHeld {
  std::uint64_t epoch = 1;
  std::int64_t bytes = 0;
  bool operator==(const StandbyHeld&) const = default;
};

struct Ready {
  // What the worker really allocated, to be held against the plan.
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t activation_bytes = 0;
  double load_s = 0;
  std::string kernels = {};       // the instruction set that its products are compiled for; "aten": LibTorch's own
  std::uint64_t epoch = 1;        // of the Launch that this answers
  std::int64_t loaded_bytes = 0;  // of the weights: what was not held before
  std::int32_t peer_links = 0;    // to and from workers whose rows pass from GPU to GPU
  std::uint64_t cache_epoch = 1;  // since which the keys and values of all its layers have been kept
  bool operator==(const Ready&) const = default;
};

// The steps of this epoch cannot go on here, since another worker is lost, or since this one's memory is short.
struct Interrupted {
  std::uint64_t epoch = 1;
  std::string message;
  BoundedList<std::int32_t, max_plan_workers> suspects = {};  // places in worker_devices(): who did not do their part
  std::int64_t kv_tokens = 0;  // memory is short: its stage may have keys and values of this many tokens
  bool operator==(const Interrupted&) const = default;
};

// How the next token of a sequence is chosen. Stateless: everything the sampler needs is here.
struct Sampling {
  float temperature = 1;  // 0: the most likely token
  float top_p = 1;
  std::int32_t top_k = 0;  // 0: all
  float min_p = 0;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::uint64_t seed = 0;
  std::int32_t logprobs = -1;  // -1: none; n: of the chosen token and the n most likely
  BoundedMap<std::int32_t, float, max_message_tokens> logit_bias = {};
  BoundedList<std::int32_t, max_message_tokens> forbidden = {};  // tokens that may not come now (eos under min_tokens)
  BoundedList<std::int32_t, max_message_tokens> generated = {};  // output so far; filled only where a penalty needs it
  bool operator==(const Sampling&) const = default;
};

// How likely the model finds tokens that are known: log-probabilities of `targets`, of which the i-th follows the i-th
// token of this part.
struct Scoring {
  BoundedList<std::int32_t, max_message_tokens> targets = {};
  std::int32_t top = 0;  // this many of the most likely tokens with each
  bool operator==(const Scoring&) const = default;
};

// One sequence's part of a step: tokens [position, position + count) go through all layers, or through those of the
// first stages alone: the others hold their keys and values already.
struct StepSequence {
  std::uint64_t sequence = 0;
  std::int64_t position = 0;
  std::int64_t count = 0;
  BoundedList<std::int32_t, max_message_tokens> tokens = {};  // `count` ids
  BoundedList<std::int32_t, max_message_blocks> blocks = {};  // KV blocks of its table, in order
  std::optional<Sampling> sampling = {};                      // set: sample a token after the last of these
  std::optional<Scoring> scoring = {};
  std::int32_t stages = 0;  // of the route, that it passes; 0: all. Parts that go further come first in a step
  // Of its table, those that earlier steps have named: `blocks` follow, and together they cover [0, position + count).
  // 0: the table starts again.
  std::int32_t known_blocks = 0;
  std::int32_t slot = -1;  // where layers keep what does not grow with it; -1: they keep no such thing
  bool operator==(const StepSequence&) const = default;
};

// What a step is answered with: with `experts` also those that its tokens take.
enum class Answer : std::uint8_t { tokens, experts, last = experts };

// One micro-batch; sent to all workers of a route, executed by each in the order of arrival.
struct Step {
  std::uint64_t step = 0;
  std::uint64_t route = 0;  // index into the plan's routes
  BoundedList<StepSequence, max_message_sequences> sequences = {};
  Answer answer = Answer::tokens;
  BoundedList<std::uint64_t, max_message_sequences> gone =
      {};  // sequences that have no blocks any more, before this step
  bool operator==(const Step&) const = default;
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};

struct SampledToken {
  std::uint64_t sequence = 0;
  std::int32_t token = 0;
  float logprob = 0;                                       // 0 unless asked for
  BoundedList<TokenLogprob, max_message_tokens> top = {};  // as many as asked for
  bool operator==(const SampledToken&) const = default;
};

struct TokenScore {
  float logprob = 0;
  BoundedList<TokenLogprob, max_message_tokens> top = {};
  bool operator==(const TokenScore&) const = default;
};

// Of the targets of one sequence, in their order.
struct SequenceScores {
  std::uint64_t sequence = 0;
  BoundedList<TokenScore, max_message_tokens> scores = {};
  bool operator==(const SequenceScores&) const = default;
};

// The experts of a layer that the tokens of a step took, those of each token together.
struct LayerExperts {
  std::int64_t layer = 0;
  BoundedList<std::int32_t, max_message_tokens> experts = {};
  bool operator==(const LayerExperts&) const = default;
};

// Tokens and scores come from rank 0 of the route's last stage; the other workers report their times alone.
struct StepResult {
  std::uint64_t step = 0;
  double compute_s = 0;     // busy
  double wait_s = 0;        // waiting for other workers
  double stage_wait_s = 0;  // of that, for the other ranks of the stage
  BoundedList<SampledToken, max_message_sequences> tokens = {};
  BoundedList<SequenceScores, max_message_sequences> scores = {};  // of the sequences with targets
  BoundedList<LayerExperts, max_message_layers> experts = {};      // of the stage's layers, where asked for
  bool operator==(const StepResult&) const = default;
};

using Message = std::variant<Launch, Progress, Ready, Failure, Step, StepResult, Stop, Alive, CallDriver, Interrupted,
                             Preload, Preloaded, JobMessage, Listening, LoadStandby, StandbyHeld>;

// Whether a part of a step passes the `number`-th stage of its route.
bool passes(const StepSequence& part, std::size_t number);
// How many of the route's stages the step passes.
std::size_t stages_passed(const Step& step, std::size_t of_route);

// Little-endian binary. Encoding throws a limit error where a message exceeds the maxima; decoding checks every length
// against what is left and against the same maxima, and throws a peer error on anything malformed.
std::string encode(const Message& message);
Message decode(std::string_view bytes);

}  // namespace motley
