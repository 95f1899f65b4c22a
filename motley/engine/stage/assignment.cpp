#include "motley/engine/stage/assignment.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/model/crossing_types.hpp"

namespace motley {
namespace {

void find_stage(const ServePlan& plan, const std::string& device, Assignment& found) {
  for (const Stage& stage : plan.stages)
    for (std::size_t rank = 0; rank < stage.devices.size(); ++rank) {
      if (stage.devices[rank] != device) continue;
      if (found.stage != nullptr)
        throw input_error(fmt::format("device {} is in stage {} and in stage {}", device, found.stage->id, stage.id),
                          "a device holds one part of one stage");
      found.stage = &stage;
      found.rank = static_cast<int>(rank);
      found.degree = static_cast<int>(stage.devices.size());
    }
  if (found.stage == nullptr)
    throw input_error(fmt::format("device {} is in no stage of the plan", device),
                      "start workers only for the `devices` of the plan's stages");
}

// In the type that the receiving stage computes in, unless the plan names another.
DType sent_in(const ServePlan& plan, const Route& route, std::size_t hop) {
  const Stage& receiver = plan.stage(route.path[hop + 1].stage);
  const DType type = route.path[hop].activation_type.value_or(dtype_row(receiver.weight_type).computed_in);
  check_activation_type(plan.model.arch, type);
  return type;
}

std::optional<RoutePlace> find_place(const ServePlan& plan, const Route& route, const Stage& stage) {
  std::optional<RoutePlace> place;
  for (std::size_t hop = 0; hop < route.path.size(); ++hop) {
    if (route.path[hop].stage != stage.id) continue;
    if (place)
      throw input_error(fmt::format("route {} passes stage {} twice", route.id, stage.id),
                        "list it once in the route's `path`");
    if (route.path[hop].layers != stage.layers)
      throw input_error(fmt::format("route {} uses a part of the layers of stage {}", route.id, stage.id),
                        "let the route use all layers of the stage");
    place = RoutePlace{.number = hop,
                       .previous = hop > 0 ? &plan.stage(route.path[hop - 1].stage) : nullptr,
                       .next = hop + 1 < route.path.size() ? &plan.stage(route.path[hop + 1].stage) : nullptr};
    if (place->previous != nullptr) place->received_in = sent_in(plan, route, hop - 1);
    if (place->next != nullptr) place->sent_in = sent_in(plan, route, hop);
    if (stage.embedding != (place->previous == nullptr) || stage.head != (place->next == nullptr))
      throw input_error(
          fmt::format("stage {} is hop {} of the {} of route {}, and has {}embedding and {}head", stage.id, hop,
                      route.path.size(), route.id, stage.embedding ? "" : "no ", stage.head ? "" : "no "),
          "the first stage of a route has the embedding, the last one the head");
  }
  return place;
}

std::string sum_of(const TierMemory& memory) {
  const auto human = [](std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  return fmt::format("weights {} + KV cache {} + buffers {} + reserve {}{} = {}", human(memory.weights),
                     human(memory.kv), human(memory.activations), human(memory.reserve),
                     memory.standby > 0 ? fmt::format(" + standby {}", human(memory.standby)) : std::string(),
                     human(memory.total()));
}

}  // namespace

Assignment assignment_of(const ServePlan& plan, const std::string& device) {
  Assignment assignment;
  find_stage(plan, device, assignment);
  const Stage& stage = *assignment.stage;
  for (const Route& route : plan.routes) assignment.places.push_back(find_place(plan, route, stage));
  const DeviceMemory memory = stage_memory(plan, stage).at(static_cast<std::size_t>(assignment.rank));
  assignment.memory = memory.device;
  assignment.host_bytes = memory.host.total();
  if (assignment.memory.total() > assignment.memory.limit)
    throw input_error(
        fmt::format("{} has {}, but its part of stage {} takes {}", device,
                    human_bytes(static_cast<double>(assignment.memory.limit)), stage.id, sum_of(assignment.memory)),
        "plan again with this device's memory, or give the stage fewer `kv_tokens`");
  return assignment;
}

namespace {

// The tokens that are left where keys and values give this many bytes back; 0 where those of a step would not fit.
std::int64_t tokens_without(std::int64_t bytes, const ServePlan& plan, const Assignment& planned) {
  const Stage& stage = *planned.stage;
  if (stage.offload || planned.memory.kv < bytes) return 0;
  const std::int64_t tokens =
      tokens_in(plan, stage, static_cast<std::size_t>(planned.rank), planned.memory.kv - bytes, stage.kv_tokens);
  return tokens >= plan.step.max_tokens ? tokens : 0;
}

[[noreturn]] void fail_short(const std::string& what, std::int64_t bytes, const ServePlan& plan,
                             const Assignment& planned) {
  const std::int64_t tokens = tokens_without(bytes, plan, planned);
  if (tokens == 0)
    throw Error(ErrorCode::environment, what, "end what uses the memory, or offer less of it (`--memory`)");
  throw MemoryShort(
      fmt::format("{}: keys and values of {} tokens in place of {}", what, tokens, planned.stage->kv_tokens), tokens);
}

}  // namespace

std::int64_t needed_bytes(const Assignment& planned) {
  return planned.memory.total() - planned.memory.reserve + planned.host_bytes;
}

void check_free_memory(const ServePlan& plan, const std::string& device, const Assignment& planned,
                       std::int64_t free_bytes) {
  const TierMemory& memory = planned.memory;
  const std::int64_t needed = needed_bytes(planned);
  if (needed <= free_bytes) return;
  const auto human = [](std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  fail_short(fmt::format("{} takes {}{}, and its machine has {} of memory left", device, sum_of(memory),
                         planned.host_bytes > 0 ? fmt::format(", and {} of its host", human(planned.host_bytes)) : "",
                         human(free_bytes)),
             needed + memory.reserve / 2 - free_bytes, plan, planned);
}

void fail_without_memory(const ServePlan& plan, const std::string& device, const Assignment& planned) {
  constexpr std::int64_t part_of_cache = 8, part_of_reserve = 4;  // so that it does not fail again at once
  const TierMemory& memory = planned.memory;
  fail_short(fmt::format("{} ran out of memory", device),
             std::max({memory.kv / part_of_cache, memory.reserve / part_of_reserve, std::int64_t{1}}), plan, planned);
}

void check_allocation(const std::string& device, const TierMemory& planned, const RankMemory& allocated) {
  const TierMemory real{.weights = allocated.weights,
                        .kv = allocated.kv,
                        .activations = allocated.activations,
                        .reserve = planned.reserve,
                        .limit = planned.limit,
                        .standby = planned.standby};
  if (real.total() > planned.total())
    throw input_error(fmt::format("{} allocated {}, but the plan predicts {}", device, sum_of(real), sum_of(planned)),
                      "the plan must be made by the same version of motley that runs it");
}

}  // namespace motley
