#include "motley/engine/device/test_faults.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "motley/base/error.hpp"

namespace motley {

TestFault read_test_fault(std::string_view text) {
  constexpr std::string_view kind = "illegal_access@";
  TestFault fault;
  if (text.starts_with(kind)) {
    const char *begin = text.data() + kind.size(), *end = text.data() + text.size();
    const auto [rest, failure] = std::from_chars(begin, end, fault.step);
    const bool named = failure == std::errc() && rest != end && *rest == ',' && rest + 1 != end;
    if (named) fault.device = std::string(rest + 1, end);
    if (failure == std::errc() && fault.step > 0 && (named || rest == end)) return fault;
  }
  throw input_error(fmt::format("MOTLEY_FAULT={} does not name a fault", text),
                    "give illegal_access@STEP, as illegal_access@30, or illegal_access@30,box/0 for one device");
}

std::optional<TestFault> asked_test_fault() {
  const char* text = std::getenv("MOTLEY_FAULT");
  if (text == nullptr || std::getenv("MOTLEY_TEST_DEVICES") == nullptr) return std::nullopt;
  return read_test_fault(text);
}

void access_illegally(const ComputeDevice& device) {
  constexpr std::uintptr_t nowhere = 8;
  const at::TensorOptions options = at::TensorOptions(at::kByte).device(device.place());
  at::for_blob(reinterpret_cast<void*>(nowhere), {1})
      .options(options)
      .target_device(device.place())
      .make_tensor()
      .fill_(1);
}

}  // namespace motley
