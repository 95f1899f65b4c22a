// A folder whose tensors hold those of all experts, as gpt-oss's does.
#include <algorithm>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/stored_rows.hpp"
#include "motley/model/families/families.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  return refused_or_read([&] {
    const std::filesystem::path file = file_of(text_of(data, size), ".safetensors"), folder = file.parent_path();
    std::filesystem::rename(file, folder / "model.safetensors");
    if (!std::filesystem::exists(folder / "config.json"))
      write_file(folder / "config.json", R"({"model_type": "gpt_oss"})");
    const Checkpoint checkpoint(folder, tensor_naming);
    for (const std::string& name : checkpoint.names()) {
      const StoredRows rows(checkpoint, name, checkpoint.find(name).tensor.shape);
      std::vector<float> values(static_cast<std::size_t>(rows.width()));
      rows.values(0, 0, rows.width(), values.data());
    }
  });
}
