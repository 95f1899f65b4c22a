// The seam between cost forms and those who use them: pricing a plan, and the tables of the planner.
//
// A form prices a pipeline stage by stage. Time is a sum over the layers of a stage, so five functions say everything:
// one block of each kind, what a stage adds by its place in the chain, the hop to the next stage, the way of a token
// back, and the memory. Of a stage that offloads it is not, so such a stage has a function of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/cluster/profile.hpp"
#include "motley/cost/form/group.hpp"
#include "motley/cost/form/term.hpp"
#include "motley/model/offload.hpp"

namespace motley {

struct CostOptions {
  std::string form = "motley";                  // or hexgen
  std::map<std::string, double> settings = {};  // the form's own constants, "hexgen.batch"
  std::vector<RoutingGamma> gamma = {};         // of the model's experts; empty: not counted
};
// With what a profile has of the experts of the model of this name.
CostOptions with_gamma(CostOptions options, const Profile& profile, const std::string& model);

using LayerCounts = std::vector<double>;  // by kind of layer
LayerCounts layer_counts(const Architecture& arch, const LayerRange& layers);
double sum_of_layers(const LayerCounts& layers);
// Of this many layers, wherever they lie: as of the whole model.
LayerCounts mean_layer_counts(const Architecture& arch, std::int64_t layers);

// What of a request a pipeline does: all, or its part where others prefill or decode.
enum class Phase { both, prefill, decode };

// What a pipeline is priced at.
struct ServePoint {
  double prompt_tokens = 0;  // of the mean request
  double output_tokens = 0;
  std::int64_t sequences = 1;  // in one decode step (a micro-batch)
  StepLimits step;
  Phase phase = Phase::both;  // the other costs nothing; the published forms know `both` only
  bool loaded = false;        // other requests are in flight: decode steps carry their prompts
  double chunk_tokens = 0;    // of a prompt that is alone; 0: as many as a step holds
  double cached_tokens = 0;   // of the prompt: they are there; the published forms compute them
  double computed_tokens() const { return prompt_tokens - cached_tokens; }
};

struct PhaseSeconds {
  double prefill_s = 0;
  double decode_s = 0;  // of all output tokens
  double sum() const { return prefill_s + decode_s; }
  PhaseSeconds operator+(const PhaseSeconds& o) const { return {prefill_s + o.prefill_s, decode_s + o.decode_s}; }
  PhaseSeconds operator*(double factor) const { return {prefill_s * factor, decode_s * factor}; }
};

// `latency`: what a request waits for; of a prompt in several chunks, one of them. `load_s`: how long it keeps the
// stage (or, of a hop, its sender) busy; steps that serve several sequences at once count to each by its part.
// `chunk_s`: how long one chunk of its prompt does, alone.
struct StagePrice {
  PhaseSeconds latency;
  double load_s = 0;
  double chunk_s = 0;
  StagePrice operator+(const StagePrice& o) const {
    return {latency + o.latency, load_s + o.load_s, chunk_s + o.chunk_s};
  }
  StagePrice operator*(double factor) const { return {latency * factor, load_s * factor, chunk_s * factor}; }
};

// Homes of a stage's layers, and of its micro-batches' hidden states.
struct PlacedCounts {
  TierCounts weights, kv, activations;
  bool operator==(const PlacedCounts&) const = default;
};

// How a stage offloads, as it is priced.
struct StreamedStage {
  MemoryTiers tiers;  // as much of the machine's as the stage has
  PlacedCounts counts;
  std::int64_t batches = 1;  // micro-batches that share a pass over the weights
  bool cpu_attention = false;
  LayerCounts kinds;  // of its layers
  std::int64_t layers() const { return counts.weights.total(); }
};

class ServeForm {
 public:
  virtual ~ServeForm() = default;

  virtual StagePrice block(const TensorGroup& group, std::size_t kind) const = 0;  // of this kind of layer
  virtual StagePrice ends(const TensorGroup& group, StageEnds ends) const = 0;
  // A whole stage of one device that offloads, its ends included. Throws an input error where the form does not know
  // such stages.
  virtual StagePrice streamed(const TensorGroup& group, StageEnds ends, const StreamedStage& stage) const;
  virtual StagePrice hop(const TensorGroup& from, const TensorGroup& to) const = 0;
  // Of one group to itself: nothing, unless the tokens go by a driver that is elsewhere.
  virtual PhaseSeconds token_return(const TensorGroup& last, const TensorGroup& first) const = 0;

  // The most layers that the form itself lets fit on every rank with KV room for `in_flight` requests; none: it has no
  // rule but the bytes of model/.
  virtual std::optional<std::int64_t> most_layers(const TensorGroup& group, StageEnds ends,
                                                  std::int64_t in_flight) const;

  // The latency of block and ends, of streamed and of hop as trees; their values equal the functions above.
  virtual Term explain_stage(const TensorGroup& group, StageEnds ends, const LayerCounts& layers,
                             std::string name) const = 0;
  virtual Term explain_streamed(const TensorGroup& group, StageEnds ends, const StreamedStage& stage,
                                std::string name) const;
  virtual Term explain_hop(const TensorGroup& from, const TensorGroup& to, std::string name) const = 0;

  // Chunks of a prompt that is alone; they follow one another through the pipeline.
  virtual double chunks() const = 0;

  // Published forms count a whole batch as one job that fills the pipeline with its like; motley's own counts requests.
  virtual double requests_per_job() const = 0;
  virtual bool pipeline_always_full() const = 0;
};

StagePrice price_layers(const ServeForm& form, const TensorGroup& group, const LayerCounts& layers);

// A pipeline as it is priced: its stages in order. The groups must outlive it.
struct PathStage {
  const TensorGroup* group = nullptr;
  StageEnds ends;
  LayerCounts layers = {};
  const StreamedStage* streamed = nullptr;  // none: all layers are in the devices' own memory
};
StagePrice price_stage(const ServeForm& form, const PathStage& stage);  // without the hop that it sends
struct PathPrice {
  PhaseSeconds latency;       // of a request, with one chunk of its prompt and the token's way back
  double more_chunks_s = 0;   // what the other chunks add where it is alone: the busiest stage's time for each
  std::vector<double> loads;  // busy seconds per request of every stage, with the hop it sends
  double busiest_s() const;
  double first_token_s() const { return latency.prefill_s + more_chunks_s; }
};
PathPrice price_path(const ServeForm& form, const std::vector<PathStage>& path);

// A setting of the chosen form, or its default.
double setting(const CostOptions& options, const std::string& key, double otherwise);

// What a request of the point's lengths holds of a KV cache: with its last token, in whole blocks, and on average while
// it decodes, half a block more than its tokens. What only prefills holds the prompt and the token that comes out of
// it.
struct KvTokens {
  double last = 0;
  double mean = 0;
};
KvTokens kv_tokens_each(const ServePoint& point);

// KV room of a number of requests that are each at a different token: their mean, and a margin that grows with the root
// of their number, as the deviation of a sum does; one alone has room for all it ever holds.
std::int64_t kv_tokens_of(const ServePoint& point, std::int64_t requests);
CacheRoom room_of(const ServePoint& point, std::int64_t requests);  // with a slot for each

// The inverse, before rounding: how many requests so much room is for.
double requests_in(const ServePoint& point, double kv_tokens);

}  // namespace motley
