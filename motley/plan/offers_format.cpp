// The tables of motley.offers/1.
#include <fmt/format.h>

#include <cmath>

#include "motley/base/error.hpp"
#include "motley/plan/offers.hpp"

namespace motley {

Schema<OfferClass> schema_of(Bound<OfferClass>) {
  using C = OfferClass;
  return Schema<C>("class", "A kind of request.")
      .field("name", &C::name, "Unique.", {.required = true})
      .field("model", &C::model,
             "Model of the requests; only its configurations serve them. Default: one model for all.")
      .field("demand_per_s", &C::demand_per_s, "Requests per second, carried as given, without added headroom.",
             {.min = 0})
      .field("share", &C::share, "Share of all requests (of all models), where no demand is given; shares sum to 1.",
             {.min = 0, .max = 1});
}

Schema<OfferType> schema_of(Bound<OfferType>) {
  using T = OfferType;
  return Schema<T>("type", "A kind of device that can be rented. A price is needed, in either form.")
      .field("price_usd_per_hour", &T::usd_per_hour, "Price of one device.", {.always_written = true, .min = 0})
      .custom<double>(
          {"price",
           "quantity: " + accepted_units(Dimension::usd_per_hour),
           "",
           "The same with its unit: `0.53 $/h`.",
           false,
           {}},
          &T::usd_per_hour,
          [](const Reader& reader) { return binding::read_quantity(reader, Dimension::usd_per_hour, {.min = 0}); },
          [](const double&) { return Value(); })
      .field("available", &T::available, "Available devices. Default: unlimited.", {.min = 0})
      .field("domain", &T::domain, "Failure domain: a zone, a region, a spot pool. Default: none.")
      .check([](const T& type, const Reader& reader) {
        const bool plain = reader.value().find("price_usd_per_hour"), united = reader.value().find("price");
        if (plain == united)
          reader.fail(plain ? "the price is given twice" : "the price is missing",
                      "give price_usd_per_hour = 0.53, or price = \"0.53 $/h\"");
        if (type.usd_per_hour == 0 && !type.available)
          reader.fail("devices without a price need `available`", "give the number of devices in `available`");
      });
}

Schema<StageLayout> schema_of(Bound<StageLayout>) {
  using S = StageLayout;
  return Schema<S>("stage layout", "A stage of the pipeline that one copy is.")
      .field("device_type", &S::device_type, "Type of all its devices.", {.required = true})
      .field("degree", &S::degree, "Devices, tensor parallel.", {.required = true, .min = 1})
      .field("layers", &S::layers, "Number of layers that it holds.", {.required = true, .min = 1});
}

Schema<Configuration> schema_of(Bound<Configuration>) {
  using C = Configuration;
  return Schema<C>("configuration", "One replica shape.")
      .field("name", &C::name, "Unique.", {.required = true})
      .field("model", &C::model, "Model that it hosts. Default: one model for all.")
      .field("devices", &C::devices, "Devices of one copy, by type.", {.required = true, .min = 1, .max = 100000})
      .field("rate_per_s", &C::rate_per_s,
             "Requests per second of one copy that serves only this class, one per class; 0: it cannot.",
             {.required = true, .min = 0})
      .field("stages", &C::stages, "Its pipeline, first to last, where the cost model made it.");
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
    fail(fmt::format("the shares of all classes sum to {:g}", shares), "make them sum to 1 over all models");
  if (!offers.classes.empty() && offers.classes[0].demand_per_s && total_demand_per_s(offers) <= 0)
    fail("the classes have no demand", "give one a demand_per_s above 0");
  std::vector<std::string> types;
  for (const auto& [name, type] : offers.types) types.push_back(name);
  for (const auto& configuration : offers.configurations) {
    if (configuration.rate_per_s.size() != offers.classes.size())
      fail(fmt::format("configuration \"{}\" has {} rates for {} classes", configuration.name,
                       configuration.rate_per_s.size(), offers.classes.size()),
           "give rate_per_s one number per class, in their order");
    if (configuration.devices.empty())
      fail(fmt::format("configuration \"{}\" has no devices", configuration.name),
           "give devices, as in devices: {\"A100\": 2}");
    for (const auto& [type, count] : configuration.devices)
      if (!offers.types.contains(type))
        fail(fmt::format("configuration \"{}\" needs \"{}\", which is not among the types", configuration.name, type),
             did_you_mean(type, types, "give its price under `types`"));
    for (std::size_t w = 0; w < offers.classes.size(); ++w)
      if (configuration.rate_per_s[w] > 0 && configuration.model != offers.classes[w].model)
        fail(fmt::format("configuration \"{}\" hosts model \"{}\" and has a rate for class \"{}\" of model \"{}\"",
                         configuration.name, configuration.model, offers.classes[w].name, offers.classes[w].model),
             "set the rates of other models' classes to 0");
  }
}

}  // namespace

void check_offers(const Offers& offers, const std::string& source) {
  check(offers, [&](std::string what, std::string hint) {
    throw input_error(source.empty() ? std::move(what) : source + ": " + what, std::move(hint));
  });
}

Schema<Offers> schema_of(Bound<Offers>) {
  using O = Offers;
  return Schema<O>("offers", "What can be rented, and how fast each replica shape serves each class of requests.")
      .format("motley.offers/1")
      .field("classes", &O::classes, "Kinds of requests. Left out with `configurations`: the workload's.")
      .field("types", &O::types, "Types by name. Without configurations: names of the device catalogue.",
             {.required = true})
      .field("configurations", &O::configurations, "Replica shapes. Default: made from the model by the cost model.")
      .field("utilisation", &O::utilisation, "Share of its rates that a copy is planned with. Default: 1.",
             {.above = 0, .max = 1})
      .field("network", &O::network, "Network between the machines of a copy. Default: 0.2 ms, 10 Gbit/s.")
      .check([](const O& offers, const Reader& reader) {
        check(offers, [&](std::string what, std::string hint) { reader.fail(std::move(what), std::move(hint)); });
      });
}

Offers read_offers(const std::filesystem::path& path) { return read<Offers>(read_document(path), path.string()); }

}  // namespace motley
