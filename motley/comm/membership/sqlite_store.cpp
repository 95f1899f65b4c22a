#include <sqlite3.h>

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/membership/ledger_store.hpp"

namespace motley {
namespace {

constexpr auto standby_pause = std::chrono::milliseconds(500);
constexpr const char* format_name = "motley.ledger/1";

class SqliteStore : public LedgerStore {
 public:
  SqliteStore(std::string file, SqliteStoreOptions options) : file_(std::move(file)) {
    sqlite3* database = nullptr;
    const int opened = sqlite3_open_v2(file_.c_str(), &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
    database_.reset(database);
    if (opened != SQLITE_OK) fail("cannot be opened");
    sqlite3_extended_result_codes(database, 1);
    // One coordinator per file, for as long as it runs; every record is on the disk before anybody hears of it.
    run("PRAGMA locking_mode = EXCLUSIVE");
    run("PRAGMA journal_mode = WAL");
    run("PRAGMA synchronous = FULL");
    run("BEGIN IMMEDIATE");
    run("CREATE TABLE IF NOT EXISTS about (format TEXT NOT NULL)");
    run("CREATE TABLE IF NOT EXISTS log (place INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL)");
    check_format();
    run("COMMIT");
    if (options.largest_bytes > 0) run(fmt::format("PRAGMA max_page_count = {}", options.largest_bytes / 4096));
  }

  std::vector<std::string> read() override {
    std::vector<std::string> records;
    const Statement select = prepare("SELECT record FROM log ORDER BY place");
    int step = 0;
    while ((step = sqlite3_step(select.get())) == SQLITE_ROW) {
      const void* bytes = sqlite3_column_blob(select.get(), 0);
      const auto size = static_cast<std::size_t>(sqlite3_column_bytes(select.get(), 0));
      records.emplace_back(static_cast<const char*>(bytes), size);
    }
    if (step != SQLITE_DONE) fail("cannot be read");
    return records;
  }

  void append(const std::vector<std::string>& records) override {
    transaction([&] {
      for (const std::string& record : records) insert(record);
    });
  }

  void replace(const std::string& record) override {
    transaction([&] {
      run("DELETE FROM log");
      insert(record);
    });
  }

  std::string name() const override { return file_; }

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  using Statement = std::unique_ptr<sqlite3_stmt, Close>;

  [[noreturn]] void fail(const std::string& what) {
    const int code = database_ ? sqlite3_errcode(database_.get()) : SQLITE_NOMEM;
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
      throw StoreFenced(fmt::format("another coordinator holds the log {}", file_),
                        "one coordinator per log; the other one must end first");
    if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT)
      throw input_error(fmt::format("{} is not a log of a coordinator: {}", file_, sqlite3_errmsg(database_.get())),
                        "give the file of this group's log with --store; a missing file is created");
    throw Error(
        ErrorCode::environment,
        fmt::format("the log {} {}: {}", file_, what, database_ ? sqlite3_errmsg(database_.get()) : "no memory"),
        code == SQLITE_FULL || code == SQLITE_IOERR ? "free some space: nothing is lost, and the group goes on" : "");
  }

  Statement prepare(const std::string& sql) {
    sqlite3_stmt* statement = nullptr;
    const int code = sqlite3_prepare_v2(database_.get(), sql.c_str(), -1, &statement, nullptr);
    Statement owned(statement);
    if (code != SQLITE_OK) fail("cannot be used");
    return owned;
  }

  void run(const std::string& sql) {
    if (sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) fail("cannot be written");
  }

  void insert(const std::string& record) {
    const Statement statement = prepare("INSERT INTO log (record) VALUES (?)");
    sqlite3_bind_blob64(statement.get(), 1, record.data(), record.size(), SQLITE_STATIC);
    if (sqlite3_step(statement.get()) != SQLITE_DONE) fail("cannot be written");
  }

  template <class Body>
  void transaction(Body body) {
    run("BEGIN IMMEDIATE");
    try {
      body();
      run("COMMIT");
    } catch (const Error&) {
      sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
      throw;
    }
  }

  void check_format() {
    std::string format;
    {
      const Statement select = prepare("SELECT format FROM about");
      if (sqlite3_step(select.get()) == SQLITE_ROW)
        if (const auto* text = sqlite3_column_text(select.get(), 0))  // null where another program made the table
          format = reinterpret_cast<const char*>(text);
    }
    if (format.empty())
      run(fmt::format("INSERT INTO about VALUES ('{}')", format_name));
    else if (format != format_name)
      throw input_error(fmt::format("{} is of format \"{}\", this program reads \"{}\"", file_, format, format_name),
                        "run the version of motley that wrote it, or start a new log: motley group serve --store FILE");
  }

  std::string file_;
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace

std::unique_ptr<LedgerStore> open_sqlite_store(const std::string& file, SqliteStoreOptions options) {
  return std::make_unique<SqliteStore>(file, options);
}

std::unique_ptr<LedgerStore> open_ledger_store(const std::string& address) {
  return address.starts_with("etcd://") ? open_etcd_store(address) : open_sqlite_store(address);
}

std::unique_ptr<LedgerStore> wait_for_ledger_store(const std::string& address,
                                                   const std::function<void(const StoreFenced&)>& held) {
  for (bool told = false;; told = true) {
    try {
      return open_ledger_store(address);
    } catch (const StoreFenced& error) {
      if (!told) held(error);
    } catch (const StoreUncertain&) {
      if (!told) throw;  // it was reached before
    }
    std::this_thread::sleep_for(standby_pause);
  }
}

GroupLedger load_ledger(LedgerStore& store, const std::string& group) {
  GroupLedger ledger;
  ledger.group = group;
  try {
    for (const std::string& record : store.read()) apply_record(ledger, decode_record(record));
  } catch (Error& error) {
    error.prepend_context(store.name());
    throw;
  }
  return ledger;
}

}  // namespace motley
