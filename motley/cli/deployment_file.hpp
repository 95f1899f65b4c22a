// Where a deployment is kept while it lives, so that a driver that was killed and is started again takes it up.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "motley/agent/kept_deployment.hpp"
#include "motley/comm/net/file_descriptor.hpp"

namespace motley::cli {

// None where another process has it.
class DeploymentFile {
 public:
  static DeploymentFile of_port(int port);                         // that an API is served at; none for port 0
  static DeploymentFile of_run(const std::filesystem::path& run);  // of training

  std::optional<KeptDeployment> read() const;
  // Throws an environment error.
  void keep(const KeptDeployment& deployment) const;
  void remove() const;  // the deployment has ended

 private:
  explicit DeploymentFile(const std::string& name);

  std::filesystem::path file_;
  FileDescriptor lock_;
};

}  // namespace motley::cli
