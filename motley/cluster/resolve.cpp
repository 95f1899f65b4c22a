// From a description to a cluster: every type complete, every machine and device listed, every name checked.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>
#include <variant>

#include "motley/base/error.hpp"
#include "motley/base/foreign.hpp"
#include "motley/base/printable.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/cluster/interconnect.hpp"
#include "motley/cluster/names.hpp"

namespace motley {
namespace {

constexpr std::int64_t largest_cluster = 100000;  // devices
constexpr int no_type = -1;                       // of an empty slot
constexpr std::int64_t gibibyte = std::int64_t{1} << 30;

// The place of a key or item below `root`, as far down as the document goes.
using Step = std::variant<std::string_view, std::size_t>;
Reader at(const Reader& root, std::initializer_list<Step> steps) {
  Reader reader = root;
  for (const Step& step : steps) {
    if (const auto* key = std::get_if<std::string_view>(&step)) {
      const Value* child = reader.value().find(*key);
      if (!child) return reader;
      reader = reader.member(*key, *child);
    } else {
      const std::size_t index = std::get<std::size_t>(step);
      if (!reader.value().is_array() || index >= reader.value().as_array().size()) return reader;
      reader = reader.item(index, reader.value().as_array()[index]);
    }
  }
  return reader;
}

void check_name(const Reader& reader, std::string_view name) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  };
  if (name.empty() || !std::all_of(name.begin(), name.end(), good))
    reader.fail(fmt::format("a name must have letters, digits, `.`, `-` and `_` only, found \"{}\"", name),
                "choose another name");
}

// ---- types ----

// Everything that a type needs is there, so that the catalogue has nothing to add.
bool stands_alone(const DeviceType& type) {
  return !type.vendor.empty() && type.memory_bytes > 0 && type.memory_bandwidth_bytes_per_s > 0 &&
         !type.flop_per_s.empty() && type.efficiency.compute > 0 && type.efficiency.bandwidth > 0 && type.reserve_bytes;
}

DeviceType merged(const DeviceType& known, const DeviceType& given) {
  DeviceType type = known;
  if (!given.vendor.empty()) type.vendor = given.vendor;
  if (given.memory_bytes > 0) type.memory_bytes = given.memory_bytes;
  if (given.memory_bandwidth_bytes_per_s > 0) type.memory_bandwidth_bytes_per_s = given.memory_bandwidth_bytes_per_s;
  for (const auto& [name, rate] : given.flop_per_s) type.flop_per_s[name] = rate;
  if (given.efficiency.compute > 0) type.efficiency.compute = given.efficiency.compute;
  if (given.efficiency.bandwidth > 0) type.efficiency.bandwidth = given.efficiency.bandwidth;
  if (given.efficiency.attention_compute > 0) type.efficiency.attention_compute = given.efficiency.attention_compute;
  if (given.efficiency.attention_bandwidth > 0)
    type.efficiency.attention_bandwidth = given.efficiency.attention_bandwidth;
  if (given.efficiency.bandwidth > 0 || given.efficiency.quantised_bandwidth > 0)
    type.efficiency.quantised_bandwidth = given.efficiency.quantised_bandwidth;
  if (given.efficiency.in_turn) type.efficiency.in_turn = true;
  if (given.efficiency.elementwise > 0) type.efficiency.elementwise = given.efficiency.elementwise;
  if (given.efficiency.compute > 0) {
    // It is of whole layers unless the other parts are given with it.
    type.efficiency.attention_compute = given.efficiency.attention_compute;
    type.efficiency.elementwise = given.efficiency.elementwise;
    if (given.efficiency.bandwidth > 0) type.efficiency.basis = given.efficiency.basis;
  }
  // What is given of the products or the attention holds for training, too.
  if (given.efficiency.compute > 0) type.training.products = type.training.attention = 0;
  if (given.efficiency.attention_compute > 0) type.training.attention = 0;
  if (given.efficiency.bandwidth > 0) type.training.elementwise = 0;
  if (type.training.products == 0 && given.efficiency.bandwidth > 0) type.training.basis = given.efficiency.basis;
  if (given.training.products > 0) type.training.products = given.training.products;
  if (given.training.attention > 0) type.training.attention = given.training.attention;
  if (given.training.elementwise > 0) type.training.elementwise = given.training.elementwise;
  if (given.training.products > 0 && given.training.elementwise > 0) type.training.basis = given.training.basis;
  if (given.overhead) type.overhead = given.overhead;
  type.copies = given.copies;
  if (given.reserve_bytes) type.reserve_bytes = given.reserve_bytes;
  if (given.usd_per_hour > 0) type.usd_per_hour = given.usd_per_hour;
  return type;
}

// Figures of a type that is not in the catalogue, to be copied.
std::string type_to_copy(std::string_view name) {
  return fmt::format(
      "describe it, with its data sheet's figures:\n\n[[device_type]]\nname = \"{}\"\nvendor = \"nvidia\"\n"
      "memory = \"24 GiB\"\nmemory_bandwidth = \"346 GB/s\"\nflops = {{ fp16 = \"12 TFLOP/s\" }}",
      printable(shortened(name)));
}

// Cards of one series differ in a number or in the letter before it: P40 is not an A40, GTX 1070 not an RTX 2070.
std::string unknown_type_hint(std::string_view name, const std::vector<std::string>& known) {
  const auto digits = [](std::string_view text) {
    std::string found;
    std::ranges::copy_if(text, std::back_inserter(found), [](char c) { return c >= '0' && c <= '9'; });
    std::ranges::sort(found);  // digits may be typed in the wrong order
    return found;
  };
  const auto first = [](std::string_view text) { return plain_name(text.substr(0, 1)); };
  std::vector<std::string> near;
  std::ranges::copy_if(known, std::back_inserter(near), [&](const std::string& candidate) {
    return first(candidate) == first(name) && digits(candidate) == digits(name);
  });
  const std::string meant = did_you_mean(name, near);
  return meant.empty() ? type_to_copy(name) : meant + " Otherwise " + type_to_copy(name);
}

std::vector<std::string> catalogue_names() {
  std::vector<std::string> names;
  for (const auto& type : device_catalogue()) names.push_back(type.name);
  return names;
}

DeviceType complete(const DeviceType& given, const Reader& place) {
  DeviceType type = given;
  const DeviceType* known = find_in_catalogue(given.name);
  if (known && !stands_alone(given)) type = merged(*known, given);
  if (known) type.name = known->name;
  const auto require = [&](bool present, std::string_view key) {
    if (present) return;
    place.fail(fmt::format("\"{}\" is not in the catalogue, so `{}` must be given", given.name, key),
               unknown_type_hint(given.name, catalogue_names()));
  };
  require(type.memory_bytes > 0, "memory");
  require(type.memory_bandwidth_bytes_per_s > 0, "memory_bandwidth");
  require(!type.flop_per_s.empty(), "flops");
  if (type.efficiency.compute == 0 || type.efficiency.bandwidth == 0) {
    type.efficiency.basis = Basis::guess;
    if (type.training.products == 0 || type.training.elementwise == 0) type.training.basis = Basis::guess;
  }
  if (type.efficiency.compute == 0) type.efficiency.compute = 0.60;
  if (type.efficiency.bandwidth == 0) type.efficiency.bandwidth = 0.80;
  if (!type.reserve_bytes) type.reserve_bytes = type.vendor == "cpu" ? 0 : gibibyte;
  if (*type.reserve_bytes >= type.memory_bytes)
    place.fail(fmt::format("\"{}\" reserves {} of its {} of memory: nothing is left", given.name,
                           human_bytes(static_cast<double>(*type.reserve_bytes)),
                           human_bytes(static_cast<double>(type.memory_bytes))),
               "give a smaller `reserve`");
  return type;
}

// Types by their plain names, completed when they are first asked for.
class TypeTable {
 public:
  TypeTable(const ClusterDescription& description, const Reader& root) {
    for (std::size_t i = 0; i < description.device_types.size(); ++i) {
      const Reader place = at(root, {"device_type", i});
      DeviceType type = complete(description.device_types[i], place);
      if (!described_at_.emplace(plain_name(type.name), described_.size()).second)
        place.fail(fmt::format("device type \"{}\" is described twice", type.name), "put all its figures in one entry");
      described_.push_back(std::move(type));
    }
  }

  // Index into used().
  int use(std::string_view name, const Reader& place) {
    const DeviceType* known = find_in_catalogue(name);
    const auto [entry, added] =
        used_at_.emplace(plain_name(known ? known->name : name), static_cast<int>(used_.size()));
    if (!added) return entry->second;
    if (const auto described = described_at_.find(entry->first); described != described_at_.end())
      used_.push_back(described_[described->second]);
    else if (known)
      used_.push_back(complete(*known, place));
    else
      place.fail(fmt::format("device type \"{}\" is unknown", shortened(name)), unknown_type_hint(name, all_names()));
    return entry->second;
  }

  const std::string& name(int used) const { return used_[static_cast<std::size_t>(used)].name; }
  std::vector<DeviceType> take_used() { return std::move(used_); }

 private:
  std::vector<std::string> all_names() const {
    std::vector<std::string> names = catalogue_names();
    for (const auto& type : described_) names.push_back(type.name);
    return names;
  }

  std::vector<DeviceType> described_;
  std::vector<DeviceType> used_;
  std::map<std::string, std::size_t> described_at_;  // by plain names
  std::map<std::string, int> used_at_;               // by plain names
};

// ---- machines and devices ----

struct DeviceGroup {
  std::string_view type;
  std::int64_t count = 1;
};

DeviceGroup parse_group(std::string_view text, const Reader& place) {
  const auto trim = [](std::string_view s) {
    while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
    while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
    return s;
  };
  DeviceGroup group{trim(text.substr(0, text.find('*')))};
  if (const auto star = text.find('*'); star != std::string_view::npos) {
    const std::string_view number = trim(text.substr(star + 1));
    const auto [end, status] = std::from_chars(number.data(), number.data() + number.size(), group.count);
    if (status != std::errc() || end != number.data() + number.size() || group.count < 1 ||
        group.count > largest_cluster)
      place.fail(fmt::format("\"{}\" needs a count after the `*`", text), "write \"A6000*4\" for four devices");
  }
  if (group.type.empty())
    place.fail(fmt::format("\"{}\" needs a device type", text), "write \"A6000*4\" for four devices");
  return group;
}

void add_machines(Cluster& cluster, TypeTable& types, const Reader& root) {
  std::set<std::string, std::less<>> names;
  for (std::size_t m = 0; m < cluster.description.machines.size(); ++m) {
    const MachineDescription& described = cluster.description.machines[m];
    check_name(at(root, {"machine", m, "name"}), described.name);
    if (described.devices.empty())
      at(root, {"machine", m, "devices"})
          .fail("a machine needs at least one device", "give its devices, as in devices = [\"A6000*4\"]");
    std::vector<int> slots;  // types
    for (std::size_t d = 0; d < described.devices.size(); ++d) {
      const Reader place = at(root, {"machine", m, "devices", d});
      const DeviceGroup group = parse_group(described.devices[d], place);
      slots.insert(slots.end(), static_cast<std::size_t>(group.count),
                   group.type == empty_slot ? no_type : types.use(group.type, place));
    }
    if (std::ranges::count(slots, no_type) == std::ssize(slots))
      at(root, {"machine", m, "devices"}).fail("all slots of the machine are empty", "leave the machine out");
    const auto total =
        static_cast<std::int64_t>(cluster.devices.size()) + described.count * static_cast<std::int64_t>(slots.size());
    if (total > largest_cluster)
      at(root, {"machine", m})
          .fail(fmt::format("the cluster must have at most {} devices", largest_cluster), "reduce `count`");
    for (std::int64_t copy = 0; copy < described.count; ++copy) {
      Machine machine;
      machine.name = described.count == 1 ? described.name : fmt::format("{}-{}", described.name, copy);
      machine.site = described.site.empty() ? "default" : described.site;
      machine.description = static_cast<int>(m);
      if (!names.insert(machine.name).second)
        at(root, {"machine", m, "name"})
            .fail(fmt::format("machine \"{}\" is described twice", machine.name),
                  "give machines unique names; `count` makes copies");
      for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        const int type = slots[slot];
        if (type == no_type) continue;
        machine.through_host = machine.through_host || exchanges_through_host(types.name(type));
        machine.devices.push_back(static_cast<int>(cluster.devices.size()));
        cluster.devices.push_back(
            {fmt::format("{}/{}", machine.name, slot), type, static_cast<int>(cluster.machines.size())});
      }
      cluster.machines.push_back(std::move(machine));
    }
  }
}

// ---- links ----

using Names = std::set<std::string, std::less<>>;

Names machine_names(const Cluster& cluster) {
  Names names;
  for (const auto& machine : cluster.machines) names.insert(machine.name);
  return names;
}

Names site_names(const Cluster& cluster) {
  Names names;
  for (const auto& machine : cluster.machines) names.insert(machine.site);
  return names;
}

// A hint for a name that is not a machine's: copies are named one by one.
std::string machine_hint(const Cluster& cluster, std::string_view name, const Names& others = {}) {
  for (const auto& described : cluster.description.machines)
    if (described.name == name && described.count > 1)
      return fmt::format("its {0} copies are called {1}-0 to {1}-{2}", described.count, name, described.count - 1);
  std::vector<std::string> candidates;
  for (const auto& machine : cluster.machines) candidates.push_back(machine.name);
  candidates.insert(candidates.end(), others.begin(), others.end());
  return did_you_mean(
      name, candidates,
      fmt::format("choose one of {}",
                  fmt::join(candidates.begin(),
                            candidates.begin() + std::min<std::ptrdiff_t>(8, std::ssize(candidates)), ", ")));
}

void check_links(const Cluster& cluster, const Reader& root) {
  const Names machines = machine_names(cluster), sites = site_names(cluster);
  std::set<std::set<std::string>> seen;
  for (std::size_t i = 0; i < cluster.description.links.size(); ++i) {
    const auto& between = cluster.description.links[i].between;
    const Reader place = at(root, {"link", i, "between"});
    if (between.size() != 2)
      place.fail(fmt::format("a link needs two names, found {}", between.size()),
                 "write both, as in between = [\"home\", \"campus\"]");
    for (std::size_t end = 0; end < 2; ++end) {
      const Reader name_place = at(root, {"link", i, "between", end});
      const std::string& name = between[end];
      if (!machines.contains(name) && !sites.contains(name))
        name_place.fail(fmt::format("\"{}\" is neither a machine nor a site", name),
                        machine_hint(cluster, name, sites));
      if (machines.contains(name) && sites.contains(name))
        name_place.fail(fmt::format("\"{}\" is both a machine and a site", name), "give one of them another name");
    }
    const bool first_is_machine = machines.contains(between[0]);
    if (first_is_machine != machines.contains(between[1]))
      place.fail(fmt::format("\"{}\" is a {}, \"{}\" is a {}", between[0], first_is_machine ? "machine" : "site",
                             between[1], first_is_machine ? "site" : "machine"),
                 "give two machines or two sites");
    if (first_is_machine && between[0] == between[1])
      place.fail(fmt::format("\"{}\" is named twice", between[0]),
                 "describe links inside a machine with the machine's own `link`");
    if (!seen.insert({between[0], between[1]}).second)
      place.fail(fmt::format("the link between \"{}\" and \"{}\" is described twice", between[0], between[1]),
                 "use bandwidth_up and bandwidth_down if the directions differ");
  }
}

void check_driver(const Cluster& cluster, const Reader& root) {
  const auto& driver = cluster.description.driver;
  if (!driver || driver->machine.empty()) return;
  if (!machine_names(cluster).contains(driver->machine))
    at(root, {"driver", "machine"})
        .fail(fmt::format("\"{}\" is not a machine", driver->machine), machine_hint(cluster, driver->machine));
}

void check_matrix(const Cluster& cluster, const Reader& root) {
  const auto& matrix = cluster.description.network.matrix;
  if (!matrix) return;
  const std::size_t size = cluster.devices.size();
  const auto check = [&](const std::vector<std::vector<double>>& rows, std::string_view key) {
    const std::string hint = "give one row and one column for each device, in cluster order";
    if (rows.size() != size)
      at(root, {"network", "matrix", key}).fail(fmt::format("{} rows for {} devices", rows.size(), size), hint);
    for (std::size_t row = 0; row < size; ++row)
      if (rows[row].size() != size)
        at(root, {"network", "matrix", key, row})
            .fail(fmt::format("{} columns for {} devices", rows[row].size(), size), hint);
  };
  check(matrix->latency_s, "latency_ms");
  check(matrix->bandwidth_bytes_per_s, "bandwidth_gbit_s");
}

// ---- switches ----

void check_hosts(const Cluster& cluster, const Reader& root) {
  const Names machines = machine_names(cluster);
  std::map<std::string, std::string> switch_of;
  for (std::size_t i = 0; i < cluster.description.switches.size(); ++i) {
    const Switch& described = cluster.description.switches[i];
    for (std::size_t p = 0; p < described.ports.size(); ++p)
      for (std::size_t h = 0; h < described.ports[p].hosts.size(); ++h) {
        const std::string& host = described.ports[p].hosts[h];
        const Reader place = at(root, {"switch", i, "ports", p, "hosts", h});
        if (!machines.contains(host))
          place.fail(fmt::format("\"{}\" is not a machine", host), machine_hint(cluster, host));
        if (const auto [other, added] = switch_of.emplace(host, described.name); !added)
          place.fail(fmt::format("\"{}\" already has a port of switch \"{}\"", host, other->second),
                     "put each machine below one switch");
      }
  }
}

// The switches are one tree: following uplinks from any of them ends at the same root.
void check_switches(const Cluster& cluster, const Reader& root) {
  const auto& switches = cluster.description.switches;
  std::map<std::string, std::size_t, std::less<>> by_name;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < switches.size(); ++i) {
    check_name(at(root, {"switch", i, "name"}), switches[i].name);
    if (!by_name.emplace(switches[i].name, i).second)
      at(root, {"switch", i, "name"})
          .fail(fmt::format("switch \"{}\" is described twice", switches[i].name), "give unique names");
    names.push_back(switches[i].name);
  }
  std::string common_root;
  std::vector<std::size_t> visited(switches.size(), 0);  // the walk that came by, counted from 1
  for (std::size_t i = 0; i < switches.size(); ++i) {
    std::string top = switches[i].name;
    for (auto at_top = by_name.find(top); at_top != by_name.end(); at_top = by_name.find(top)) {
      const std::size_t walk = std::exchange(visited[at_top->second], i + 1);
      if (walk == i + 1)
        at(root, {"switch", i, "uplink"})
            .fail(fmt::format("the uplinks from \"{}\" form a cycle", switches[i].name),
                  "remove the uplink of the root");
      if (walk > 0) top = common_root;  // where the earlier walk ended
      if (walk > 0 || !switches[at_top->second].uplink) break;
      top = switches[at_top->second].uplink->to;
    }
    if (common_root.empty()) common_root = top;
    if (top != common_root)
      at(root, {"switch", i, "uplink"})
          .fail(fmt::format("the switches have two roots, \"{}\" and \"{}\"", common_root, top),
                did_you_mean(by_name.contains(top) ? common_root : top, names, "give all switches but one an uplink"));
  }
  check_hosts(cluster, root);
}

// Errors name the place in the document that `description` was read from.
Cluster resolve_document(ClusterDescription description, const Reader& root) {
  Cluster cluster;
  cluster.description = std::move(description);
  if (cluster.description.machines.empty())
    root.fail("the cluster has no machine", "add a [[machine]] with name and devices");
  TypeTable types(cluster.description, root);
  add_machines(cluster, types, root);
  cluster.types = types.take_used();
  check_links(cluster, root);
  check_driver(cluster, root);
  check_matrix(cluster, root);
  check_switches(cluster, root);
  cluster.description.device_types = cluster.types;
  return cluster;
}

}  // namespace

Schema<Cluster> schema_of(Bound<Cluster>) {
  const SchemaDoc& file = schema<ClusterDescription>().doc();
  return Schema<Cluster>(file.name, file.doc)
      .format(file.format)
      .flatten(&Cluster::description)
      .derive([](Cluster& cluster, const Reader& reader) {
        cluster = resolve_document(std::move(cluster.description), reader);
      });
}

Cluster resolve(ClusterDescription description, std::string source) {
  const Value document = write(description);
  return resolve_document(std::move(description), Reader(document, std::move(source)));
}

}  // namespace motley
