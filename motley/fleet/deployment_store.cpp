#include "motley/fleet/deployment_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <span>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"
#include "motley/checkpoint/digest.hpp"
#include "motley/checkpoint/manifest.hpp"
#include "motley/comm/net/file_descriptor.hpp"

namespace motley {
namespace {

class FileStore : public DeploymentStore {
 public:
  explicit FileStore(const std::string& name) {
    if (name.empty()) return;
    const std::filesystem::path folder = state_folder() / "deployments";
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    file_ = folder / (name + ".json");
    lock_ = FileDescriptor(::open((folder / (name + ".lock")).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (lock_ && ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) lock_ = FileDescriptor();
  }

  std::optional<SavedDeployment> read() override { return lock_ ? read_saved_deployment(file_) : std::nullopt; }
  void keep(const SavedDeployment& deployment) override {
    if (lock_) save_deployment(file_, deployment);
  }
  void remove() override {
    std::error_code ignored;
    if (lock_) std::filesystem::remove(file_, ignored);
  }

 private:
  std::filesystem::path file_;
  FileDescriptor lock_;
};

// One record, which is empty after the deployment has ended. A thread keeps the lease.
class SharedStore : public DeploymentStore {
 public:
  SharedStore(std::string url, std::unique_ptr<LedgerStore> store, std::function<std::unique_ptr<LedgerStore>()> open,
              Report report)
      : url_(std::move(url)),
        open_(std::move(open)),
        report_(std::move(report)),
        store_(std::move(store)),
        kept_(read_record(*store_)) {
    if (store_->hold_s() > 0) thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  std::optional<SavedDeployment> read() override {
    const std::lock_guard lock(mutex_);
    if (kept_.empty()) return std::nullopt;
    std::optional<SavedDeployment> kept = saved_deployment_of(kept_);
    if (!kept) throw input_error(fmt::format("{} does not hold a deployment", url_), "give another prefix");
    return kept;
  }
  void keep(const SavedDeployment& deployment) override { write(to_text(deployment)); }
  void remove() override {
    try {
      write("");
    } catch (const Error& error) {
      report_("store", fmt::format("still holds the deployment that has ended: {}", error.what()));
    }
  }

  bool is_shared() const override { return true; }
  void check_held() const override {
    const std::lock_guard lock(mutex_);
    if (fenced_) throw StoreFenced(*fenced_);
  }

 private:
  static std::string read_record(LedgerStore& store) {
    const std::vector<std::string> records = store.read();
    return records.empty() ? std::string() : records.back();
  }

  void write(const std::string& text) {
    const std::lock_guard lock(mutex_);
    store_->replace(text);
    kept_ = text;
  }

  // While etcd was away, the lease may have run out without another driver there to take over.
  void hold() {
    try {
      store_->keep();
    } catch (const StoreFenced&) {
      std::unique_ptr<LedgerStore> next = open_();
      if (read_record(*next) != kept_) throw;
      store_ = std::move(next);
    }
  }

  void run(const std::stop_token& stop) {
    bool told = false;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, stop, std::chrono::duration<double>(store_->hold_s() / 3), [&] {
      return stop.stop_requested();
    }) && !fenced_) {
      try {
        hold();
        told = false;
      } catch (const StoreFenced&) {
        fenced_ = fmt::format("another driver has taken the deployment in {} up", url_);
        ::kill(::getpid(), SIGTERM);
      } catch (const std::exception& error) {
        if (!std::exchange(told, true))
          report_("store", fmt::format("is away, and the deployment goes on: {}", error.what()));
      }
    }
  }

  const std::string url_;
  const std::function<std::unique_ptr<LedgerStore>()> open_;
  const Report report_;
  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  std::unique_ptr<LedgerStore> store_;  // guarded, and so are these
  std::string kept_;
  std::optional<std::string> fenced_;
  std::jthread thread_;
};

}  // namespace

bool DeploymentStore::is_held() const {
  try {
    check_held();
  } catch (const StoreFenced&) {
    return false;
  }
  return true;
}

std::unique_ptr<DeploymentStore> store_of_port(int port) {
  return std::make_unique<FileStore>(port == 0 ? "" : std::to_string(port));
}

std::unique_ptr<DeploymentStore> store_of_run(const std::filesystem::path& run) {
  const std::string path = std::filesystem::weakly_canonical(run).string();
  const ChunkDigest digest = sha256_of(std::as_bytes(std::span(path)));
  return std::make_unique<FileStore>(fmt::format("run-{:02x}", fmt::join(std::span(digest).first<8>(), "")));
}

std::unique_ptr<DeploymentStore> shared_store(const std::string& url, std::unique_ptr<LedgerStore> held,
                                              std::function<std::unique_ptr<LedgerStore>()> open,
                                              const Report& report) {
  return std::make_unique<SharedStore>(url, std::move(held), std::move(open), report);
}

std::unique_ptr<DeploymentStore> open_shared_store(const std::string& url, bool standby, const Report& report) {
  const auto open = [url] { return open_ledger_store(url); };
  if (!standby) return shared_store(url, open(), open, report);
  bool waited = false;
  auto ledger = wait_for_ledger_store(url, [&](const StoreFenced&) {
    waited = true;
    report("standby", fmt::format("until the driver that holds {} is gone", url));
  });
  auto store = shared_store(url, std::move(ledger), open, report);
  if (waited && !store->read()) return nullptr;
  return store;
}

}  // namespace motley
