// The log in etcd, by the JSON gateway of its third API (etcd.io/docs/v3.4/dev-guide/api_grpc_gateway).
//
// PREFIX/leader names the coordinator that may write; it hangs on a lease and goes when that coordinator falls silent.
// Every write is a transaction on the condition that the leader's key is still the one this coordinator made, so that
// of two coordinators one at most can write, whatever either believes.
#include <openssl/evp.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/membership/ledger_store.hpp"
#include "motley/comm/membership/member_client.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using nlohmann::json;

constexpr auto answer_time = std::chrono::seconds(2);

// etcd's JSON carries keys and values in base 64.
std::string to_base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // and the zero that it ends with
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

Error no_log(std::string cause) { return input_error(std::move(cause), "the prefix holds something other than a log"); }

std::string from_base64(const std::string& text) {
  std::string bytes(text.size(), '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) throw no_log("a value in etcd is not base64");
  const auto padding = static_cast<std::size_t>(std::count(text.begin(), text.end(), '='));
  bytes.resize(static_cast<std::size_t>(size) - std::min(padding, static_cast<std::size_t>(size)));
  return bytes;
}

std::uint64_t place_in(const std::string& key) {
  const char* digits = key.data() + key.rfind('/') + 1;
  const char* end = key.data() + key.size();
  std::uint64_t place = 0;
  const auto [last, failure] = std::from_chars(digits, end, place);
  if (failure != std::errc() || last != end)
    throw no_log(fmt::format("\"{}\" in etcd is not the key of a record", key));
  return place;
}

std::vector<std::string> records_in(const std::string& value) {
  const json list = json::parse(value, nullptr, false);
  if (!list.is_array() || !std::ranges::all_of(list, &json::is_string))
    throw no_log("a value in etcd is not a list of records");
  std::vector<std::string> records;
  for (const json& record : list) records.push_back(from_base64(record.get<std::string>()));
  return records;
}

class EtcdStore : public LedgerStore {
 public:
  EtcdStore(const std::string& url, EtcdStoreOptions options) : url_(url), options_(options) {
    const std::string rest = url.substr(std::string_view("etcd://").size());
    const std::size_t slash = rest.find('/');
    if (slash == std::string::npos || slash + 1 == rest.size())
      throw input_error(fmt::format("\"{}\" has no prefix", url), "write it as etcd://host:port/prefix");
    place_ = parse_host_port(rest.substr(0, slash));
    prefix_ = rest.substr(slash + 1);
    while (prefix_.ends_with('/')) prefix_.pop_back();
    lease_ = call("/v3/lease/grant", {{"TTL", options_.lease_s}},
                  [](const json& answer) { return answer.at("ID").get<std::string>(); });
    take_leadership();
  }

  ~EtcdStore() override {
    try {
      call("/v3/lease/revoke", {{"ID", lease_}}, unread);  // the next coordinator need not wait
    } catch (const Error&) {
      // It will run out by itself.
    }
  }

  std::vector<std::string> read() override {
    return call("/v3/kv/range",
                {{"key", to_base64(log_key(0))},
                 {"range_end", to_base64(prefix_ + "/log0")},
                 {"sort_order", "ASCEND"},
                 {"sort_target", "KEY"}},
                [&](const json& answer) {
                  std::vector<std::string> records;
                  for (const json& pair : answer.value("kvs", json::array())) {
                    next_ = place_in(from_base64(pair.at("key").get<std::string>())) + 1;
                    std::ranges::move(records_in(from_base64(pair.value("value", ""))), std::back_inserter(records));
                  }
                  return records;
                });
  }

  void append(const std::vector<std::string>& records) override {
    json changes = json::array();
    changes.push_back(put(records));
    write(std::move(changes));
  }

  // One transaction may not touch a key twice: the new record stands behind those that go.
  void replace(const std::string& record) override {
    json changes = json::array();
    changes.push_back(
        {{"request_delete_range", {{"key", to_base64(log_key(0))}, {"range_end", to_base64(log_key(next_))}}}});
    changes.push_back(put({record}));
    write(std::move(changes));
  }

  void keep() override {
    if (!call("/v3/lease/keepalive", {{"ID", lease_}},
              [](const json& answer) { return answer.at("result").value("TTL", "0") != "0"; }))
      fenced();
  }
  double hold_s() const override { return static_cast<double>(options_.lease_s); }
  std::string name() const override { return url_; }

 private:
  std::string leader_key() const { return prefix_ + "/leader"; }
  std::string log_key(std::uint64_t place) const { return fmt::format("{}/log/{:020}", prefix_, place); }

  // What is written at once stands under one key.
  json put(const std::vector<std::string>& records) const {
    json list = json::array();
    for (const std::string& record : records) list.push_back(to_base64(record));
    return {{"request_put", {{"key", to_base64(log_key(next_))}, {"value", to_base64(list.dump())}}}};
  }

  [[noreturn]] void fenced() const {
    throw StoreFenced(fmt::format("another coordinator has taken over {}", url_),
                      "members find it if its address is among theirs");
  }

  void take_leadership() {
    const auto until = deadline_in(options_.take_over_wait_s);
    const std::string key = to_base64(leader_key());
    for (;;) {
      revision_ = call(
          "/v3/kv/txn",
          {{"compare", {{{"key", key}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", "0"}}}},
           {"success",
            {{{"request_put",
               {{"key", key}, {"value", to_base64(fmt::format("{}", draw_process_number()))}, {"lease", lease_}}}}}}},
          [](const json& answer) {
            return succeeded(answer) ? answer.at("header").at("revision").get<std::string>() : std::string();
          });
      if (!revision_.empty()) return;
      if (Clock::now() >= until)
        throw StoreFenced(fmt::format("another coordinator holds {}", url_),
                          fmt::format("this one takes over {} s after the other falls silent", options_.lease_s));
      call("/v3/lease/keepalive", {{"ID", lease_}}, unread);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  void write(json changes) {
    const json compare = {
        {{"key", to_base64(leader_key())}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", revision_}}};
    if (!call("/v3/kv/txn", {{"compare", compare}, {"success", std::move(changes)}}, succeeded)) fenced();
    ++next_;
  }

  static bool succeeded(const json& answer) { return answer.value("succeeded", false); }
  static void unread(const json&) {}

  // What `read` finds in the answer. One connection per call: calls are rare, and a broken one costs nothing.
  template <class Read>
  std::invoke_result_t<Read, const json&> call(const std::string& path, const json& body, const Read& read) {
    try {
      boost::asio::io_context io;
      beast::tcp_stream stream(io);
      boost::asio::ip::tcp::resolver resolver(io);
      const auto places = resolver.resolve(place_.host, place_.port);
      http::request<http::string_body> request(http::verb::post, path, 11);
      request.set(http::field::host, place_.host);
      request.body() = body.dump();
      request.prepare_payload();
      beast::flat_buffer buffer;
      http::response<http::string_body> response;
      boost::system::error_code failure = boost::asio::error::would_block;
      stream.expires_after(answer_time);
      stream.async_connect(places, [&](boost::system::error_code error, const auto&) {
        if (error) return void(failure = error);
        http::async_write(stream, request, [&](boost::system::error_code wrong, std::size_t) {
          if (wrong) return void(failure = wrong);
          http::async_read(stream, buffer, response,
                           [&](boost::system::error_code last, std::size_t) { failure = last; });
        });
      });
      io.run();
      if (failure) throw boost::system::system_error(failure);
      const json answer = json::parse(response.body());
      if (response.result() != http::status::ok) {
        const std::string cause = fmt::format("etcd at {}:{} answers {}: {}", place_.host, place_.port,
                                              response.result_int(), answer.value("error", "without a reason"));
        // A server that gave up waiting may have written all the same.
        if (response.result_int() >= 500) throw StoreUncertain(cause);
        throw Error(ErrorCode::environment, cause);
      }
      return read(answer);
    } catch (const boost::system::system_error& error) {
      throw StoreUncertain(
          fmt::format("etcd at {}:{} does not answer: {}", place_.host, place_.port, error.code().message()),
          "running operations continue");
    } catch (const json::exception& error) {
      throw StoreUncertain(
          fmt::format("etcd at {}:{} sends an unexpected answer: {}", place_.host, place_.port, error.what()));
    }
  }

  std::string url_, prefix_, lease_, revision_;
  HostPort place_;
  EtcdStoreOptions options_;
  std::uint64_t next_ = 0;
};

}  // namespace

std::unique_ptr<LedgerStore> open_etcd_store(const std::string& url, EtcdStoreOptions options) {
  return std::make_unique<EtcdStore>(url, options);
}

}  // namespace motley
