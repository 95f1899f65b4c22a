// The tables of motley.offers/1 and of motley.plan/1, kind "rent".
#include <fmt/format.h>

#include "motley/base/hints.hpp"
#include "motley/plan/rent.hpp"

namespace motley {

template <>
const std::vector<EnumName<RentForm>>& enum_names<RentForm>() {
  static const std::vector<EnumName<RentForm>> names = {{RentForm::budget, "budget"}, {RentForm::cheapest, "cheapest"}};
  return names;
}

template <>
const Schema<OfferClass>& schema<OfferClass>() {
  using C = OfferClass;
  static const auto table =
      Schema<C>("class", "A kind of request.")
          .field("name", &C::name, "Unique.", {.required = true})
          .field("model", &C::model, "Whose requests; only its configurations serve them. Default: one model for all.")
          .field("demand_per_s", &C::demand_per_s, "Requests per second, carried as given, without added headroom.",
                 {.min = 0})
          .field("share", &C::share, "Of all requests (of all models), where no demand is given; shares sum to 1.",
                 {.min = 0, .max = 1});
  return table;
}

template <>
const Schema<OfferType>& schema<OfferType>() {
  using T = OfferType;
  static const auto table =
      Schema<T>("type", "A kind of device that can be rented. A price is needed, in either form.")
          .field("price_usd_per_hour", &T::usd_per_hour, "Of one device.", {.always_written = true, .min = 0})
          .custom<double>(
              {"price",
               "quantity: " + accepted_units(Dimension::usd_per_hour),
               "",
               "The same, for people: `0.53 $/h`.",
               false,
               {}},
              &T::usd_per_hour,
              [](const Reader& reader) { return binding::read_quantity(reader, Dimension::usd_per_hour, {.min = 0}); },
              [](const double&) { return Value(); })
          .field("available", &T::available, "Devices to be had. Default: as many as one likes.", {.min = 0})
          .field("domain", &T::domain, "What fails together: a zone, a region, a spot pool. Default: none.")
          .check([](const T& type, const Reader& reader) {
            const bool plain = reader.value().find("price_usd_per_hour"), united = reader.value().find("price");
            if (plain == united)
              reader.fail(plain ? "the price is given twice" : "the price is missing",
                          "give price_usd_per_hour = 0.53, or price = \"0.53 $/h\"");
            if (type.usd_per_hour == 0 && !type.available)
              reader.fail("devices without a price need `available`", "how many are there?");
          });
  return table;
}

template <>
const Schema<StageLayout>& schema<StageLayout>() {
  using S = StageLayout;
  static const auto table = Schema<S>("stage layout", "A stage of the pipeline that one copy is.")
                                .field("device_type", &S::device_type, "Of all its devices.", {.required = true})
                                .field("degree", &S::degree, "Devices, tensor parallel.", {.required = true, .min = 1})
                                .field("layers", &S::layers, "How many it holds.", {.required = true, .min = 1});
  return table;
}

template <>
const Schema<Configuration>& schema<Configuration>() {
  using C = Configuration;
  static const auto table =
      Schema<C>("configuration", "One replica shape.")
          .field("name", &C::name, "Unique.", {.required = true})
          .field("model", &C::model, "What it hosts. Default: one model for all.")
          .field("devices", &C::devices, "Of one copy, by type.", {.required = true, .min = 1, .max = 100000})
          .field("rate_per_s", &C::rate_per_s,
                 "Requests per second of one copy that serves only this class, one per class; 0: it cannot.",
                 {.required = true, .min = 0})
          .field("stages", &C::stages, "Its pipeline, first to last, where the cost model made it.");
  return table;
}

namespace {

void check(const Offers& offers, const std::function<void(std::string, std::string)>& fail) {
  const auto unique = [&](const auto& list, std::string_view what) {
    std::map<std::string, int> seen;
    for (const auto& item : list)
      if (seen[item.name]++ > 0) fail(fmt::format("{} \"{}\" is given twice", what, item.name), "give unique names");
  };
  unique(offers.classes, "class");
  unique(offers.configurations, "configuration");
  double shares = 0;
  for (const auto& one : offers.classes) {
    if (one.demand_per_s.has_value() == one.share.has_value())
      fail(fmt::format("class \"{}\" needs a demand or a share, not {}", one.name, one.share ? "both" : "nothing"),
           "give demand_per_s (requests/s), or share (of all requests)");
    if (one.share.has_value() != offers.classes[0].share.has_value())
      fail("some classes have a demand and some a share", "give all classes the same");
    shares += one.share.value_or(0);
  }
  if (!offers.classes.empty() && offers.classes[0].share && std::abs(shares - 1) > 1e-6)
    fail(fmt::format("the shares of all classes sum to {:g}", shares), "they must sum to 1, over all models together");
  if (!offers.classes.empty() && offers.classes[0].demand_per_s && total_demand_per_s(offers) <= 0)
    fail("no class has any demand", "give one a demand_per_s above 0");
  std::vector<std::string> types;
  for (const auto& [name, type] : offers.types) types.push_back(name);
  for (const auto& configuration : offers.configurations) {
    if (configuration.rate_per_s.size() != offers.classes.size())
      fail(fmt::format("configuration \"{}\" has {} rates for {} classes", configuration.name,
                       configuration.rate_per_s.size(), offers.classes.size()),
           "rate_per_s has one number per class, in their order");
    if (configuration.devices.empty())
      fail(fmt::format("configuration \"{}\" has no devices", configuration.name), "such as devices: {\"A100\": 2}");
    for (const auto& [type, count] : configuration.devices)
      if (!offers.types.contains(type))
        fail(fmt::format("configuration \"{}\" needs \"{}\", which is not among the types", configuration.name, type),
             did_you_mean(type, types, "give its price under `types`"));
    for (std::size_t w = 0; w < offers.classes.size(); ++w)
      if (configuration.rate_per_s[w] > 0 && configuration.model != offers.classes[w].model)
        fail(fmt::format("configuration \"{}\" hosts model \"{}\" and has a rate for class \"{}\" of model \"{}\"",
                         configuration.name, configuration.model, offers.classes[w].name, offers.classes[w].model),
             "rates of other models' classes are 0");
  }
}

}  // namespace

void check_offers(const Offers& offers, const std::string& source) {
  check(offers, [&](std::string what, std::string hint) {
    throw input_error(source.empty() ? std::move(what) : source + ": " + what, std::move(hint));
  });
}

template <>
const Schema<Offers>& schema<Offers>() {
  using O = Offers;
  static const auto table =
      Schema<O>("offers", "What can be rented, and how fast each replica shape serves each class of requests.")
          .format("motley.offers/1")
          .field("classes", &O::classes, "Kinds of requests. Left out with `configurations`: the workload's.")
          .field("types", &O::types, "By name. Without configurations: names of the device catalogue.",
                 {.required = true})
          .field("configurations", &O::configurations, "Left out: made from the model by the cost model.")
          .field("utilisation", &O::utilisation, "Share of its rates that a copy is planned with. Default: 1.",
                 {.above = 0, .max = 1})
          .field("network", &O::network, "Between the machines of a copy. Default: 0.2 ms, 10 Gbit/s.")
          .check([](const O& offers, const Reader& reader) {
            check(offers, [&](std::string what, std::string hint) { reader.fail(std::move(what), std::move(hint)); });
          });
  return table;
}

template <>
const Schema<RentGoal>& schema<RentGoal>() {
  using G = RentGoal;
  static const auto table =
      Schema<G>("goal", "What was asked.")
          .field("form", &G::form, "The greatest throughput for a budget, or the least money for the demand.",
                 {.required = true})
          .field("budget_usd_per_hour", &G::budget_usd_per_hour, "Form `budget`.", {.min = 0})
          .field("survive", &G::survive, "Share of the throughput that is left when any one domain is lost.",
                 {.min = 0, .max = 1})
          .field("startup_share", &G::startup_share,
                 "What a copy costs at its start, as a share of its price until the next planning.", {.min = 0})
          .field("current", &G::current, "Copies that run already, by configuration: these start free.", {.min = 0});
  return table;
}

template <>
const Schema<RentedConfiguration>& schema<RentedConfiguration>() {
  using R = RentedConfiguration;
  static const auto table = Schema<R>("rented", "Copies of one configuration.")
                                .field("configuration", &R::configuration, "Its name.", {.required = true})
                                .field("devices", &R::devices, "Of one copy, by type.", {.required = true, .min = 1})
                                .field("copies", &R::copies, "How many.", {.required = true, .min = 1})
                                .field("usd_per_hour", &R::usd_per_hour, "Of one copy.", {.required = true, .min = 0});
  return table;
}

template <>
const Schema<HomogeneousFleet>& schema<HomogeneousFleet>() {
  using H = HomogeneousFleet;
  static const auto table =
      Schema<H>("homogeneous", "The best fleet of one type alone: requests/s in the form `budget`, $/h in `cheapest`.")
          .field("type", &H::type, "Of all its devices.", {.required = true})
          .field("limited", &H::limited, "With what is available. Left out: it cannot do it.", {.min = 0})
          .field("unlimited", &H::unlimited, "With as many as one likes. Left out: it cannot do it.", {.min = 0});
  return table;
}

template <>
const Schema<ClassExplanation>& schema<ClassExplanation>() {
  using C = ClassExplanation;
  static const auto table =
      Schema<C>("class explanation", "What more requests of a class would take, by the prices of the relaxation.")
          .field("usd_per_1000_requests", &C::usd_per_1000_requests, "The price of 1000 more.",
                 {.always_written = true})
          .field("scarcity_share", &C::scarcity_share, "Of that price, for devices of which none is left.",
                 {.always_written = true})
          .field("binding", &C::binding, "What keeps the class from more.", {.always_written = true});
  return table;
}

template <>
const Schema<SlowerCase>& schema<SlowerCase>() {
  using S = SlowerCase;
  static const auto table = Schema<S>("slower", "The same fleet where devices are slower than planned with.")
                                .field("type", &S::type, "Which. Left out: all.")
                                .field("factor", &S::factor, "How many times slower.", {.required = true})
                                .field("throughput_per_s", &S::throughput_per_s,
                                       "What the fleet then carries, with requests routed again.", {.required = true})
                                .field("replanned_usd_per_hour", &S::replanned_usd_per_hour,
                                       "Form `cheapest`: what the demand then costs. Left out: it cannot be carried.");
  return table;
}

template <>
const Schema<RentPrediction>& schema<RentPrediction>() {
  using P = RentPrediction;
  constexpr Limits figure{.always_written = true, .min = 0};
  static const auto table =
      Schema<P>("predicted", "What the planner expects.")
          .field("throughput_per_s", &P::throughput_per_s, "Requests of the whole mix that the fleet carries.", figure)
          .field("cost_usd_per_hour", &P::cost_usd_per_hour, "Of the fleet.", figure)
          .field("headroom", &P::headroom, "Throughput as a multiple of the demand.", {.min = 0})
          .field("startup_usd_per_hour", &P::startup_usd_per_hour, "Of copies that are new.", {.min = 0})
          .field("shadow_price_usd_per_hour", &P::shadow_price_usd_per_hour,
                 "What one more device of a type is worth, beyond its price.", {.always_written = true})
          .field("homogeneous", &P::homogeneous, "The best fleets of one type.", {.always_written = true})
          .field("classes", &P::classes, "What binds each class.", {.always_written = true})
          .field("slower", &P::slower, "What slower devices would do.", {.always_written = true});
  return table;
}

template <>
const Schema<RentPlan>& schema<RentPlan>() {
  using P = RentPlan;
  constexpr Limits written{.always_written = true};
  static const auto table =
      Schema<P>("rent plan", "What to rent, and which requests go where.")
          .format("motley.plan/1")
          .field("kind", &P::kind, "`rent`.", {.required = true})
          .field("model", &P::model, "What is served, where the cost model made the configurations.")
          .custom<std::optional<Workload>>(
              {"workload", "[`motley.workload/1`](workload.md)", "", "What is asked, likewise.", false, {}},
              &P::workload, [](const Reader& reader) { return schema<Workload>().read(reader); },
              [](const std::optional<Workload>& workload) { return workload ? write(*workload) : Value(); })
          .custom<Offers>(
              {"offers", "[`motley.offers/1`](offers.md)", "", "What could be rented, whole.", true, {}, true},
              &P::offers, [](const Reader& reader) { return schema<Offers>().read(reader); },
              [](const Offers& offers) { return write(offers); })
          .field("goal", &P::goal, "What was asked.", {.required = true})
          .field("fleet", &P::fleet, "What to rent.", {.required = true})
          .field("assignment", &P::assignment, "Share of every class that goes to each configuration.",
                 {.required = true, .min = 0, .max = 1})
          .field("fallback", &P::fallback, "The same when a domain is lost, by domain.", {.min = 0, .max = 1})
          .field("predicted", &P::predicted, "What the planner expects.", written)
          .field("search", &P::search, "How the plan was found.", written);
  return table;
}

Value write_rent_plan(const RentPlan& plan) { return write(plan); }

RentPlan read_rent_plan(const Value& value, std::string source) {
  const Reader reader(value, std::move(source));
  if (const std::string kind = plan_kind(value); !kind.empty() && kind != "rent")
    reader.fail(fmt::format("this is a plan of kind \"{}\", not \"rent\"", kind), "make one with `motley plan rent`");
  RentPlan plan = schema<RentPlan>().read(reader);
  if (plan.offers.configurations.empty())
    reader.fail("the plan's offers have no configurations",
                "a plan keeps the offers that it was made of: make it again with `motley plan rent`");
  return plan;
}

Offers read_offers(const std::filesystem::path& path) { return read<Offers>(read_document(path), path.string()); }

}  // namespace motley
