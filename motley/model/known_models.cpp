#include "motley/model/known_models.hpp"

#include <filesystem>

#include "motley/base/paths.hpp"
#include "motley/model/model.hpp"

namespace motley {

std::optional<std::string> largest_known_model(std::int64_t free_bytes, DType type) {
  constexpr std::int64_t reserve_bytes = std::int64_t{1} << 30, tokens = 4096;
  std::optional<std::string> largest;
  std::int64_t most = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(data_folder() / "models", none)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    const Architecture arch = read_model(entry.path().string()).arch;
    const std::int64_t parameters = total_parameters(arch);
    const std::int64_t kv_bytes = tokens * kv_bytes_per_token(arch, {0, arch.layers}, DType::bf16);
    if (parameters <= most || bytes_of(type, parameters) + kv_bytes + reserve_bytes > free_bytes) continue;
    most = parameters;
    largest = entry.path().filename().string();
  }
  return largest;
}

}  // namespace motley
