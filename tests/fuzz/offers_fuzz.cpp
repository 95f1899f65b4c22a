#include "motley/plan/rent_plan.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  return refused_or_read([&] { read_offers(file_of(text_of(data, size), ".json")); });
}
