// How fast bytes cross between a device and its host, or from device to device, as `motley-worker --copies` measures
// them: the process opens the devices, and ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/workers/child_answer.hpp"

namespace motley {

struct DeviceCopies {
  std::string device;           // "cuda:0"
  CopyRates alone;              // each direction by itself
  CopyRates at_once;            // both directions at the same time
  std::int64_t free_bytes = 0;  // of its memory; 0: nothing tells
  bool operator==(const DeviceCopies&) const = default;
};
Schema<DeviceCopies> schema_of(Bound<DeviceCopies>);

struct DeviceLink {
  std::string from, to;
  LinkSpeed speed;
  bool operator==(const DeviceLink&) const = default;
};
Schema<DeviceLink> schema_of(Bound<DeviceLink>);

struct CopyList {
  std::vector<DeviceCopies> devices;  // as they were asked for
  std::vector<DeviceLink> links;      // of each ordered pair of them
  bool operator==(const CopyList&) const = default;
};
Schema<CopyList> schema_of(Bound<CopyList>);

// Runs `program --copies DEVICE...` with these variables. Throws an environment error, with a hint, where it cannot be
// started, fails, has not ended in time, or answers what no such program does.
CopyList list_copies(const std::filesystem::path& program, const std::vector<std::string>& devices,
                     const Variables& environment, double within_s = 30);

}  // namespace motley
