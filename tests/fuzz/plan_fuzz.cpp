#include "motley/plan/plan.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  // A plan that can be read can be checked, whatever it says.
  return refused_or_read([&] { verify(read_plan(parse_json(text_of(data, size), "plan.json"), "plan.json")); });
}
