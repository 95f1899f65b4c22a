#include "motley/workers/copy_list.hpp"

#include <fmt/format.h>

namespace motley {
namespace {

constexpr double most_bytes_per_s = 1e14, most_latency_s = 10;  // far from any device's

// Range-checked beyond the schema, which knows what people write.
bool is_copy(const CopyRates& rates) {
  return rates.upload_bytes_per_s > 0 && rates.upload_bytes_per_s <= most_bytes_per_s &&
         rates.download_bytes_per_s > 0 && rates.download_bytes_per_s <= most_bytes_per_s && rates.latency_s > 0 &&
         rates.latency_s <= most_latency_s;
}

void check(const CopyList& list, const std::vector<std::string>& devices) {
  const auto wrong = [] { throw Error(ErrorCode::peer, "not what was asked for"); };
  if (list.devices.size() != devices.size() || list.links.size() != devices.size() * (devices.size() - 1)) wrong();
  for (std::size_t i = 0; i < devices.size(); ++i)
    if (list.devices[i].device != devices[i] || !is_copy(list.devices[i].alone) || !is_copy(list.devices[i].at_once))
      wrong();
  for (const DeviceLink& link : list.links)
    if (link.speed.bandwidth_bytes_per_s > most_bytes_per_s || link.speed.latency_s > most_latency_s) wrong();
}

}  // namespace

Schema<DeviceCopies> schema_of(Bound<DeviceCopies>) {
  using D = DeviceCopies;
  return Schema<D>("device_copies", "Copies between a device and its host.")
      .field("device", &D::device, "Its name.", {.required = true})
      .field("alone", &D::alone, "Each direction by itself.", {.required = true})
      .field("at_once", &D::at_once, "Both at the same time.", {.required = true})
      .field("free_bytes", &D::free_bytes, "Free of its memory.", {.min = 0, .max = 0x1p48});
}

Schema<DeviceLink> schema_of(Bound<DeviceLink>) {
  return Schema<DeviceLink>("device_link", "From a device to another.")
      .field("from", &DeviceLink::from, "A device.", {.required = true})
      .field("to", &DeviceLink::to, "Another.", {.required = true})
      .flatten(&DeviceLink::speed);
}

Schema<CopyList> schema_of(Bound<CopyList>) {
  return Schema<CopyList>("copies", "Measured copies.")
      .field("devices", &CopyList::devices, "To and from their hosts.", {.required = true})
      .field("links", &CopyList::links, "From device to device.");
}

CopyList list_copies(const std::filesystem::path& program, const std::vector<std::string>& devices,
                     const Variables& environment, double within_s) {
  ChildQuestion question{.program = program,
                         .arguments = {"--copies"},
                         .environment = environment,
                         .within_s = within_s,
                         .purpose = "measures copies",
                         .hint = "it is planned with usual rates; run the command by hand to see what fails"};
  question.arguments.insert(question.arguments.end(), devices.begin(), devices.end());
  const auto [answer, code] = ask_child(question);
  if (code != 0) throw child_failure(question, fmt::format("ended with exit code {}", code));
  try {
    CopyList list = read<CopyList>(parse_json(answer, "its answer"), "its answer");
    check(list, devices);
    return list;
  } catch (const Error& error) {
    throw child_failure(question, fmt::format("answers what cannot be read: {}", error.what()));
  }
}

}  // namespace motley
