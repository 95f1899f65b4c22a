#include "motley/cli/deployment_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>

#include <span>

#include "motley/checkpoint/digest.hpp"
#include "motley/checkpoint/manifest.hpp"
#include "motley/cli/agents.hpp"

namespace motley::cli {

DeploymentFile::DeploymentFile(const std::string& name) {
  if (name.empty()) return;
  const std::filesystem::path folder = user_folder("XDG_STATE_HOME", ".local/state") / "deployments";
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  file_ = folder / (name + ".json");
  lock_ = FileDescriptor(::open((folder / (name + ".lock")).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock_ && ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) lock_ = FileDescriptor();
}

DeploymentFile DeploymentFile::of_port(int port) { return DeploymentFile(port == 0 ? "" : std::to_string(port)); }

DeploymentFile DeploymentFile::of_run(const std::filesystem::path& run) {
  const std::string path = std::filesystem::weakly_canonical(run).string();
  const ChunkDigest digest = sha256_of(std::as_bytes(std::span(path)));
  return DeploymentFile(fmt::format("run-{:02x}", fmt::join(std::span(digest).first<8>(), "")));
}

std::optional<KeptDeployment> DeploymentFile::read() const {
  return lock_ ? read_kept_deployment(file_) : std::nullopt;
}

void DeploymentFile::keep(const KeptDeployment& deployment) const {
  if (lock_) keep_deployment(file_, deployment);
}

void DeploymentFile::remove() const {
  std::error_code ignored;
  if (lock_) std::filesystem::remove(file_, ignored);
}

}  // namespace motley::cli
