// Checks a serving plan against its own descriptions. What cannot be computed because something before it is wrong is
// not reported again: one mistake, one violation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "motley/base/error.hpp"
#include "motley/model/crossing_types.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {
namespace {

class Verifier {
 public:
  explicit Verifier(const ServePlan& plan) : plan_(plan) {
    for (std::size_t i = 0; i < plan.cluster.devices.size(); ++i)
      device_index_[plan.cluster.devices[i].name] = static_cast<int>(i);
    for (std::size_t i = 0; i < plan.stages.size(); ++i) stage_index_.emplace(plan.stages[i].id, i);
  }

  std::vector<Violation> run() {
    if (plan_.stages.empty()) add("stages", "the plan has no stage", "a plan needs at least one");
    if (plan_.routes.empty()) add("routes", "the plan has no route", "a plan needs at least one");
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) check_stage(i);
    for (std::size_t i = 0; i < plan_.routes.size(); ++i) check_route(i);
    check_ends();
    check_shared_tiers();
    check_devices();
    return std::move(violations_);
  }

 private:
  void add(std::string place, std::string what, std::string hint) {
    violations_.push_back({std::move(place), std::move(what), std::move(hint)});
  }

  std::string suggest_device(std::string_view name) const {
    std::vector<std::string> names;
    for (const auto& device : plan_.cluster.devices) names.push_back(device.name);
    return did_you_mean(name, names, "give a device as machine/slot");
  }

  // ---- stages ----

  void check_stage(std::size_t index) {
    const Stage& stage = plan_.stages[index];
    const std::string place = fmt::format("stages[{}]", index);
    if (stage.id.empty()) add(place, "the stage has no id", "give it a unique id such as \"r0/s0\"");
    if (stage_index_.at(stage.id) != index)
      add(place, fmt::format("the id \"{}\" is given twice", stage.id), "give unique ids");
    // Each check runs, so that the arithmetic below is tried only on a sound stage.
    bool sound = check_stage_devices(stage, place);
    sound = check_range(stage.layers, place + ".layers") && sound;
    sound = check_shares(stage, place) && sound;
    sound = check_types(stage, place) && sound;
    sound = check_kv(stage, place) && sound;
    sound = check_offload(stage, place) && sound;
    sound = sound && check_standby(stage, place);
    if (sound) check_memory(stage, place);
  }

  bool check_stage_devices(const Stage& stage, const std::string& place) {
    if (stage.devices.empty()) {
      add(place, "the stage has no device", "add at least one");
      return false;
    }
    bool known = true;
    for (std::size_t rank = 0; rank < stage.devices.size(); ++rank) {
      const std::string& device = stage.devices[rank];
      const std::string here = fmt::format("{}.devices[{}]", place, rank);
      if (!device_index_.contains(device)) {
        add(here, fmt::format("the cluster has no device \"{}\"", device), suggest_device(device));
        known = false;
        continue;
      }
      const auto [entry, added] = stage_of_device_.emplace(device, stage.id);
      if (added) continue;
      if (entry->second == stage.id)
        add(here, fmt::format("\"{}\" is listed twice in this stage", device), "each rank needs a device of its own");
      else
        add(here, fmt::format("\"{}\" already belongs to stage \"{}\"", device, entry->second),
            "put each device into one stage");
    }
    return known;
  }

  bool check_range(const LayerRange& layers, const std::string& place) {
    const std::int64_t total = plan_.model.arch.layers;
    if (layers.first >= 0 && layers.first < layers.end && layers.end <= total) return true;
    add(place,
        layers.size() <= 0 ? fmt::format("{} holds no layer", text(layers))
                           : fmt::format("{} is out of range", text(layers)),
        fmt::format("the model has the layers [0, {})", total));
    return false;
  }

  bool check_shares(const Stage& stage, const std::string& place) {
    const std::string here = place + ".shares";
    if (!stage.shares.empty()) {
      if (stage.shares.size() != stage.devices.size()) {
        add(here, fmt::format("{} shares for {} devices", stage.shares.size(), stage.devices.size()),
            "give one share per device, or remove them for equal shares");
        return false;
      }
      for (const double share : stage.shares)
        if (!(share > 0) || !std::isfinite(share)) {
          add(here, fmt::format("the share {} is not a positive number", share), "leave out devices with no share");
          return false;
        }
      const double sum = std::accumulate(stage.shares.begin(), stage.shares.end(), 0.0);
      if (std::abs(sum - 1) > share_tolerance) {
        add(here, fmt::format("the shares sum to {}, not to 1", sum), "divide each by the sum");
        return false;
      }
    }
    if (stage.devices.empty()) return false;
    const Architecture& arch = plan_.model.arch;
    const bool cut = attempt(stage.shares.empty() ? place + ".devices" : here, "use fewer devices in this stage", [&] {
      make_shards(arch, static_cast<int>(stage.devices.size()), stage.shares, stage.weight_type);
    });
    return cut && attempt(place + ".expert_shares", {}, [&] { stage_shards(arch, stage); });
  }

  bool check_types(const Stage& stage, const std::string& place) {
    const auto check = [&](DType type, Use use, std::string_view key, std::string_view what) {
      if (supports(type, Support::planned, use)) return true;
      add(fmt::format("{}.{}", place, key), fmt::format("{} {} are not supported", name_of(type), what),
          "use " + names_with(Support::planned, use));
      return false;
    };
    const bool weights = check(stage.weight_type, Use::weights, "weight_type", "weights");
    const bool typed = stage.weight_type != DType::file || !plan_.model.arch.tensor_types.empty();
    if (!typed) add(place + ".weight_type", "the model does not say the types of its tensors", types_of_a_file);
    const bool kv = check(stage.kv_type, Use::kv, "kv_type", "keys and values") &&
                    attempt(place + ".kv_type", {}, [&] { check_kv_type(plan_.model.arch, stage.kv_type); });
    return kv && weights && typed;
  }

  // False, and a violation, where `check` throws an input error.
  template <class Check>
  bool attempt(const std::string& place, const std::string& hint, const Check& check) {
    try {
      check();
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::input) throw;
      add(place, error.what(), error.hint().empty() ? hint : error.hint());
      return false;
    }
  }

  bool check_kv(const Stage& stage, const std::string& place) {
    if (has_states(plan_.model.arch) && stage.kv_sequences < 1) {
      add(place + ".kv_sequences", "delta nets keep a state of each sequence, and the stage has room for none",
          "say how many sequences run at once");
      return false;
    }
    if (stage.kv_tokens >= plan_.step.block_tokens && stage.kv_tokens > 0) return true;
    add(place + ".kv_tokens",
        stage.kv_tokens <= 0
            ? fmt::format("the stage has no room for keys and values ({} tokens)", stage.kv_tokens)
            : fmt::format("{} tokens are less than one block of {}", stage.kv_tokens, plan_.step.block_tokens),
        "give the stage fewer layers, or devices with more memory");
    return false;
  }

  bool check_offload(const Stage& stage, const std::string& place) {
    if (!stage.offload) return true;
    const std::string here = place + ".offload";
    if (stage.devices.size() > 1) {
      add(here, fmt::format("a stage of {} devices offloads", stage.devices.size()), "give it one device");
      return false;
    }
    const auto whole = [&](const TierShares& shares, std::int64_t units, std::string_view key) {
      return attempt(fmt::format("{}.{}", here, key), {}, [&] { counts_of(shares, units); });
    };
    bool sound = whole(stage.offload->weights, stage.layers.size(), "weights");
    sound = whole(stage.offload->kv, stage.layers.size(), "kv") && sound;
    sound = whole(stage.offload->activations, stage.offload->batches, "activations") && sound;
    return sound && attempt(here + ".activations", {}, [&] {
             check_kv_homes(plan_.model.arch, place_layers(*stage.offload, stage.layers.size()).kv);
           });
  }

  // Of a sound stage: no layer is held twice.
  bool check_standby(const Stage& stage, const std::string& place) {
    std::vector<LayerRange> held{stage.layers};
    for (std::size_t i = 0; i < stage.standby_weights.size(); ++i) {
      const LayerRange& layers = stage.standby_weights[i].layers;
      const std::string here = fmt::format("{}.standby_weights[{}]", place, i);
      if (stage.offload) {
        add(here, "a stage that offloads holds copies of other layers", "remove `offload` or `standby_weights`");
        return false;
      }
      if (!check_range(layers, here + ".layers")) return false;
      for (const LayerRange& other : held) {
        if (layers.first >= other.end || other.first >= layers.end) continue;
        add(here + ".layers", fmt::format("the stage holds layers of {} already: {}", text(layers), text(other)),
            "name each layer once, and none of the stage's own");
        return false;
      }
      held.push_back(layers);
    }
    return true;
  }

  // ---- memory ----

  void check_memory(const Stage& stage, const std::string& place) {
    const std::vector<DeviceMemory> memory = stage_memory(plan_, stage);
    for (std::size_t rank = 0; rank < memory.size(); ++rank) {
      const std::string& device = stage.devices[rank];
      for (const auto& [tier, of] : memory_tiers) check_limit(device, tier, memory[rank].*of, stage, place);
      check_prediction(device, memory[rank]);
      if (stage.offload || memory[rank].host.standby > 0) count_shared(device, memory[rank]);
    }
  }

  void check_limit(const std::string& device, std::string_view tier, const TierMemory& memory, const Stage& stage,
                   const std::string& place) {
    const std::int64_t excess = memory.total() - memory.limit;
    if (excess <= 0) return;
    if (memory.limit == 0) {
      const std::string_view key = tier == "host" ? "host_memory" : "disk";
      add(place + (stage.offload ? ".offload" : ".standby_weights"),
          fmt::format("{} of \"{}\" lie on its {}, and its machine has no `{}`",
                      human_bytes(static_cast<double>(memory.total())), device, tier, key),
          fmt::format("give the machine `{}`, or move them elsewhere", key));
      return;
    }
    const auto human = [](std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
    add(device,
        fmt::format("{} more than the {} has: weights {} + KV {} + activations {} + reserve {}{} = {} of {} ({} "
                    "bytes too many)",
                    human(excess), tier, human(memory.weights), human(memory.kv), human(memory.activations),
                    human(memory.reserve),
                    memory.standby > 0 ? fmt::format(" + standby {}", human(memory.standby)) : std::string(),
                    human(memory.total()), human(memory.limit), excess),
        fmt::format("give {} (stage \"{}\") fewer layers than {}, fewer kv_tokens than {}, or a smaller share", place,
                    stage.id, stage.layers.size(), stage.kv_tokens));
  }

  void count_shared(const std::string& device, const DeviceMemory& memory) {
    const int index = plan_.cluster.devices[static_cast<std::size_t>(device_index_.at(device))].machine;
    Held& held = held_by_machine_[index];
    ++held.devices;
    for (const auto& [tier, of] : memory_tiers) {
      TierMemory& all = held.all.*of;
      all.weights += (memory.*of).weights;
      all.kv += (memory.*of).kv;
      all.activations += (memory.*of).activations;
      all.standby += (memory.*of).standby;
      all.limit = (memory.*of).limit;
    }
  }

  // Devices of a machine share its host memory and its disk.
  void check_shared_tiers() {
    for (const auto& [index, held] : held_by_machine_) {
      const std::string& machine = plan_.cluster.machines[static_cast<std::size_t>(index)].name;
      for (const auto& [tier, of] : memory_tiers) {
        const TierMemory& all = held.all.*of;
        if (of == &DeviceMemory::device || held.devices < 2 || all.total() <= all.limit) continue;
        add(machine,
            fmt::format("its {} devices hold {} on the {}, which has {}", held.devices,
                        human_bytes(static_cast<double>(all.total())), tier,
                        human_bytes(static_cast<double>(all.limit))),
            fmt::format("give the stages of \"{}\" fewer layers, or fewer of them on the {}", machine, tier));
      }
    }
  }

  void check_prediction(const std::string& device, const DeviceMemory& memory) {
    const auto predicted = plan_.predicted.memory_bytes.find(device);
    if (predicted == plan_.predicted.memory_bytes.end() || predicted->second == memory) return;
    for (const auto& [tier, of] : memory_tiers) {
      const TierMemory &p = predicted->second.*of, &m = memory.*of;
      const std::string inside = of == &DeviceMemory::device ? "" : fmt::format("{}.", tier);
      for (const auto& [name, said, right] :
           {std::tuple("weights", p.weights, m.weights), std::tuple("kv", p.kv, m.kv),
            std::tuple("activations", p.activations, m.activations), std::tuple("reserve", p.reserve, m.reserve),
            std::tuple("limit", p.limit, m.limit), std::tuple("standby", p.standby, m.standby)})
        if (said != right)
          add(fmt::format("predicted.memory_bytes.{}.{}{}", device, inside, name),
              fmt::format("{} bytes are predicted, the arithmetic says {}", said, right),
              "plan again, or remove the prediction");
    }
  }

  // ---- routes ----

  void check_route(std::size_t index) {
    const Route& route = plan_.routes[index];
    const std::string place = fmt::format("routes[{}]", index);
    if (route.id.empty()) add(place, "the route has no id", "give it a unique id such as \"r0\"");
    if (!route_ids_.insert(route.id).second)
      add(place, fmt::format("the id \"{}\" is given twice", route.id), "give unique ids");
    if (!(route.weight > 0) || !std::isfinite(route.weight))
      add(place + ".weight", fmt::format("the weight {} is not a positive number", route.weight),
          "remove the route, or give it a share of the requests");
    if (route.path.empty()) {
      add(place + ".path", "the route has no stage", "give a path that covers all layers");
      return;
    }
    bool known = true;
    for (std::size_t hop = 0; hop < route.path.size(); ++hop)
      known = check_hop(route.path[hop], fmt::format("{}.path[{}]", place, hop)) && known;
    check_coverage(route, place);
    if (known) check_roles(route, place);
    if (known) check_route_links(route, place);
    check_crossings(route, place);
  }

  // What goes from one stage to another has one type on all routes: their links are priced by it.
  void check_crossings(const Route& route, const std::string& place) {
    for (std::size_t hop = 0; hop < route.path.size(); ++hop) {
      const std::optional<DType>& type = route.path[hop].activation_type;
      const std::string here = fmt::format("{}.path[{}].activation_type", place, hop);
      const bool sends = hop + 1 < route.path.size() && !hands_over(route, hop + 1);
      if (type && !sends) {
        add(here, "no activations leave this stage on the route", "remove it");
        continue;
      }
      if (type) attempt(here, {}, [&] { check_activation_type(plan_.model.arch, *type); });
      if (!sends) continue;
      const auto [sent, added] = sent_in_.try_emplace({route.path[hop].stage, route.path[hop + 1].stage}, type);
      if (!added && sent->second != type)
        add(here,
            fmt::format("another route sends from stage \"{}\" to \"{}\" in another type", route.path[hop].stage,
                        route.path[hop + 1].stage),
            "give both the same type");
    }
  }

  bool check_hop(const Hop& hop, const std::string& place) {
    const auto found = stage_index_.find(hop.stage);
    if (found == stage_index_.end()) {
      std::vector<std::string> ids;
      for (const auto& stage : plan_.stages) ids.push_back(stage.id);
      add(place, fmt::format("the plan has no stage \"{}\"", hop.stage),
          did_you_mean(hop.stage, ids, "give the id of a stage"));
      return false;
    }
    used_stages_.insert(hop.stage);
    const Stage& stage = plan_.stages[found->second];
    if (hop.layers.first < stage.layers.first || hop.layers.end > stage.layers.end)
      add(place + ".layers",
          fmt::format("{} is not inside the layers {} of stage \"{}\"", text(hop.layers), text(stage.layers),
                      hop.stage),
          "give layers that the stage holds");
    return true;
  }

  // Every layer once, in order; where stages with the role `prefill` come first, then once more by stages that decode.
  void check_coverage(const Route& route, const std::string& place) {
    const std::int64_t total = plan_.model.arch.layers;
    std::int64_t next = 0;
    for (std::size_t hop = 0; hop < route.path.size(); ++hop) {
      const LayerRange& layers = route.path[hop].layers;
      const std::string here = fmt::format("{}.path[{}].layers", place, hop);
      if (layers.size() <= 0) {
        add(here, fmt::format("{} computes no layer", text(layers)), "remove the hop, or give it layers");
        return;
      }
      if (next == total && hands_over(route, hop)) next = 0;
      if (layers.first != next) {
        add(here, fmt::format("{} begins at layer {}, but layer {} is next", text(layers), layers.first, next),
            "let the route compute every layer once, in order");
        return;
      }
      next = layers.end;
    }
    if (next != total)
      add(place + ".path", fmt::format("the route ends after layer {} of {}", next, total),
          "let the route compute every layer once, in order");
  }

  std::optional<StageRole> role_of(const Hop& hop) const {
    const auto found = stage_index_.find(hop.stage);
    return found == stage_index_.end() ? std::nullopt : std::optional(plan_.stages[found->second].role);
  }
  // Here begins the part of a route that decodes what the part before has prefilled.
  bool hands_over(const Route& route, std::size_t hop) const {
    return hop > 0 && role_of(route.path[hop - 1]) == StageRole::prefill &&
           role_of(route.path[hop]) == StageRole::decode;
  }

  // Either all stages of a route do both, or those that prefill come before those that decode.
  void check_roles(const Route& route, const std::string& place) {
    bool decodes = false;
    for (std::size_t hop = 0; hop < route.path.size(); ++hop) {
      const StageRole role = *role_of(route.path[hop]);
      const bool alike = hop == 0 || role_of(route.path[hop - 1]) == role;
      if ((!alike && !hands_over(route, hop)) || (hop == 0 && role == StageRole::decode)) {
        add(fmt::format("{}.path[{}]", place, hop),
            fmt::format("stage \"{}\" has the role `{}`{}", route.path[hop].stage, name_of(role),
                        hop == 0 ? ", and nothing before it prefills"
                                 : fmt::format(" after `{}`", name_of(*role_of(route.path[hop - 1])))),
            "stages that prefill come first, then those that decode; or all have the role `any`");
        return;
      }
      decodes = decodes || role != StageRole::prefill;
    }
    if (!decodes)
      add(place + ".path", "all stages of the route have the role `prefill`", "end it with stages that decode");
  }

  void check_route_links(const Route& route, const std::string& place) {
    for (std::size_t hop = 0; hop < route.path.size(); ++hop) {
      const Stage& stage = plan_.stage(route.path[hop].stage);
      const std::string here = fmt::format("{}.path[{}]", place, hop);
      check_links(stage, stage, here);
      if (hop + 1 < route.path.size()) check_links(stage, plan_.stage(route.path[hop + 1].stage), here);
    }
  }

  // Every device of one stage reaches every device of the other; reported once per pair of stages.
  void check_links(const Stage& from, const Stage& to, const std::string& place) {
    if (!linked_.insert({std::min(from.id, to.id), std::max(from.id, to.id)}).second) return;
    for (const auto& a : from.devices)
      for (const auto& b : to.devices) {
        if (a == b || !device_index_.contains(a) || !device_index_.contains(b)) continue;
        try {
          plan_.cluster.link(device_index_.at(a), device_index_.at(b));
        } catch (const Error& error) {
          if (error.code() != ErrorCode::input) throw;
          add(place, error.what(), error.hint());
          return;
        }
      }
  }

  // The embedding stands on the first stage of each route and the head on the last, and nowhere else; where a route
  // hands over from prefill to decode, both parts have their own.
  void check_ends() {
    std::set<std::string> first, last;
    for (const auto& route : plan_.routes)
      if (!route.path.empty()) {
        first.insert(route.path.front().stage);
        last.insert(route.path.back().stage);
        for (std::size_t hop = 1; hop < route.path.size(); ++hop)
          if (hands_over(route, hop)) {
            last.insert(route.path[hop - 1].stage);
            first.insert(route.path[hop].stage);
          }
      }
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      const Stage& stage = plan_.stages[i];
      const std::string place = fmt::format("stages[{}]", i);
      if (!used_stages_.contains(stage.id)) {
        add(place, fmt::format("no route uses stage \"{}\"", stage.id), "remove it and list its devices under unused");
        continue;
      }
      check_end(stage.embedding, first.contains(stage.id), place + ".embedding", stage.id, "the embedding",
                "the first stage of a route");
      check_end(stage.head, last.contains(stage.id), place + ".head", stage.id, "the head",
                "the last stage of a route");
    }
  }

  void check_end(bool present, bool needed, std::string place, const std::string& id, std::string_view what,
                 std::string_view where) {
    if (present == needed) return;
    if (needed)
      add(std::move(place), fmt::format("stage \"{}\" lacks {}", id, what), fmt::format("{} needs it", where));
    else
      add(std::move(place), fmt::format("stage \"{}\" holds {} but is not {}", id, what, where),
          "set it to false to save memory");
  }

  // ---- devices ----

  // Every device of the cluster is used or listed as unused, not both.
  void check_devices() {
    std::set<std::string> listed;
    for (std::size_t i = 0; i < plan_.unused.size(); ++i) {
      const std::string& device = plan_.unused[i].device;
      const std::string place = fmt::format("unused[{}]", i);
      if (!device_index_.contains(device))
        add(place, fmt::format("the cluster has no device \"{}\"", device), suggest_device(device));
      else if (!listed.insert(device).second)
        add(place, fmt::format("\"{}\" is listed twice", device), "list it once");
      else if (const auto used = stage_of_device_.find(device); used != stage_of_device_.end())
        add(place, fmt::format("\"{}\" is listed as unused but belongs to stage \"{}\"", device, used->second),
            "remove it from one of them");
    }
    for (const auto& device : plan_.cluster.devices)
      if (!stage_of_device_.contains(device.name) && !listed.contains(device.name))
        add(device.name, "the device is neither in a stage nor listed as unused",
            "list it under unused, with the reason");
    for (const auto& [device, memory] : plan_.predicted.memory_bytes)
      if (!stage_of_device_.contains(device))
        add("predicted.memory_bytes." + device, "memory is predicted for a device that no stage uses",
            "plan again, or remove the prediction");
  }

  const ServePlan& plan_;
  std::map<std::string, int> device_index_;
  std::map<std::string, std::size_t> stage_index_;
  std::map<std::string, std::string> stage_of_device_;
  std::set<std::string> route_ids_;
  std::set<std::string> used_stages_;
  std::set<std::pair<std::string, std::string>> linked_;
  std::map<std::pair<std::string, std::string>, std::optional<DType>> sent_in_;
  // What the devices of a machine hold together.
  struct Held {
    int devices = 0;
    DeviceMemory all = {};
  };
  std::map<int, Held> held_by_machine_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> verify(const ServePlan& plan) { return Verifier(plan).run(); }

}  // namespace motley
