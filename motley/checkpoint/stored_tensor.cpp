#include "motley/checkpoint/stored_tensor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr const char* a_model = "give a model folder with config.json and model.safetensors, or a GGUF file";

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    throw input_error(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)), a_model);
  struct stat status {};
  const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size_ = is_file ? static_cast<std::size_t>(status.st_size) : 0;
  void* mapping = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0) : nullptr;
  const int cause = errno;
  ::close(descriptor);
  if (!is_file) throw input_error(fmt::format("{} is not a file", path.string()), a_model);
  if (mapping == MAP_FAILED)
    throw Error(ErrorCode::environment, fmt::format("cannot map {}: {}", path.string(), std::strerror(cause)));
  data_ = static_cast<const std::byte*>(mapping);
  if (data_) guard_.emplace(bytes(), path);
}

MappedFile::~MappedFile() {
  guard_.reset();
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void check_no_overlap(const std::map<std::string, StoredTensor>& tensors, const std::filesystem::path& path) {
  std::vector<std::pair<std::span<const std::byte>, std::string_view>> ranges;
  for (const auto& [name, tensor] : tensors)
    if (!tensor.bytes.empty()) ranges.emplace_back(tensor.bytes, name);
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.first.data() < b.first.data(); });
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i - 1].first.data() + ranges[i - 1].first.size() > ranges[i].first.data())
      throw input_error(
          fmt::format("{}: the bytes of {} and {} overlap", path.string(), ranges[i - 1].second, ranges[i].second),
          copy_again);
}

}  // namespace motley
