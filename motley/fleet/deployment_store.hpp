// Where a deployment is kept while it lives, so that a driver takes it up after the one before it was killed.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "motley/base/event_log.hpp"
#include "motley/comm/membership/ledger_store.hpp"
#include "motley/fleet/saved_deployment.hpp"

namespace motley {

class DeploymentStore {
 public:
  virtual ~DeploymentStore() = default;
  virtual std::optional<SavedDeployment> read() = 0;
  // Throws an environment error where it cannot be kept, and StoreFenced.
  virtual void keep(const SavedDeployment& deployment) = 0;
  virtual void remove() = 0;  // the deployment has ended

  // Other machines read it too: what is kept there has to be taken up where it was.
  virtual bool is_shared() const { return false; }
  // Throws StoreFenced where another driver has taken the deployment up: this one must leave it alone. The process was
  // sent SIGTERM then.
  virtual void check_held() const {}
  bool is_held() const;
};

// A file of this machine's; where another process has it, nothing is kept.
std::unique_ptr<DeploymentStore> store_of_port(int port);  // that an API is served at; nothing is kept for port 0
std::unique_ptr<DeploymentStore> store_of_run(const std::filesystem::path& run);  // of training

// In etcd: held by one driver at a time. While another one holds it: throws StoreFenced, or with `standby` waits until
// that is gone; then null where it has ended the deployment. Throws an environment error where etcd does not answer.
std::unique_ptr<DeploymentStore> open_shared_store(const std::string& url, bool standby, const Report& report);
// The same in `held`; `open` opens it again where its lease has run out.
std::unique_ptr<DeploymentStore> shared_store(const std::string& url, std::unique_ptr<LedgerStore> held,
                                              std::function<std::unique_ptr<LedgerStore>()> open, const Report& report);

}  // namespace motley
