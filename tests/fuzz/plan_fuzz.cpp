#include "motley/base/value.hpp"
#include "motley/plan/chain.hpp"
#include "motley/plan/plan.hpp"
#include "motley/plan/rent.hpp"
#include "motley/plan/train.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  // A plan that can be read can be checked, whatever it says.
  return refused_or_read([&] {
    const Value value = parse_json(text_of(data, size), "plan.json");
    const Value* kind = value.is_object() ? value.find("kind") : nullptr;
    const std::string name = kind != nullptr && kind->is_string() ? kind->as_string() : "serve";
    if (name == "rent")
      verify(read_rent_plan(value, "plan.json"));
    else if (name == "train")
      verify(read_train_plan(value, "plan.json"));
    else if (name == "chain")
      verify(read_chain_plan(value, "plan.json"));
    else
      verify(read_plan(value, "plan.json"));
  });
}
