// Event files that TensorBoard reads: TFRecord frames of `Event` messages (protocol buffers), written without either
// library, for a run needs three of their fields.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "motley/comm/net/file_descriptor.hpp"

namespace motley {

class TensorBoardFile {
 public:
  struct Scalar {
    std::string_view name;
    double value = 0;  // kept as a float
  };

  // Makes `folder`/events.out.tfevents.TIME.HOST.PROCESS. TensorBoard forgets what earlier files of the folder say of
  // steps from `first_step` on. Throws an environment error where it cannot be written, as add() does.
  TensorBoardFile(const std::filesystem::path& folder, std::int64_t first_step);
  void add(std::int64_t step, const std::vector<Scalar>& scalars) const;

 private:
  void write_record(std::string_view event) const;

  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace motley
