// The tables of motley.plan/1, kind "serve", and what they are made into.
#include <fmt/format.h>

#include "motley/plan/format.hpp"

namespace motley {

template <>
const std::vector<EnumName<StageRole>>& enum_names<StageRole>() {
  static const std::vector<EnumName<StageRole>> names = {
      {StageRole::any, "any"}, {StageRole::prefill, "prefill"}, {StageRole::decode, "decode"}};
  return names;
}

template <>
const std::vector<EnumName<SearchStatus>>& enum_names<SearchStatus>() {
  static const std::vector<EnumName<SearchStatus>> names = {{SearchStatus::optimal, "optimal"},
                                                            {SearchStatus::gap, "gap"},
                                                            {SearchStatus::deadline, "deadline"},
                                                            {SearchStatus::heuristic, "heuristic"}};
  return names;
}

FieldDoc layers_row(std::string doc) {
  return {"layers", "list of two integers", "[first, last), 0 <= first < last", std::move(doc), true, {}, true};
}

LayerRange read_layers(const Reader& reader) {
  if (!reader.value().is_array() || reader.value().as_array().size() != 2)
    reader.expected("two layer numbers", "write [first, last), as in \"layers\": [0, 20] for the first twenty");
  const auto& pair = reader.value().as_array();
  const LayerRange range{binding::read_integer(reader.item(0, pair[0]), {.min = 0}),
                         binding::read_integer(reader.item(1, pair[1]), {.min = 0})};
  return range;
}

Value write_layers(const LayerRange& range) { return Value::array({range.first, range.end}); }

template <>
const Schema<StepLimits>& schema<StepLimits>() {
  using S = StepLimits;
  static const auto table =
      Schema<S>("step", "What one step may hold: sizes of the engine's buffers and KV blocks.")
          .field("max_tokens", &S::max_tokens, "Tokens of a micro-batch, prompt chunks and decodes together.",
                 {.always_written = true, .min = 1, .max = 1 << 20})
          .field("max_sequences", &S::max_sequences, "Sequences of a micro-batch.",
                 {.always_written = true, .min = 1, .max = 1 << 20})
          .field("block_tokens", &S::block_tokens, "Tokens of a KV block.",
                 {.always_written = true, .min = 1, .max = 1 << 16});
  return table;
}

template <>
const Schema<Stage>& schema<Stage>() {
  using S = Stage;
  constexpr Limits written{.always_written = true};
  static const auto table =
      Schema<S>("stage", "A contiguous range of layers held by a tensor-parallel group of devices.")
          .field("id", &S::id, "Unique.", {.required = true})
          .field("role", &S::role, "What it does. Default: `any`.", written)
          .custom<LayerRange>(layers_row("Transformer blocks it holds."), &S::layers, read_layers, write_layers)
          .field("devices", &S::devices, "One tensor-parallel rank each, in order. A device belongs to one stage.",
                 {.required = true})
          .field("shares", &S::shares, "Of the ranks; they sum to 1. Default: equal.")
          .field("embedding", &S::embedding, "Holds the embedding: the first stage of a route. Default: false.",
                 written)
          .field("head", &S::head, "Holds the final norm and the LM head: the last stage of a route. Default: false.",
                 written)
          .field("kv_tokens", &S::kv_tokens, "Room in the KV cache: tokens per layer.", {.required = true})
          .field("weight_type", &S::weight_type, "Of the weights. Default: `bf16`.", written)
          .field("kv_type", &S::kv_type, "Of keys and values. Default: `bf16`.", written);
  return table;
}

template <>
const Schema<Hop>& schema<Hop>() {
  static const auto table = Schema<Hop>("hop", "A stage on a route.")
                                .field("stage", &Hop::stage, "Its id.", {.required = true})
                                .custom<LayerRange>(layers_row("The blocks that are computed there."), &Hop::layers,
                                                    read_layers, write_layers);
  return table;
}

template <>
const Schema<Route>& schema<Route>() {
  static const auto table =
      Schema<Route>("route", "A chain of stages that covers all layers.")
          .field("id", &Route::id, "Unique.", {.required = true})
          .field("path", &Route::path, "In order.", {.required = true})
          .field("weight", &Route::weight, "Share of the requests, relative to the other routes. Default: 1.",
                 {.always_written = true})
          .field("batch", &Route::batch, "Requests in flight that the prediction counts with. Default: 1.",
                 {.always_written = true, .min = 1, .max = 1 << 20})
          .field("micro_batches", &Route::micro_batches,
                 "Under way at once. Default: one more than it has stages, or one where it has a single stage.",
                 {.min = 0, .max = 1 << 10});
  return table;
}

template <>
const Schema<DeviceMemory>& schema<DeviceMemory>() {
  using D = DeviceMemory;
  static const auto table =
      Schema<D>("device memory", "Bytes on one device, by cause.")
          .field("weights", &D::weights, "Bytes.", {.required = true, .min = 0})
          .field("kv", &D::kv, "Bytes of the KV cache.", {.required = true, .min = 0})
          .field("activations", &D::activations, "Bytes of the step's buffers.", {.required = true, .min = 0})
          .field("reserve", &D::reserve, "Bytes kept free.", {.required = true, .min = 0})
          .field("limit", &D::limit, "Bytes that the device has.", {.required = true, .min = 0});
  return table;
}

template <>
const Schema<ServePrediction>& schema<ServePrediction>() {
  using P = ServePrediction;
  constexpr Limits figure{.always_written = true, .min = 0};
  static const auto table =
      Schema<P>("predicted", "What the planner expects under the workload.")
          .field("tokens_per_s", &P::tokens_per_s, "Output tokens of all routes, each with its `batch` in flight.",
                 figure)
          .field("requests_per_s", &P::requests_per_s, "Of all routes.", figure)
          .field("latency_s", &P::latency_s, "Seconds of one request of mean lengths, at those batches.", figure)
          .field("bottleneck_s", &P::bottleneck_s, "Busy seconds per request of the busiest stage.", figure)
          .field("slo_attainment", &P::slo_attainment, "Share of the requests that meet their deadline.",
                 {.min = 0, .max = 1})
          .field("memory_bytes", &P::memory_bytes, "By device.", {.always_written = true});
  return table;
}

template <>
const Schema<UnusedDevice>& schema<UnusedDevice>() {
  static const auto table = Schema<UnusedDevice>("unused", "A device that stays idle.")
                                .field("device", &UnusedDevice::device, "Its name.", {.required = true})
                                .field("reason", &UnusedDevice::reason, "Why.", {.always_written = true});
  return table;
}

template <>
const Schema<SearchRecord>& schema<SearchRecord>() {
  using S = SearchRecord;
  constexpr Limits written{.always_written = true};
  static const auto table =
      Schema<S>("search", "How the plan was found.")
          .field("planner", &S::planner, "Its name.", written)
          .field("objective", &S::objective, "What it was to be best at.", written)
          .field("cost", &S::cost, "The form of the cost.", written)
          .field("seed", &S::seed, "Of the random numbers.", written)
          .field("status", &S::status, "Default: `heuristic`.", written)
          .field("bound", &S::bound, "Of the objective: no plan is better.")
          .field("gap", &S::gap, "(bound - value) / bound.")
          .field("elapsed_s", &S::elapsed_s, "Wall-clock seconds.", {.always_written = true, .min = 0})
          .field("evaluated", &S::evaluated, "Candidates.", {.always_written = true, .min = 0});
  return table;
}

template <>
const Schema<ModelDocument>& schema<ModelDocument>() {
  static const auto table =
      Schema<ModelDocument>("model", "The model that is served.")
          .field("name", &ModelDocument::name, "Shown in reports.", {.required = true})
          .field("config", &ModelDocument::config, "The model's config.json.", {.required = true});
  return table;
}

FieldDoc description_row(const std::string& kind) {
  return {kind, fmt::format("[`motley.{0}/1`]({0}.md)", kind),
          "",   "The description that the plan was made from, whole.",
          true, {}};
}
FieldDoc optional_description_row(const std::string& kind) {
  FieldDoc row = description_row(kind);
  row.required = false;
  return row;
}

void expect_kind(const Reader& reader, const std::string& kind) {
  const Value* said = reader.value().find("kind");
  if (!said || (said->is_string() && said->as_string() == kind)) return;
  reader.member("kind", *said)
      .fail(said->is_string() ? fmt::format("this is a plan of kind \"{}\", not \"{}\"", said->as_string(), kind)
                              : fmt::format("expected a string, found {}", said->type_name()),
            fmt::format("make one with `motley plan {}`", kind));
}

template <>
const Schema<ServeDocument>& schema<ServeDocument>() {
  using D = ServeDocument;
  static const auto table =
      plan_head(Schema<D>("plan", "A serving plan, with the descriptions it was made from."), "serve",
                "What is served.")
          .field("step", &D::step, "Sizes of the engine's buffers.", {.always_written = true})
          .field("stages", &D::stages, "All stages of all routes.", {.required = true})
          .field("routes", &D::routes, "How requests pass through the stages.", {.required = true})
          .field("predicted", &D::predicted, "What the planner expects.", {.always_written = true})
          .field("unused", &D::unused, "Devices that stay idle.", {.always_written = true})
          .field("search", &D::search, "How the plan was found.", {.always_written = true});
  return table;
}

Value write_plan(const ServePlan& plan) {
  return write(ServeDocument{"serve",
                             {plan.model.name, plan.model.config},
                             plan.cluster.description,
                             plan.workload,
                             plan.profile,
                             plan.step,
                             plan.stages,
                             plan.routes,
                             plan.predicted,
                             plan.unused,
                             plan.search});
}

namespace {

// A plan needs nothing beside it: what a workload takes from a trace must already be in it.
void check_lengths(const Workload& workload, const Reader& reader) {
  for (const auto& described : workload.classes)
    if (described.prompt_tokens.mean == 0 || described.output_tokens.mean == 0)
      reader.fail(fmt::format("workload: class \"{}\" has no mean lengths", described.name),
                  "a plan does not read traces: give `mean` beside `trace`");
}

}  // namespace

std::string plan_kind(const Value& document) {
  const Value* kind = document.find("kind");
  return kind && kind->is_string() ? kind->as_string() : "";
}

ServePlan read_plan(const Value& value, std::string source) {
  const Reader reader(value, source);
  expect_kind(reader, "serve");
  auto document = schema<ServeDocument>().read(reader);
  check_lengths(document.workload, reader);
  ServePlan plan;
  take_head(plan, document, value, source);
  plan.step = document.step;
  plan.stages = std::move(document.stages);
  plan.routes = std::move(document.routes);
  plan.predicted = std::move(document.predicted);
  plan.unused = std::move(document.unused);
  plan.search = std::move(document.search);
  return plan;
}

ServePlan read_plan_file(const std::filesystem::path& path) { return read_plan(read_document(path), path.string()); }

}  // namespace motley
