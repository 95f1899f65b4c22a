#include "motley/comm/membership/ledger_store.hpp"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/session/churn_test.hpp"

namespace motley {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "motley-store-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string cause_of(const std::function<void()>& action) {
  try {
    action();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// What every store must do.
void check_store(const std::function<std::unique_ptr<LedgerStore>()>& open) {
  const std::string bytes("\0\xff zero", 7);
  {
    const auto store = open();
    EXPECT_TRUE(store->read().empty());
    store->append({"one"});
    store->append({bytes, "three"});
    EXPECT_THROW(open(), StoreFenced) << "two coordinators on one log";
  }
  {
    const auto store = open();
    EXPECT_EQ(store->read(), (std::vector<std::string>{"one", bytes, "three"}));
    store->append({"four"});
    EXPECT_EQ(store->read().size(), 4U);
    store->replace("all");
    store->append({"five"});
  }
  EXPECT_EQ(open()->read(), (std::vector<std::string>{"all", "five"}));
}

TEST(SqliteStore, KeepsWhatWasAppended) {
  const TemporaryFolder folder;
  check_store([&] { return open_sqlite_store(folder.file("log")); });
}

TEST(SqliteStore, AFullDiskIsNamedAndNothingIsLost) {
  const TemporaryFolder folder;
  const auto store = open_sqlite_store(folder.file("log"), {.largest_bytes = 64 << 10});
  const std::string record(1000, 'r');
  std::size_t written = 0;
  std::string cause;
  for (; cause.empty() && written < 1000; ++written) cause = cause_of([&] { store->append({record, record}); });
  EXPECT_NE(cause.find("full"), std::string::npos) << cause;
  EXPECT_NE(cause.find(folder.file("log")), std::string::npos) << cause;
  EXPECT_EQ(store->read().size(), 2 * (written - 1));
  store->replace("snapshot");  // room again
  store->append({record});
  EXPECT_EQ(store->read().size(), 2U);
}

TEST(SqliteStore, AFileThatIsNotALogIsNamed) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("text")) << std::string(5000, 'x');
  EXPECT_NE(cause_of([&] { open_sqlite_store(folder.file("text")); }).find("is not a log of a coordinator"),
            std::string::npos);
  EXPECT_NE(cause_of([&] { open_sqlite_store(folder.file("none/log")); }).find("cannot be opened"), std::string::npos);
}

// Databases of other programs, or of another version of this one.
TEST(SqliteStore, AnotherFormatIsNamed) {
  const TemporaryFolder folder;
  const auto with = [&](const char* sql) {
    const std::string file = folder.file("other");
    std::filesystem::remove(file);
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
    sqlite3_close(database);
    const std::string cause = cause_of([&] { open_sqlite_store(file); });
    return cause.substr(std::min(cause.size(), cause.find("other") + 5));
  };
  EXPECT_TRUE(with("CREATE TABLE about (format TEXT); INSERT INTO about VALUES ('motley.log/9')")
                  .starts_with(" is of format \"motley.log/9\", this program reads \""));
  EXPECT_TRUE(with("CREATE TABLE about (version INTEGER)").starts_with(" cannot be used: no such column: format"));
  EXPECT_EQ(with("CREATE TABLE about (format TEXT); INSERT INTO about VALUES (NULL)"), "") << "no format is said";
}

TEST(LedgerStore, ALogOfAnotherGroupIsRefused) {
  const TemporaryFolder folder;
  const auto store = open_sqlite_store(folder.file("log"));
  Epoch epoch;
  epoch.group = "other";
  epoch.number = 1;
  epoch.members = {{"a", 1, "", ""}};
  store->append({encode_record(EpochProposed{epoch})});
  EXPECT_NE(cause_of([&] { load_ledger(*store, "mine"); }).find("belongs to group \"other\""), std::string::npos);
  EXPECT_EQ(load_ledger(*store, "other").last_number, 1U);
}

// Debian's etcd on a free port of the loopback, in a folder of its own.
class EtcdServer {
 public:
  EtcdServer() {
    for (int attempt = 0; attempt < 20 && !running_; ++attempt) {
      const int port = 20000 + static_cast<int>((static_cast<unsigned>(::getpid()) * 7 + attempt * 911U) % 40000);
      place_ = fmt::format("127.0.0.1:{}", port);
      process_ = std::make_unique<churn::ChildProcess>(
          std::vector<std::string>{"/usr/bin/etcd", "--data-dir", folder_.file(fmt::format("data{}", attempt)),
                                   "--listen-client-urls", "http://" + place_, "--advertise-client-urls",
                                   "http://" + place_, "--listen-peer-urls", "http://127.0.0.1:0", "--unsafe-no-fsync"},
          folder_.file("errors"));
      const double until_s = now_s() + 20;
      while (!running_ && !process_->ended() && now_s() < until_s) {
        try {
          open_etcd_store(url("probe"));
          running_ = true;
        } catch (const Error&) {
          std::this_thread::yield();
        }
      }
    }
  }
  bool running() const { return running_; }
  std::string url(const std::string& prefix) const { return fmt::format("etcd://{}/{}", place_, prefix); }
  void stop() const { process_->stop(); }
  void go_on() const { process_->signal(SIGCONT); }

 private:
  TemporaryFolder folder_;
  std::string place_;
  std::unique_ptr<churn::ChildProcess> process_;
  bool running_ = false;
};

TEST(EtcdStore, KeepsWhatWasAppendedAndFencesTheOther) {
  const EtcdServer etcd;
  ASSERT_TRUE(etcd.running()) << "package etcd-server";
  check_store([&] { return open_etcd_store(etcd.url("kept")); });

  // A coordinator that has fallen silent for longer than its lease is replaced, and cannot write any more, whatever it
  // believes.
  const auto silent = open_etcd_store(etcd.url("fenced"), {.lease_s = 1});
  silent->append({"one"});
  const auto next = open_etcd_store(etcd.url("fenced"), {.lease_s = 60, .take_over_wait_s = 30});
  EXPECT_EQ(next->read(), std::vector<std::string>{"one"});
  next->append({"two"});
  EXPECT_THROW(silent->append({"never"}), StoreFenced);
  EXPECT_THROW(silent->replace("never"), StoreFenced);
  EXPECT_THROW(silent->keep(), StoreFenced);
  EXPECT_EQ(next->read(), (std::vector<std::string>{"one", "two"}));
  next->keep();

  // Without an answer it is not known whether a record was written.
  etcd.stop();
  EXPECT_THROW(next->append({"three"}), StoreUncertain);
  etcd.go_on();
}

TEST(EtcdStore, AnAbsentServerIsNamed) {
  const std::string cause = cause_of([] { open_etcd_store("etcd://127.0.0.1:1/x"); });
  EXPECT_NE(cause.find("etcd at 127.0.0.1:1 does not answer"), std::string::npos) << cause;
  EXPECT_NE(cause_of([] { open_etcd_store("etcd://127.0.0.1:2379"); }).find("has no prefix"), std::string::npos);
}

}  // namespace
}  // namespace motley
