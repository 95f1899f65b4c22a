#include "motley/cluster/cluster.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  return refused_or_read([&] { read_cluster(file_of(text_of(data, size), ".toml")); });
}
