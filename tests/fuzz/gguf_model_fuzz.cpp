#include <vector>

#include "motley/checkpoint/stored_rows.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/model.hpp"
#include "motley/model/part_tensors.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace motley;

// The first and the last row, as a worker reads them.
void read_rows(const Checkpoint& checkpoint, const TensorSpec& tensor) {
  const StoredRows rows(checkpoint, tensor.name, tensor.shape);
  std::vector<float> values(static_cast<std::size_t>(rows.width()));
  for (const std::int64_t row : {std::int64_t{0}, tensor.shape[0] - 1})
    rows.values(row, 0, rows.width(), values.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return refused_or_read([&] {
    const std::filesystem::path path = file_of(text_of(data, size), ".gguf");
    const Architecture arch = read_model(path.string()).arch;
    const Checkpoint checkpoint(path, tensor_naming);
    for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch))) read_rows(checkpoint, tensor);
  });
}
