// Little-endian binary for what crosses process borders: control messages and frame headers.
//
// One description per struct serves both directions: `template <class Wire> void fields(Wire& wire, Wire::Ref<T> m)`
// names the members in order; WireWriter appends them, WireReader takes them. A reader believes no length before it has
// held it against what is left and against the given maximum.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {

static_assert(std::endian::native == std::endian::little,
              "the wire format is the memory format of little-endian machines");

template <class T>
concept WireScalar = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

class WireWriter {
 public:
  template <class T>
  using Ref = const T&;

  explicit WireWriter(std::string& out) : out_(out) {}

  template <WireScalar T>
  void operator()(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class T>
    requires std::is_class_v<T>
  void operator()(const T& value) {
    fields(*this, value);
  }
  template <class T>
  void operator()(const std::optional<T>& value) {
    (*this)(static_cast<std::uint8_t>(value.has_value()));
    if (value) (*this)(*value);
  }
  // One of several kinds, after its number.
  template <class... Kinds>
  void operator()(const std::variant<Kinds...>& message) {
    (*this)(static_cast<std::uint8_t>(message.index()));
    std::visit(*this, message);
  }
  void operator()(const std::string& text, std::size_t max) {
    length(text.size(), max);
    out_.append(text);
  }
  template <class T>
  void operator()(const std::vector<T>& list, std::size_t max) {
    length(list.size(), max);
    if constexpr (WireScalar<T>)
      out_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
    else
      for (const T& item : list) (*this)(item);
  }
  template <WireScalar K, WireScalar V>
  void operator()(const std::map<K, V>& table, std::size_t max) {
    length(table.size(), max);
    for (const auto& [key, value] : table) {
      (*this)(key);
      (*this)(value);
    }
  }

 private:
  void length(std::size_t count, std::size_t max) {
    if (count > max)
      throw Error(ErrorCode::limit,
                  fmt::format("a message would carry a list or text of {} elements, more than {}", count, max));
    (*this)(static_cast<std::uint32_t>(count));
  }

  std::string& out_;
};

class WireReader {
 public:
  template <class T>
  using Ref = T&;

  explicit WireReader(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  template <WireScalar T>
  void operator()(T& value) {
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  template <class T>
    requires std::is_class_v<T>
  void operator()(T& value) {
    fields(*this, value);
  }
  template <class T>
  void operator()(std::optional<T>& value) {
    std::uint8_t present = 0;
    (*this)(present);
    if (present > 1) malformed("a flag that is neither 0 nor 1");
    value.reset();
    if (present == 1) (*this)(value.emplace());
  }
  // One of several kinds, told by its number.
  template <class... Kinds>
  void operator()(std::variant<Kinds...>& message) {
    std::uint8_t kind = 0, number = 0;
    (*this)(kind);
    if (kind >= sizeof...(Kinds)) malformed(fmt::format("unknown kind {}", kind));
    ((number++ == kind ? (*this)(message.template emplace<Kinds>()) : void()), ...);
  }
  void operator()(std::string& text, std::size_t max) { text.assign(take(length(max))); }
  template <class T>
  void operator()(std::vector<T>& list, std::size_t max) {
    const std::size_t count = length(max);
    list.clear();
    if constexpr (WireScalar<T>) {
      const auto bytes = take(count * sizeof(T));
      list.resize(count);
      if (count > 0) std::memcpy(list.data(), bytes.data(), bytes.size());
    } else {
      // Grows as the elements prove to be there.
      for (std::size_t i = 0; i < count; ++i) (*this)(list.emplace_back());
    }
  }
  template <WireScalar K, WireScalar V>
  void operator()(std::map<K, V>& table, std::size_t max) {
    const std::size_t count = length(max);
    table.clear();
    for (std::size_t i = 0; i < count; ++i) {
      K key{};
      V value{};
      (*this)(key);
      (*this)(value);
      if (!table.empty() && key <= table.rbegin()->first) malformed("keys out of order");
      table.emplace_hint(table.end(), key, value);
    }
  }

  void finish() const {
    if (!rest_.empty()) malformed(fmt::format("{} bytes too many", rest_.size()));
  }
  [[noreturn]] void malformed(std::string_view what) const {
    throw Error(ErrorCode::peer,
                fmt::format("malformed message: {} at byte {} of {}", what, size_ - rest_.size(), size_));
  }

 private:
  std::size_t length(std::size_t max) {
    std::uint32_t count = 0;
    (*this)(count);
    if (count > max) malformed(fmt::format("a length of {}, more than {}", count, max));
    if (count > rest_.size()) malformed(fmt::format("a length of {}", count));  // an element takes at least one byte
    return count;
  }
  std::string_view take(std::size_t count) {
    if (count > rest_.size()) malformed(fmt::format("{} more bytes expected", count));
    const auto taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
  std::size_t size_;
};

// One of an enumeration's values, which are numbered from 0 to `last`.
template <class Enum>
void enumerator(WireWriter& wire, Enum value, Enum) {
  wire(static_cast<std::uint8_t>(value));
}
template <class Enum>
void enumerator(WireReader& wire, Enum& value, Enum last) {
  std::uint8_t number = 0;
  wire(number);
  if (number > static_cast<std::uint8_t>(last)) wire.malformed("a number that names nothing");
  value = static_cast<Enum>(number);
}

// What the messages of a connection have in common.
struct WireProtocol {
  std::size_t max_bytes = 0;
  std::string_view what = "message";         // in errors
  std::optional<std::uint8_t> version = {};  // the first byte; none: there is no such byte
  std::string_view versions_hint = {};       // what to do where the versions differ
};

// A whole message. Throws a limit error where it is too large.
template <class Message>
std::string encode_message(const WireProtocol& protocol, const Message& message) {
  std::string bytes;
  WireWriter writer(bytes);
  if (protocol.version) writer(*protocol.version);
  writer(message);
  if (bytes.size() > protocol.max_bytes)
    throw Error(ErrorCode::limit,
                fmt::format("a {} of {} bytes is larger than {}", protocol.what, bytes.size(), protocol.max_bytes));
  return bytes;
}

// Throws a peer error for anything malformed, and for another version.
template <class Message>
Message decode_message(const WireProtocol& protocol, std::string_view bytes) {
  if (bytes.size() > protocol.max_bytes)
    throw Error(ErrorCode::peer,
                fmt::format("malformed message: {} bytes, more than {}", bytes.size(), protocol.max_bytes));
  WireReader reader(bytes);
  if (protocol.version) {
    std::uint8_t version = 0;
    reader(version);
    if (version != *protocol.version)
      throw Error(
          ErrorCode::peer,
          fmt::format("a {} of protocol version {}, this program speaks {}", protocol.what, version, *protocol.version),
          std::string(protocol.versions_hint));
  }
  Message message;
  reader(message);
  reader.finish();
  return message;
}

}  // namespace motley
