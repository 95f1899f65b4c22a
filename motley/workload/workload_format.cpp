// The tables of motley.workload/1.
#include <fmt/format.h>

#include <algorithm>

#include "motley/workload/workload.hpp"

namespace motley {

EnumNames<Executor> names_of(Bound<Executor>) { return {{Executor::motley, "motley"}, {Executor::fsdp, "fsdp"}}; }

EnumNames<RateSchedule> names_of(Bound<RateSchedule>) {
  return {{RateSchedule::constant, "constant"}, {RateSchedule::cosine, "cosine"}, {RateSchedule::linear, "linear"}};
}

EnumNames<ArrivalProcess> names_of(Bound<ArrivalProcess>) {
  return {{ArrivalProcess::constant, "constant"},
          {ArrivalProcess::poisson, "poisson"},
          {ArrivalProcess::gamma, "gamma"},
          {ArrivalProcess::trace, "trace"}};
}

Schema<Length> schema_of(Bound<Length>) {
  return Schema<Length>("length", "A distribution of token counts: `mean`, or a `trace` that gives it.")
      .field("mean", &Length::mean, "Default: the trace's.", {.above = 0})
      .field("p50", &Length::p50, "Median. Default: the trace's, else not known.", {.min = 1})
      .field("p99", &Length::p99, "99th percentile. Default: the trace's, else not known.", {.min = 1})
      .field("trace", &Length::trace,
             "CSV file with a column of the key's name (`prompt_tokens` or `output_tokens`); with a `class` column, "
             "the rows of this class are used.")
      .check([](const Length& length, const Reader& reader) {
        if (length.mean == 0 && length.trace.empty())
          reader.fail("`mean` is missing", "give a mean, or a trace to take it from");
        if (length.p50 > 0 && length.p99 > 0 && length.p99 < length.p50)
          reader.fail("p99 must not be below p50", "exchange or correct the two");
      });
}

namespace {

FieldDoc length_row(std::string key, std::string doc) {
  return {std::move(key), "number, or length",
          "above 0",      std::move(doc),
          false,          {[]() -> const SchemaDoc* { return &schema<Length>().doc(); }}};
}

Length only_mean(double tokens) {
  Length length;
  length.mean = tokens;
  return length;
}

Length read_length(const Reader& reader) {
  if (reader.value().is_object()) return schema<Length>().read(reader);
  if (!reader.value().is_number())
    reader.expected("a number of tokens or a table",
                    "write 512, or { mean = 512, p99 = 2000 }, or { trace = \"file.csv\" }");
  return only_mean(binding::read_number(reader, {.above = 0}));
}

Value write_length(const Length& length) {
  return length == only_mean(length.mean) ? Value(length.mean) : write(length);
}

}  // namespace

Schema<Deadline> schema_of(Bound<Deadline>) {
  return Schema<Deadline>("deadline", "When a request must be answered; each key is optional.")
      .quantity("first_token", &Deadline::first_token_s, Dimension::seconds, "From arrival to the first token.",
                {.above = 0})
      .quantity("per_token", &Deadline::per_token_s, Dimension::seconds, "Mean time of the tokens after the first.",
                {.above = 0})
      .quantity("total", &Deadline::total_s, Dimension::seconds, "From arrival to the last token.", {.above = 0});
}

Schema<RequestClass> schema_of(Bound<RequestClass>) {
  using R = RequestClass;
  return Schema<R>("class", "A kind of request.")
      .field("name", &R::name, "Unique.", {.required = true})
      .quantity("rate", &R::rate_per_s, Dimension::per_s, "Requests per time. All classes give one, or none does.",
                {.above = 0})
      .custom<Length>(length_row("prompt_tokens", "Required unless arrivals come from a trace."), &R::prompt_tokens,
                      read_length, write_length)
      .custom<Length>(length_row("output_tokens", "Required unless arrivals come from a trace."), &R::output_tokens,
                      read_length, write_length)
      .field("cached_share", &R::cached_share,
             "Share of a prompt's tokens with which earlier requests of the class begin, too, such as instructions or "
             "what was said before. They are not computed where they are there. Default: 0.",
             {.min = 0, .max = 0.99})
      .field("deadline", &R::deadline, "Default: none.");
}

Schema<Arrival> schema_of(Bound<Arrival>) {
  return Schema<Arrival>("arrival", "How requests arrive.")
      .field("process", &Arrival::process, "Default: `poisson`.", {.always_written = true})
      .field("cv", &Arrival::cv, "`gamma` only: coefficient of variation of the times between arrivals. Default: 1.",
             {.above = 0})
      .field("file", &Arrival::file,
             "`trace` only: CSV with the columns arrival_s, prompt_tokens, output_tokens and, where there are several "
             "classes, class.")
      .check([](const Arrival& arrival, const Reader& reader) {
        if (arrival.process == ArrivalProcess::trace && arrival.file.empty())
          reader.fail("`file` is missing", "process = \"trace\" needs file = \"x.csv\"");
        if (arrival.process != ArrivalProcess::trace && !arrival.file.empty())
          reader.fail("`file` is for process = \"trace\"", "set process = \"trace\", or remove `file`");
        if (arrival.process != ArrivalProcess::gamma && arrival.cv != 1)
          reader.fail("`cv` is for process = \"gamma\"", "set process = \"gamma\", or remove `cv`");
      });
}

Schema<StateBytes> schema_of(Bound<StateBytes>) {
  return Schema<StateBytes>("states", "Bytes per parameter.")
      .field("weight", &StateBytes::weight, "Default 2.", {.min = 0})
      .field("gradient", &StateBytes::gradient, "Default 2.", {.min = 0})
      .field("master", &StateBytes::master, "The fp32 copy. Default 4.", {.min = 0})
      .field("moments", &StateBytes::moments, "Of the optimizer. Default 8.", {.min = 0});
}

Schema<Training> schema_of(Bound<Training>) {
  using T = Training;
  const auto choice = [](std::string key, std::vector<std::string> names, std::string doc) {
    return std::pair(
        FieldDoc{std::move(key), fmt::format("`{}`", fmt::join(names, "`, `")), "", std::move(doc), false, {}},
        [names](const Reader& reader) { return binding::read_choice(reader, names); });
  };
  return [&] {
    std::vector<std::string> types;
    for (const DType type : dtypes_with(Support::planned, Use::values)) types.emplace_back(name_of(type));
    auto [precision, read_precision] = choice("precision", types, "Of the parameters. Default: `bf16`.");
    auto [optimizer, read_optimizer] = choice("optimizer", {"adam", "adamw", "sgd"}, "Default: `adam`.");
    return Schema<T>("training", "A training job.")
        .field("sequence_length", &T::sequence_length, "Tokens of a sequence.", {.required = true, .min = 1})
        .field("global_batch", &T::global_batch, "Sequences per step.", {.required = true, .min = 1})
        .field("micro_batch", &T::micro_batch, "Sequences; omitted: the planner chooses.", {.min = 1})
        .custom<DType>(
            precision, &T::precision,
            [read_precision](const Reader& reader) { return find_dtype(read_precision(reader))->type; },
            binding::write_any<DType>)
        .field("states", &T::states, "Bytes per parameter if not the default.")
        .custom<std::string>(optimizer, &T::optimizer, read_optimizer, binding::write_any<std::string>)
        .field("executor", &T::executor, "What runs the plan; its constants are part of the price. Default: `motley`.")
        .field("learning_rate", &T::learning_rate, "After the warm-up. Default: 0.001.", {.min = 0})
        .field("schedule", &T::schedule, "What the learning rate does after the warm-up. Default: `constant`.")
        .field("warmup_steps", &T::warmup_steps, "Steps in which the learning rate rises to its value. Default: 0.",
               {.min = 0})
        .field("min_learning_rate", &T::min_learning_rate, "To which `cosine` and `linear` come down. Default: 0.",
               {.min = 0})
        .field("total_steps", &T::total_steps,
               "Step at which `cosine` and `linear` have come down. Default: the first run's `--steps`.", {.min = 1})
        .field("betas", &T::betas, "`adam` and `adamw`: decay of the two moments. Default: [0.9, 0.999].", {.min = 0})
        .field("eps", &T::eps, "`adam` and `adamw`: added to the root of the second moment. Default: 1e-8.",
               {.above = 0})
        .field("weight_decay", &T::weight_decay, "Decoupled; norms and biases have none. Default: 0.01.", {.min = 0})
        .field("momentum", &T::momentum, "`sgd` only. Default: 0.", {.min = 0, .max = 1})
        .field("clip_norm", &T::clip_norm, "Largest norm of all gradients together; 0 is any. Default: 0.", {.min = 0})
        .check([](const T& training, const Reader& reader) {
          if (training.micro_batch > training.global_batch)
            reader.fail("micro_batch must not be larger than global_batch",
                        "reduce micro_batch or increase global_batch");
          const auto is_decay = [](double beta) { return beta >= 0 && beta < 1; };
          if (training.betas.size() != 2 || !std::ranges::all_of(training.betas, is_decay))
            reader.fail("betas must be two numbers from 0 to below 1", "write betas = [0.9, 0.999]");
          if (training.momentum > 0 && training.optimizer != "sgd")
            reader.fail("`momentum` is for optimizer = \"sgd\"", "set optimizer = \"sgd\", or remove `momentum`");
        });
  }();
}

namespace {

void check_classes(const Workload& workload, const Reader& reader) {
  const bool traced = workload.arrival.process == ArrivalProcess::trace;
  if (workload.classes.empty() && !workload.training && !traced)
    reader.fail("[[class]] or [training] is missing",
                "add a [[class]] with name, prompt_tokens and output_tokens, or [training]");
  const Value* list = reader.value().find("class");
  for (std::size_t i = 0; i < workload.classes.size(); ++i) {
    const RequestClass& described = workload.classes[i];
    const Reader place = reader.member("class", *list).item(i, list->as_array()[i]);
    for (std::size_t j = 0; j < i; ++j)
      if (workload.classes[j].name == described.name)
        place.fail(fmt::format("class \"{}\" is described twice", described.name), "give unique names");
    if (!traced && described.prompt_tokens == Length{})
      place.fail("`prompt_tokens` is missing", "give it, as in prompt_tokens = 512");
    if (!traced && described.output_tokens == Length{})
      place.fail("`output_tokens` is missing", "give it, as in output_tokens = 128");
    if ((described.rate_per_s > 0) != (workload.classes[0].rate_per_s > 0))
      place.fail(fmt::format("class \"{}\" {} a rate and class \"{}\" {}", workload.classes[0].name,
                             workload.classes[0].rate_per_s > 0 ? "has" : "lacks", described.name,
                             described.rate_per_s > 0 ? "has" : "lacks"),
                 "give every class a rate, or none");
  }
}

}  // namespace

Schema<Workload> schema_of(Bound<Workload>) {
  using W = Workload;
  return Schema<W>("workload", "The load: request classes, their arrivals and deadlines; or a training job.")
      .format("motley.workload/1")
      .field("class", &W::classes, "Serving: one entry per kind of request.")
      .field("arrival", &W::arrival, "Default: a Poisson process.")
      .field("training", &W::training, "Training.")
      .check(check_classes);
}

}  // namespace motley
