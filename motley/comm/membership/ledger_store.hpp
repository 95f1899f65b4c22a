// Where a coordinator keeps its log: a file of the machine's own (SQLite), or etcd where the machine may be lost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/comm/membership/group_ledger.hpp"

namespace motley {

// Another coordinator has taken over, or holds the store: this one may not go on.
class StoreFenced : public Error {
 public:
  explicit StoreFenced(std::string message, std::string hint = {})
      : Error(ErrorCode::peer, std::move(message), std::move(hint)) {}
};

// The store did not answer: whether it was changed is unknown until read() tells.
class StoreUncertain : public Error {
 public:
  explicit StoreUncertain(std::string message, std::string hint = {})
      : Error(ErrorCode::environment, std::move(message), std::move(hint)) {}
};

// Texts in order, durable once a call returns. Calls throw an environment error that names the store and the cause
// where nothing was changed and later calls may succeed (a full disk); StoreUncertain; and StoreFenced.
class LedgerStore {
 public:
  virtual ~LedgerStore() = default;
  virtual std::vector<std::string> read() = 0;
  // All of them, or none.
  virtual void append(const std::vector<std::string>& records) = 0;
  // Forgets what was there.
  virtual void replace(const std::string& record) = 0;
  // Due every hold_s() at the latest, where that is not 0: keeps others from taking over.
  virtual void keep() {}
  virtual double hold_s() const { return 0; }
  virtual std::string name() const = 0;
};

struct SqliteStoreOptions {
  std::int64_t largest_bytes = 0;  // of the file; 0: as large as the disk allows
};
// Throws an environment error where the file cannot be opened, StoreFenced where another coordinator has it open, an
// input error where it is none of ours.
std::unique_ptr<LedgerStore> open_sqlite_store(const std::string& file, SqliteStoreOptions options = {});

struct EtcdStoreOptions {
  std::int64_t lease_s = 5;     // after which another coordinator may take over from a silent one
  double take_over_wait_s = 0;  // how long to wait for that at the start
};
// "etcd://host:port/prefix". Throws an environment error where it cannot be reached, StoreFenced where another
// coordinator holds the prefix.
std::unique_ptr<LedgerStore> open_etcd_store(const std::string& url, EtcdStoreOptions options = {});

// By the address: "etcd://..." or a file.
std::unique_ptr<LedgerStore> open_ledger_store(const std::string& address);
// As soon as no other coordinator has it; `held` is told once why it has to wait.
std::unique_ptr<LedgerStore> wait_for_ledger_store(const std::string& address,
                                                   const std::function<void(const StoreFenced&)>& held);

// The sum of the log. Throws an input error where it is another group's or damaged.
GroupLedger load_ledger(LedgerStore& store, const std::string& group);

}  // namespace motley
