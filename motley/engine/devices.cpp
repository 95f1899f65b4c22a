#include "motley/engine/devices.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "motley/base/error.hpp"
#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/cuda/cuda_device.hpp"
#include "motley/engine/library_device.hpp"

namespace motley {
namespace {

constexpr int most_devices = 128;  // LibTorch numbers them by int8

// The N of KIND:N.
std::optional<int> index_in(std::string_view name, std::string_view kind) {
  if (!name.starts_with(kind)) return std::nullopt;
  name.remove_prefix(kind.size());
  if (!name.starts_with(':')) return std::nullopt;
  name.remove_prefix(1);
  int index = -1;
  const char* end = name.data() + name.size();
  const auto [rest, failure] = std::from_chars(name.data(), end, index);
  if (failure != std::errc() || rest != end || index < 0 || index >= most_devices) return std::nullopt;
  return index;
}

}  // namespace

const ComputeDevice& open_device(const std::string& name) {
  if (name == "cpu") return cpu_device();
  if (const auto index = index_in(name, "cuda")) return open_cuda_device(*index, name);
  if (const char* library = std::getenv("MOTLEY_TEST_DEVICES"); library != nullptr && *library != '\0')
    if (const auto index = index_in(name, "apart")) return open_library_device(library, *index, name);
  throw input_error(fmt::format("unknown backend \"{}\"", name), "choose cpu, cuda:0, cuda:1, ...");
}

}  // namespace motley
