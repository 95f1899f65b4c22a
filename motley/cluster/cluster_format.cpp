// The tables of motley.cluster/1.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "motley/base/dtype.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/cluster/names.hpp"

namespace motley {
namespace {

std::vector<std::string> rate_types() {
  std::vector<std::string> names;
  for (const DTypeRow& row : dtypes())
    if (row.is_rated) names.emplace_back(row.name);
  return names;
}

const std::vector<std::string> vendors = {"nvidia", "amd", "intel", "huawei", "apple", "cpu"};

FieldDoc vendor_row() {
  return {"vendor", fmt::format("`{}`", fmt::join(vendors, "`, `")), "", "Vendor; `cpu` for cores of a host.", false,
          {}};
}

using Matrix = std::vector<std::vector<double>>;

// Reads numbers in `unit` base units; the diagonal becomes 0.
Matrix read_matrix(const Reader& reader, double unit, const Limits& limits) {
  if (!reader.value().is_array())
    reader.expected("a list of lists of numbers", "the name of a CSV file is accepted in a cluster file only");
  Matrix matrix;
  for (const auto& row : reader.value().as_array()) {
    const std::size_t from = matrix.size();
    const Reader row_reader = reader.item(from, row);
    if (!row.is_array()) row_reader.expected("a list of numbers");
    std::vector<double> numbers;
    for (const auto& cell : row.as_array()) {
      const std::size_t to = numbers.size();
      numbers.push_back(from == to ? 0 : binding::read_number(row_reader.item(to, cell), limits) * unit);
    }
    matrix.push_back(std::move(numbers));
  }
  return matrix;
}

// The number of units that reads back to exactly `value`, where there is one: the quotient or a neighbour of it.
double in_units(double value, double unit) {
  const double quotient = value / unit;
  for (const double candidate : {quotient, std::nextafter(quotient, 0.0), std::nextafter(quotient, HUGE_VAL)})
    if (candidate * unit == value) return candidate;
  return quotient;
}

Value write_matrix(const Matrix& matrix, double unit) {
  Value rows = Value::array();
  for (const auto& row : matrix) {
    Value numbers = Value::array();
    for (const double value : row) numbers.push_back(in_units(value, unit));
    rows.push_back(std::move(numbers));
  }
  return rows;
}

FieldDoc matrix_row(std::string key, std::string doc) {
  return {std::move(key), "CSV file or list of lists of numbers", "", std::move(doc), true, {}, true};
}

constexpr double millisecond_s = 1e-3;
constexpr double gbit_per_s = 0.125e9;  // in bytes

}  // namespace

FieldDoc flops_row(bool required) {
  return {"flops",
          "table of quantity: " + accepted_units(Dimension::flop_per_s),
          "above 0 FLOP/s",
          fmt::format("Dense peak with fp32 accumulation, by data type: {}.", fmt::join(rate_types(), ", ")),
          required,
          {},
          required};
}

std::map<std::string, double> read_flops(const Reader& reader) {
  if (!reader.value().is_object()) reader.expected("a table such as { fp16 = \"76.7 TFLOP/s\" }");
  binding::check_keys(reader, rate_types());
  std::map<std::string, double> rates;
  for (const auto& [type, rate] : reader.value().as_object())
    rates[type] = binding::read_quantity(reader.member(type, rate), Dimension::flop_per_s, {.above = 0});
  return rates;
}

Value write_flops(const std::map<std::string, double>& flop_per_s) {
  Value table = Value::object();
  for (const auto& [type, rate] : flop_per_s) table.set(type, format_quantity(rate, Dimension::flop_per_s));
  return table;
}

Schema<LinkSpeed> schema_of(Bound<LinkSpeed>) {
  using L = LinkSpeed;
  return Schema<L>("speed",
                   "How fast bytes travel. `bandwidth`, or both `bandwidth_up` and `bandwidth_down`, must be given.")
      .quantity("latency", &L::latency_s, Dimension::seconds, "One way; latencies add up along a path.",
                {.required = true, .min = 0})
      .quantity("bandwidth", &L::bandwidth_bytes_per_s, Dimension::bytes_per_s, "Bandwidth of the path.", {.above = 0})
      .quantity("bandwidth_up", &L::bandwidth_up_bytes_per_s, Dimension::bytes_per_s,
                "Bandwidth from the first named to the second, where directions differ; inside a machine or site, what "
                "leaves a device.",
                {.above = 0})
      .quantity("bandwidth_down", &L::bandwidth_down_bytes_per_s, Dimension::bytes_per_s,
                "Bandwidth from the second named to the first; inside a machine or site, what reaches a device.",
                {.above = 0})
      .quantity("per_flow_bandwidth", &L::per_flow_bandwidth_bytes_per_s, Dimension::bytes_per_s,
                "Bandwidth of one stream, if a stream reaches less than the path.", {.above = 0})
      .check([](const L& speed, const Reader& reader) {
        const bool both = speed.bandwidth_up_bytes_per_s > 0 && speed.bandwidth_down_bytes_per_s > 0;
        if (speed.bandwidth_bytes_per_s == 0 && !both)
          reader.fail("`bandwidth` is missing", "give bandwidth = \"10 Gbit/s\", or bandwidth_up and bandwidth_down");
      });
}

EnumNames<Basis> names_of(Bound<Basis>) {
  return {{Basis::given, "given"},
          {Basis::measured, "measured"},
          {Basis::generation, "generation"},
          {Basis::guess, "guess"}};
}

namespace {
constexpr const char* basis_doc =
    "What the shares rest on: the cluster file (`given`), measurements of this type (`measured`), of its generation, "
    "or "
    "of other types (`guess`). Default: `given`.";
}  // namespace

Schema<Efficiency> schema_of(Bound<Efficiency>) {
  return Schema<Efficiency>("efficiency", "Reached shares of the peaks; calibrate them per machine.")
      .field("compute", &Efficiency::compute,
             "Share of the peak FLOP/s in large matrix products. Default: the catalogue's, else 0.60.",
             {.above = 0, .max = 1})
      .field("bandwidth", &Efficiency::bandwidth,
             "Share of the peak memory bandwidth. Default: the catalogue's, else 0.80.", {.above = 0, .max = 1})
      .field("attention_compute", &Efficiency::attention_compute,
             "Share of the peak FLOP/s in the attention of many tokens at once. Default: `compute`.",
             {.above = 0, .max = 1})
      .field(
          "attention_bandwidth", &Efficiency::attention_bandwidth,
          "Share of the peak memory bandwidth in the attention of one token to the earlier ones. Default: `bandwidth`.",
          {.above = 0, .max = 1})
      .field("quantised_bandwidth", &Efficiency::quantised_bandwidth,
             "Share of the peak memory bandwidth that streaming quantised weights reaches: they are unpacked on the "
             "way. Default: the catalogue's, else 0.8 of `bandwidth`.",
             {.above = 0, .max = 1})
      .field("elementwise", &Efficiency::elementwise,
             "Share of the peak memory bandwidth in norms, residual sums and activations. Default: the catalogue's; "
             "where `compute` is given, their time is part of it.",
             {.above = 0, .max = 1})
      .field("in_turn", &Efficiency::in_turn,
             "Products do not compute while they read weights: both times add up, as on processors. Default: false.")
      .field("basis", &Efficiency::basis, basis_doc);
}

Schema<TrainingShares> schema_of(Bound<TrainingShares>) {
  return Schema<TrainingShares>("training_shares", "Shares of the peaks that the parts of a training step reach.")
      .field("products", &TrainingShares::products,
             "Share of the peak FLOP/s in the matrix products of a micro-batch. Default: `efficiency.compute`.",
             {.above = 0, .max = 1})
      .field("attention", &TrainingShares::attention,
             "Share of the peak FLOP/s in causal attention. Default: `efficiency.attention_compute`.",
             {.above = 0, .max = 1})
      .field("elementwise", &TrainingShares::elementwise,
             "Share of the peak memory bandwidth in norms, residual sums, activations and the loss. Default: "
             "`efficiency.bandwidth`.",
             {.above = 0, .max = 1})
      .field("basis", &TrainingShares::basis, basis_doc);
}

Schema<Overhead> schema_of(Bound<Overhead>) {
  return Schema<Overhead>("overhead", "Time beyond the computation: launches, scheduling, framing.")
      .quantity("layer", &Overhead::layer_s, Dimension::seconds, "Time per layer and step.",
                {.required = true, .min = 0})
      .quantity("step", &Overhead::step_s, Dimension::seconds, "Time per stage and step.",
                {.required = true, .min = 0});
}

Schema<CopyRates> schema_of(Bound<CopyRates>) {
  using C = CopyRates;
  return Schema<C>("copies", "Between a device's memory and its host's, as rates that are reached.")
      .quantity("upload", &C::upload_bytes_per_s, Dimension::bytes_per_s,
                "From the host's memory. Default: `upload` of the machine's `host`.", {.above = 0})
      .quantity("download", &C::download_bytes_per_s, Dimension::bytes_per_s,
                "To the host's memory. Default: as `upload`.", {.above = 0})
      .quantity("latency", &C::latency_s, Dimension::seconds, "Of one copy. Default: 10 us.", {.above = 0});
}

Schema<DeviceType> schema_of(Bound<DeviceType>) {
  using D = DeviceType;
  return Schema<D>("device_type",
                   "A device type that is not in the catalogue, or figures that override those of the catalogue one by "
                   "one. An entry with all of vendor, memory, memory_bandwidth, flops, efficiency and reserve replaces "
                   "the catalogue's.")
      .field("name", &D::name, "Name for `devices`; a name of the catalogue overrides that entry.", {.required = true})
      .custom<std::string>(
          vendor_row(), &D::vendor, [](const Reader& reader) { return binding::read_choice(reader, vendors); },
          binding::write_any<std::string>)
      .quantity("memory", &D::memory_bytes, Dimension::bytes, "Memory of one device.", {.above = 0})
      .quantity("memory_bandwidth", &D::memory_bandwidth_bytes_per_s, Dimension::bytes_per_s, "Peak.", {.above = 0})
      .custom<std::map<std::string, double>>(flops_row(false), &D::flop_per_s, read_flops, write_flops)
      .field("efficiency", &D::efficiency, "Reached shares of the peaks.")
      .field("training", &D::training,
             "The same of the parts of a training step. Default: the catalogue's; where `efficiency` is given for a "
             "type of the catalogue, its shares.")
      .field("overhead", &D::overhead, "Time beyond the computation. Default: the cost form's.")
      .field("copies", &D::copies, "Between its memory and the host's.")
      .quantity("reserve", &D::reserve_bytes, Dimension::bytes,
                "Memory kept free for context, workspace and fragmentation. Default: 1 GiB; a CPU: 0; unified memory: "
                "a quarter.",
                {.min = 0})
      .quantity("price", &D::usd_per_hour, Dimension::usd_per_hour,
                "Price of renting one device. Default: the catalogue's median.", {.above = 0});
}

Schema<Disk> schema_of(Bound<Disk>) {
  return Schema<Disk>("disk", "Disk for offloaded bytes.")
      .quantity("capacity", &Disk::capacity_bytes, Dimension::bytes, "Usable capacity.", {.required = true, .above = 0})
      .quantity("read", &Disk::read_bytes_per_s, Dimension::bytes_per_s, "Sequential.", {.required = true, .above = 0})
      .quantity("write", &Disk::write_bytes_per_s, Dimension::bytes_per_s, "Sequential.",
                {.required = true, .above = 0})
      .quantity("both", &Disk::both_bytes_per_s, Dimension::bytes_per_s,
                "Bytes read and written together, with both at once. Default: the sum, as if neither slowed the other.",
                {.above = 0});
}

Schema<HostRates> schema_of(Bound<HostRates>) {
  using H = HostRates;
  return Schema<H>("host", "What host memory and processors do for the devices, as rates that are reached.")
      .quantity("upload", &H::upload_bytes_per_s, Dimension::bytes_per_s,
                "From host memory to one device. Default: 12 GB/s; of a CPU half its memory bandwidth.", {.above = 0})
      .quantity("download", &H::download_bytes_per_s, Dimension::bytes_per_s,
                "From one device to host memory. Default: as `upload`.", {.above = 0})
      .quantity("bandwidth", &H::bandwidth_bytes_per_s, Dimension::bytes_per_s,
                "Of host memory, shared by processors, devices and disk. Default: 40 GB/s; of a CPU its own.",
                {.above = 0})
      .quantity("flops", &H::flop_per_s, Dimension::flop_per_s,
                "Of the host's processors together, in fp32. Default: 0.5 TFLOP/s; of a CPU its own.", {.above = 0});
}

Schema<Reduction> schema_of(Bound<Reduction>) {
  return Schema<Reduction>("reduction", "Cost of adding received vectors on a machine.")
      .quantity("add", &Reduction::add_s_per_byte, Dimension::seconds_per_byte, "The arithmetic (GenModel's gamma).",
                {.required = true, .min = 0})
      .quantity("access", &Reduction::access_s_per_byte, Dimension::seconds_per_byte,
                "Reading and writing memory (GenModel's delta).", {.required = true, .min = 0});
}

Schema<MachineDescription> schema_of(Bound<MachineDescription>) {
  using M = MachineDescription;
  return Schema<M>("machine", "Devices that share a host.")
      .field("name", &M::name, "Unique; letters, digits, `.`, `-`, `_`.", {.required = true})
      .field("count", &M::count, "Number of identical machines; above 1 they are name-0 to name-(n-1). Default 1.",
             {.min = 1, .max = 100000})
      .field("site", &M::site, "Machines of a site share a fast network. Default: `default`.")
      .field("devices", &M::devices, "Types in slot order, repeated with `*`: `A6000*4`. `empty` leaves a slot out.",
             {.required = true})
      .field("link", &M::link, "Link between the devices of this machine. Default: `network.within_machine`.")
      .quantity("host_memory", &M::host_memory_bytes, Dimension::bytes, "For offloading, and for copies of weights.",
                {.above = 0})
      .field("disk", &M::disk, "For offloading.")
      .field("host", &M::host, "For offloading: how fast host memory and processors are.")
      .quantity("price", &M::usd_per_hour, Dimension::usd_per_hour, "Price of renting the machine.", {.min = 0})
      .field("address", &M::address, "Where workers are started.")
      .field("reduction", &M::reduction, "Default: `network.reduction`.");
}

Schema<NamedLink> schema_of(Bound<NamedLink>) {
  return Schema<NamedLink>(
             "link",
             "A link between two machines or two sites, or (with one site named twice) between the machines of a site.")
      .field("between", &NamedLink::between, "Two names.", {.required = true})
      .flatten(&NamedLink::speed);
}

Schema<NetworkMatrix> schema_of(Bound<NetworkMatrix>) {
  using M = NetworkMatrix;
  return Schema<M>("matrix",
                   "Measured links. Row = from, column = to, devices in cluster order; the diagonal is not read. CSV "
                   "files have no header, and their paths are relative to the cluster file.")
      .custom<Matrix>(
          matrix_row("latency_ms", "One-way latency in milliseconds; at least 0."), &M::latency_s,
          [](const Reader& reader) { return read_matrix(reader, millisecond_s, {.min = 0}); },
          [](const Matrix& matrix) { return write_matrix(matrix, millisecond_s); })
      .custom<Matrix>(
          matrix_row("bandwidth_gbit_s", "Gbit/s; above 0."), &M::bandwidth_bytes_per_s,
          [](const Reader& reader) { return read_matrix(reader, gbit_per_s, {.above = 0}); },
          [](const Matrix& matrix) { return write_matrix(matrix, gbit_per_s); });
}

Schema<Network> schema_of(Bound<Network>) {
  using N = Network;
  return Schema<N>("network",
                   "Links by distance. More specific descriptions win: matrix, then link, then the machine's own, then "
                   "these.")
      .field("within_machine", &N::within_machine, "Default: 10 us, 20 GB/s.")
      .field("within_site", &N::within_site, "Default: 0.2 ms, 10 Gbit/s.")
      .field("between_sites", &N::between_sites, "No default.")
      .field("matrix", &N::matrix, "Measured links; they replace every other description.")
      .field("reduction", &N::reduction, "For machines without their own.");
}

Schema<SwitchUplink> schema_of(Bound<SwitchUplink>) {
  return Schema<SwitchUplink>("uplink", "The link from a switch towards the root.")
      .field("to", &SwitchUplink::to, "A switch; one that is not described is the root.", {.required = true})
      .flatten(&SwitchUplink::speed);
}

Schema<SwitchPort> schema_of(Bound<SwitchPort>) {
  return Schema<SwitchPort>("port", "Machines below a switch, each with a link of this speed.")
      .field("hosts", &SwitchPort::hosts, "Names of machines.", {.required = true})
      .flatten(&SwitchPort::speed);
}

Schema<Incast> schema_of(Bound<Incast>) {
  return Schema<Incast>("incast", "Cost of many senders to one port (GenModel's w_t and epsilon).")
      .field("threshold", &Incast::threshold, "Most senders without extra cost.", {.required = true, .min = 1})
      .quantity("cost", &Incast::cost_s_per_byte, Dimension::seconds_per_byte,
                "Time per byte and per sender above the threshold.", {.required = true, .min = 0});
}

Schema<Switch> schema_of(Bound<Switch>) {
  return Schema<Switch>("switch", "A switch of the physical tree, for collectives.")
      .field("name", &Switch::name, "Unique.", {.required = true})
      .field("uplink", &Switch::uplink, "Omitted for the root.")
      .field("ports", &Switch::ports, "Machines below it.")
      .field("incast", &Switch::incast, "Cost of many senders to one of its ports.");
}

Schema<DriverCost> schema_of(Bound<DriverCost>) {
  return Schema<DriverCost>("driver", "Where requests enter and tokens come out.")
      .field("machine", &DriverCost::machine,
             "Machine at which it is: tokens take the links from the last stage to it, and from it to the first. "
             "Default: the first stage's machine, with the links in `step`.")
      .quantity("step", &DriverCost::step_s, Dimension::seconds,
                "Time from the last stage's answer to the next step on the first stage, in addition to the links from "
                "and to `machine`; replaces the link between the two stages.",
                {.min = 0})
      .quantity("request", &DriverCost::request_s, Dimension::seconds,
                "Time per request in addition to its steps: connection, tokenizing, first event.", {.min = 0});
}

Schema<LocalHost> schema_of(Bound<LocalHost>) {
  return Schema<LocalHost>("local", "All devices are worker processes of one host.")
      .field("cores", &LocalHost::cores, "Cores that the workers share.", {.required = true, .min = 1, .max = 100000});
}

Schema<ClusterDescription> schema_of(Bound<ClusterDescription>) {
  using C = ClusterDescription;
  return Schema<C>("cluster", "Devices, their machines and sites, and the links between them.")
      .format("motley.cluster/1")
      .field("name", &C::name, "Shown in reports.")
      .field("machine", &C::machines, "Machines; their order is the order of the devices.", {.required = true})
      .field("device_type", &C::device_types, "Device types in addition to the catalogue's.")
      .field("network", &C::network, "Links by distance.")
      .field("link", &C::links, "Links by name.")
      .field("switch", &C::switches, "The physical tree, for collectives.")
      .field("driver", &C::driver, "Where requests enter. Default: next to the first and the last stage.")
      .field("local", &C::local, "Set where all devices run on one host.");
}

}  // namespace motley
