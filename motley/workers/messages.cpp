#include "motley/workers/messages.hpp"

#include <algorithm>
#include <array>

#include "motley/comm/net/wire.hpp"

namespace motley {
namespace {

constexpr WireProtocol protocol{.max_bytes = max_message_bytes,
                                .version = std::uint8_t{10},
                                .versions_hint = "motley and motley-worker must come from the same build"};

// Maxima of the lists and texts inside messages.
constexpr std::size_t max_plan_bytes = std::size_t{32} << 20;
constexpr std::size_t max_text_bytes = std::size_t{64} << 10;
constexpr std::size_t max_peers = 4096;
constexpr std::size_t max_moves = std::size_t{64} << 10;
constexpr std::size_t max_blocks = std::size_t{4} << 20;
constexpr std::size_t max_address_bytes = 1000;
constexpr std::size_t max_sequences = std::size_t{64} << 10;
constexpr std::size_t max_tokens = std::size_t{4} << 20;

}  // namespace

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<WorkerAddress> m) {
  wire(m.address, max_address_bytes);
  wire(m.host, max_address_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<CacheMove> m) {
  wire(m.layer);
  wire(m.from);
  wire(m.to);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<CacheHandover> m) {
  wire(m.moves, max_moves);
  wire(m.blocks, max_blocks);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Launch> m) {
  wire(m.plan_json, max_plan_bytes);
  wire(m.epoch);
  wire(m.workers, max_peers);
  wire(m.handover);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Preload> m) {
  wire(m.plan_json, max_plan_bytes);
}

template <class Wire>
static void fields(Wire&, typename Wire::template Ref<Preloaded>) {}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<LoadStandby> m) {
  wire(m.epoch);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<StandbyHeld> m) {
  wire(m.epoch);
  wire(m.bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Progress> m) {
  wire(m.phase, max_text_bytes);
  wire(m.fraction);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Ready> m) {
  wire(m.weight_bytes);
  wire(m.kv_bytes);
  wire(m.activation_bytes);
  wire(m.load_s);
  wire(m.kernels, max_text_bytes);
  wire(m.epoch);
  wire(m.loaded_bytes);
  wire(m.peer_links);
  wire(m.cache_epoch);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Interrupted> m) {
  wire(m.epoch);
  wire(m.message, max_text_bytes);
  wire(m.suspects, max_peers);
  wire(m.kv_tokens);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Failure> m) {
  wire(m.code);
  wire(m.message, max_text_bytes);
  wire(m.hint, max_text_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Sampling> m) {
  wire(m.temperature);
  wire(m.top_p);
  wire(m.top_k);
  wire(m.min_p);
  wire(m.presence_penalty);
  wire(m.frequency_penalty);
  wire(m.seed);
  wire(m.logprobs);
  wire(m.logit_bias, max_tokens);
  wire(m.forbidden, max_tokens);
  wire(m.generated, max_tokens);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Scoring> m) {
  wire(m.targets, max_tokens);
  wire(m.top);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<StepSequence> m) {
  wire(m.sequence);
  wire(m.position);
  wire(m.count);
  wire(m.tokens, max_tokens);
  wire(m.blocks, max_tokens);
  wire(m.sampling);
  wire(m.scoring);
  wire(m.stages);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Step> m) {
  wire(m.step);
  wire(m.route);
  wire(m.sequences, max_sequences);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TokenLogprob> m) {
  wire(m.token);
  wire(m.logprob);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<SampledToken> m) {
  wire(m.sequence);
  wire(m.token);
  wire(m.logprob);
  wire(m.top, max_tokens);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TokenScore> m) {
  wire(m.logprob);
  wire(m.top, max_tokens);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<SequenceScores> m) {
  wire(m.sequence);
  wire(m.scores, max_tokens);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<StepResult> m) {
  wire(m.step);
  wire(m.compute_s);
  wire(m.wait_s);
  wire(m.stage_wait_s);
  wire(m.tokens, max_sequences);
  wire(m.scores, max_sequences);
}

template <class Wire>
static void fields(Wire&, typename Wire::template Ref<Stop>) {}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Activity> m) {
  wire(m.epoch);
  wire(m.step);
  enumerator(wire, m.doing, Doing::meeting);
  wire(m.peer);
  wire(m.for_s);
  wire(m.processor_s);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Alive> m) {
  wire(m.activity);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<CallDriver> m) {
  wire(m.driver, max_address_bytes);
  wire(m.device, max_text_bytes);
  wire(m.start);
  wire(m.model_folder, max_text_bytes);
  wire(m.backend, max_text_bytes);
  wire(m.threads);
  wire(m.listen, max_address_bytes);
  wire(m.key, max_text_bytes);
  wire(m.certificate, max_text_bytes);
  wire(m.private_key, max_text_bytes);
  wire(m.authority, max_text_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TrainLaunch> m) {
  wire(m.plan_json, max_plan_bytes);
  wire(m.updates);
  wire(m.workers, max_peers);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<Listening> m) {
  wire(m.address, max_address_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TrainReady> m) {
  wire(m.weight_bytes);
  wire(m.gradient_bytes);
  wire(m.optimizer_bytes);
  wire(m.load_s);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TrainStep> m) {
  wire(m.step);
  enumerator(wire, m.wanted, TrainStep::Wanted::loss);
  wire(m.learning_rate);
  wire(m.tokens);
  wire(m.sequences);
  wire(m.inputs, max_tokens);
  wire(m.targets, max_tokens);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TrainPass> m) {
  wire(m.micro_batch);
  enumerator(wire, m.way, TrainPass::Way::backward);
  wire(m.start_s);
  wire(m.end_s);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TrainStepDone> m) {
  wire(m.step);
  wire(m.loss);
  wire(m.grad_norm);
  enumerator(wire, m.update, TrainStepDone::Update::done);
  wire(m.busy_s);
  wire(m.exchange_s);
  wire(m.update_s);
  wire(m.compute_s);
  wire(m.activation_bytes);
  wire(m.passes, max_passes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TrainSave> m) {
  wire(m.folder, max_text_bytes);
  enumerator(wire, m.when, TrainSave::When::beside_steps);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TrainPart> m) {
  wire(m.name, max_text_bytes);
  wire(m.first_row);
  wire(m.end_row);
  wire(m.first_column);
  wire(m.end_column);
  wire(m.bytes, max_part_bytes);
}

template <class Wire>
static void fields(Wire& wire, typename Wire::template Ref<TrainSaved> m) {
  wire(m.seconds);
}

std::size_t stages_passed(const Step& step, std::size_t of_route) {
  std::size_t most = 0;
  for (const StepSequence& sequence : step.sequences)
    most = std::max(most, sequence.stages == 0 ? of_route : static_cast<std::size_t>(sequence.stages));
  return most;
}

std::string encode(const Message& message) { return encode_message(protocol, message); }
Message decode(std::string_view bytes) { return decode_message<Message>(protocol, bytes); }

}  // namespace motley
