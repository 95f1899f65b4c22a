// The tables of motley.plan/1, kind "rent".
#include "motley/plan/format.hpp"
#include "motley/plan/rent_plan.hpp"

namespace motley {

EnumNames<RentForm> names_of(Bound<RentForm>) {
  return {{RentForm::budget, "budget"}, {RentForm::cheapest, "cheapest"}};
}

Schema<RentGoal> schema_of(Bound<RentGoal>) {
  using G = RentGoal;
  return Schema<G>("goal", "The goal.")
      .field("form", &G::form, "The greatest throughput for a budget, or the least money for the demand.",
             {.required = true})
      .field("budget_usd_per_hour", &G::budget_usd_per_hour, "Form `budget`.", {.min = 0})
      .field("survive", &G::survive, "Share of the throughput that is left when any one domain is lost.",
             {.min = 0, .max = 1})
      .field("startup_share", &G::startup_share,
             "What a copy costs at its start, as a share of its price until the next planning.", {.min = 0})
      .field("current", &G::current, "Copies that run already, by configuration: these start free.", {.min = 0});
}

Schema<RentedConfiguration> schema_of(Bound<RentedConfiguration>) {
  using R = RentedConfiguration;
  return Schema<R>("rented", "Copies of one configuration.")
      .field("configuration", &R::configuration, "Its name.", {.required = true})
      .field("devices", &R::devices, "Devices of one copy, by type.", {.required = true, .min = 1})
      .field("copies", &R::copies, "Number of copies.", {.required = true, .min = 1})
      .field("usd_per_hour", &R::usd_per_hour, "Price of one copy.", {.required = true, .min = 0});
}

Schema<HomogeneousFleet> schema_of(Bound<HomogeneousFleet>) {
  using H = HomogeneousFleet;
  return Schema<H>("homogeneous",
                   "The best fleet of one type alone: requests/s in the form `budget`, $/h in `cheapest`.")
      .field("type", &H::type, "Type of all its devices.", {.required = true})
      .field("limited", &H::limited, "Figure with the available devices. Omitted if they cannot carry the load.",
             {.min = 0})
      .field("unlimited", &H::unlimited, "Figure with unlimited devices. Omitted if they cannot carry the load.",
             {.min = 0});
}

Schema<ClassExplanation> schema_of(Bound<ClassExplanation>) {
  using C = ClassExplanation;
  return Schema<C>("class explanation", "What more requests of a class would take, by the prices of the relaxation.")
      .field("usd_per_1000_requests", &C::usd_per_1000_requests, "The price of 1000 more.", {.always_written = true})
      .field("scarcity_share", &C::scarcity_share, "Share of that price for device types that are sold out.",
             {.always_written = true})
      .field("binding", &C::binding, "Limit of the class.", {.always_written = true});
}

Schema<SlowerCase> schema_of(Bound<SlowerCase>) {
  using S = SlowerCase;
  return Schema<S>("slower", "The same fleet where devices are slower than planned with.")
      .field("type", &S::type, "Type of the slower devices. Default: all.")
      .field("factor", &S::factor, "How many times slower the devices are.", {.required = true})
      .field("throughput_per_s", &S::throughput_per_s, "What the fleet then carries, with requests routed again.",
             {.required = true})
      .field("replanned_usd_per_hour", &S::replanned_usd_per_hour,
             "Form `cheapest`: what the demand then costs. Left out: it cannot be carried.");
}

Schema<RentPrediction> schema_of(Bound<RentPrediction>) {
  using P = RentPrediction;
  constexpr Limits figure{.always_written = true, .min = 0};
  return Schema<P>("predicted", "Prediction.")
      .field("throughput_per_s", &P::throughput_per_s, "Requests of the whole mix that the fleet carries.", figure)
      .field("cost_usd_per_hour", &P::cost_usd_per_hour, "Price of the fleet.", figure)
      .field("headroom", &P::headroom, "Throughput as a multiple of the demand.", {.min = 0})
      .field("startup_usd_per_hour", &P::startup_usd_per_hour, "Price of starting the copies that are new.", {.min = 0})
      .field("shadow_price_usd_per_hour", &P::shadow_price_usd_per_hour,
             "What one more device of a type is worth, beyond its price.", {.always_written = true})
      .field("homogeneous", &P::homogeneous, "The best fleets of one type.", {.always_written = true})
      .field("classes", &P::classes, "Limits of each class.", {.always_written = true})
      .field("slower", &P::slower, "Throughput with slower devices.", {.always_written = true});
}

Schema<RentPlan> schema_of(Bound<RentPlan>) {
  using P = RentPlan;
  constexpr Limits written{.always_written = true};
  return plan_table<P>("rent plan", "What to rent, and which requests go to which copy.")
      .field("model", &P::model, "The model served, where the cost model made the configurations.")
      .field("workload", &P::workload, "The requests, where the cost model made the configurations.")
      .field("offers", &P::offers, "The offers that the plan was made from, whole.", {.required = true})
      .field("goal", &P::goal, "The goal.", {.required = true})
      .field("fleet", &P::fleet, "What to rent.", {.required = true})
      .field("assignment", &P::assignment, "Share of every class that goes to each configuration.",
             {.required = true, .min = 0, .max = 1})
      .field("fallback", &P::fallback, "The same shares after the loss of a domain, by domain.", {.min = 0, .max = 1})
      .field("predicted", &P::predicted, "Prediction.", written)
      .field("search", &P::search, "How the plan was found.", written)
      .check([](const P& plan, const Reader& reader) {
        if (plan.offers.configurations.empty())
          reader.fail("the plan's offers have no configurations",
                      "a plan keeps the offers that it was made of: make it again with `motley plan rent`");
      });
}

}  // namespace motley
