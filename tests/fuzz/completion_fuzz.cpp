#include "motley/base/value.hpp"
#include "motley/server/openai_api.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  if (size == 0) return 0;
  return refused_or_read([&] {
    const Value body = parse_json(text_of(data + 1, size - 1), "body");
    parse_completion_request(body, data[0] % 2 == 0 ? ApiKind::chat : ApiKind::completion, 1000);
  });
}
