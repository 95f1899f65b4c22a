#include "motley/cli/deployment_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "motley/cli/agents.hpp"

namespace motley::cli {

DeploymentFile::DeploymentFile(int port) {
  if (port == 0) return;
  const std::filesystem::path folder = user_folder("XDG_STATE_HOME", ".local/state") / "deployments";
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  file_ = folder / fmt::format("{}.json", port);
  lock_ = FileDescriptor(::open((folder / fmt::format("{}.lock", port)).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock_ && ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) lock_ = FileDescriptor();
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
