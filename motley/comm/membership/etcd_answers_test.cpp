// What an etcd that is broken, half dead or none at all may answer: nothing of it ends a coordinator, and a write is
// uncertain where the answer does not settle it.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <map>
#include <mutex>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/membership/ledger_store.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

// Answers each path with what it is told; at first as an etcd with an empty log does.
class FakeEtcd {
 public:
  void answer(const std::string& path, const std::string& body, const std::string& status = "200 OK") {
    const std::lock_guard lock(mutex_);
    answers_[path] = "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  std::string url() const { return "etcd://" + listener_.address + "/log"; }

  FakeEtcd() {
    answer("/v3/lease/grant", R"({"ID": "7"})");
    answer("/v3/lease/keepalive", R"({"result": {"TTL": "5"}})");
    answer("/v3/lease/revoke", "{}");
    answer("/v3/kv/txn", R"({"header": {"revision": "3"}, "succeeded": true})");
    answer("/v3/kv/range", "{}");
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) serve();
    });
  }

 private:
  void serve() {
    pollfd waiting{listener_.socket.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 20) <= 0) return;
    const FileDescriptor client(::accept(listener_.socket.get(), nullptr, nullptr));
    std::string request;  // with its body, or closing would reset the connection
    for (char piece[1024]; !whole(request);) {
      const ssize_t size = ::recv(client.get(), piece, sizeof piece, 0);
      if (size <= 0) return;
      request.append(piece, static_cast<std::size_t>(size));
    }
    const std::size_t path = request.find(' ') + 1;
    const std::lock_guard lock(mutex_);
    const std::string& bytes = answers_.at(request.substr(path, request.find(' ', path) - path));
    EXPECT_EQ(::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  static bool whole(const std::string& request) {
    const std::size_t length = request.find("Content-Length: "), body = request.find("\r\n\r\n");
    return length != std::string::npos && body != std::string::npos &&
           request.size() >= body + 4 + std::stoul(request.substr(length + 16));
  }

  ListeningSocket listener_ = listen_tcp("127.0.0.1:0");
  std::mutex mutex_;
  std::map<std::string, std::string> answers_;
  std::jthread thread_;
};

std::string input_error_of(LedgerStore& store) {
  try {
    store.read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
    return error.what();
  }
  return "none";
}

constexpr const char* first_key = "bG9nL2xvZy8wMDAwMDAwMDAwMDAwMDAwMDAwMA==";  // log/log/00000000000000000000

std::string log_of(const std::string& key, const std::string& value) {
  return R"({"kvs": [{"key": ")" + key + R"(", "value": ")" + value + R"("}]})";
}

TEST(EtcdAnswers, AreReadAsALog) {
  FakeEtcd etcd;
  const auto store = open_etcd_store(etcd.url());
  EXPECT_TRUE(store->read().empty());
  etcd.answer("/v3/kv/range", log_of(first_key, "WyJZUT09IiwgIllnPT0iXQ=="));  // ["YQ==", "Yg=="]
  EXPECT_EQ(store->read(), (std::vector<std::string>{"a", "b"}));
  store->append({"c"});
  store->keep();
}

TEST(EtcdAnswers, SomethingElseThanALogIsNamed) {
  FakeEtcd etcd;
  const auto store = open_etcd_store(etcd.url());
  const auto cause = [&](const std::string& key, const std::string& value) {
    etcd.answer("/v3/kv/range", log_of(key, value));
    return input_error_of(*store);
  };
  EXPECT_EQ(cause("bG9nL2xvZy94", "W10="), "\"log/log/x\" in etcd is not the key of a record");
  EXPECT_EQ(cause("bG9nL2xvZy8xeA==", "W10="), "\"log/log/1x\" in etcd is not the key of a record");
  EXPECT_EQ(cause("?", "W10="), "a value in etcd is not base64");
  EXPECT_EQ(cause(first_key, "eA=="), "a value in etcd is not a list of records");  // x
  EXPECT_EQ(cause(first_key, "e30="), "a value in etcd is not a list of records");  // {}
  EXPECT_EQ(cause(first_key, "WzFd"), "a value in etcd is not a list of records");  // [1]
  EXPECT_EQ(cause(first_key, "WyI/Il0="), "a value in etcd is not base64");         // ["?"]
  EXPECT_EQ(cause(first_key, "W10="), "none");                                      // []
}

// Of a write, it is not known what became of it.
TEST(EtcdAnswers, WhatIsNoAnswerLeavesAWriteUncertain) {
  for (const char* body : {"", "<html>", "[]", R"({"succeeded": "yes"})"}) {
    FakeEtcd etcd;
    const auto store = open_etcd_store(etcd.url());
    etcd.answer("/v3/kv/txn", body);
    EXPECT_THROW(store->append({"a"}), StoreUncertain) << body;
    EXPECT_THROW(store->replace("a"), StoreUncertain) << body;
    etcd.answer("/v3/kv/range", body);
    if (std::string_view(body) != R"({"succeeded": "yes"})") {
      EXPECT_THROW(store->read(), StoreUncertain) << body;
    }
    etcd.answer("/v3/lease/keepalive", body);
    EXPECT_THROW(store->keep(), StoreUncertain) << body;
    etcd.answer("/v3/lease/grant", body);
    EXPECT_THROW(open_etcd_store(etcd.url()), StoreUncertain) << body;
  }
}

TEST(EtcdAnswers, ARefusalChangesNothingAndAServersTimeOutIsUncertain) {
  FakeEtcd etcd;
  const auto store = open_etcd_store(etcd.url());
  etcd.answer("/v3/kv/txn", R"({"error": "etcdserver: mvcc: database space exceeded"})", "429 Too Many Requests");
  try {
    store->append({"a"});
    ADD_FAILURE() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(dynamic_cast<const StoreUncertain*>(&error), nullptr);
    EXPECT_TRUE(std::string(error.what()).ends_with("answers 429: etcdserver: mvcc: database space exceeded"))
        << error.what();
  }
  etcd.answer("/v3/kv/txn", R"({"error": "etcdserver: request timed out"})", "503 Service Unavailable");
  EXPECT_THROW(store->append({"a"}), StoreUncertain);
  etcd.answer("/v3/kv/txn", R"({"header": {"revision": "9"}})");  // the leader's key is another's
  EXPECT_THROW(store->append({"a"}), StoreFenced);
  etcd.answer("/v3/lease/keepalive", R"({"result": {"ID": "7"}})");  // the lease has run out
  EXPECT_THROW(store->keep(), StoreFenced);
}

}  // namespace
}  // namespace motley
