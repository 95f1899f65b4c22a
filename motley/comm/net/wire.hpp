// Little-endian binary for what crosses process borders: control messages and frame headers.
//
// A message is an aggregate, whose members cross in the order of their declaration: that is the one list of its fields.
// Lists and texts have their bounds in their types (base/bounded.hpp), enumerations name their `last`; a list without a
// bound does not compile. `std::string_view contradiction() const` of an aggregate tells what is wrong between its
// fields, or nothing. A reader believes no length before it has held it against what is left and against the bound.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include <fmt/format.h>

#include "motley/base/bounded.hpp"
#include "motley/base/error.hpp"

namespace motley {

static_assert(std::endian::native == std::endian::little,
              "the wire format is the memory format of little-endian machines");

template <class T>
concept WireScalar = (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || std::is_same_v<T, std::byte>;
template <class T>
concept WireEnum = std::is_enum_v<T> && sizeof(T) == 1 && requires { T::last; };
template <class T>
concept WireAggregate = std::is_class_v<T> && std::is_aggregate_v<T>;

// Whether the bytes of a list are those of its elements one behind the other.
template <class T>
constexpr bool is_flat = WireScalar<T>;
template <WireScalar T, std::size_t count>
constexpr bool is_flat<std::array<T, count>> = true;

// Stands for a value of any type where an aggregate is tried with a number of them.
struct AnyField {
  template <class T>
  operator T() const;
};
template <WireAggregate T, class... Given>
consteval std::size_t field_count() {
  if constexpr (requires { T{Given{}..., AnyField{}}; })
    return field_count<T, Given..., AnyField>();
  else
    return sizeof...(Given);
}

// Calls `visit` with all members, in order. A count that is wrong does not compile.
template <class T, class Visit>
void with_fields(T& m, const Visit& visit) {
  constexpr std::size_t count = field_count<std::remove_const_t<T>>();
  static_assert(count > 0 || std::is_empty_v<T>);
#define MOTLEY_FIELDS(...)     \
  {                            \
    auto& [__VA_ARGS__] = m;   \
    return visit(__VA_ARGS__); \
  }
  // clang-format off
  if constexpr (count == 0) return visit();
  if constexpr (count == 1) MOTLEY_FIELDS(a)
  if constexpr (count == 2) MOTLEY_FIELDS(a, b)
  if constexpr (count == 3) MOTLEY_FIELDS(a, b, c)
  if constexpr (count == 4) MOTLEY_FIELDS(a, b, c, d)
  if constexpr (count == 5) MOTLEY_FIELDS(a, b, c, d, e)
  if constexpr (count == 6) MOTLEY_FIELDS(a, b, c, d, e, f)
  if constexpr (count == 7) MOTLEY_FIELDS(a, b, c, d, e, f, g)
  if constexpr (count == 8) MOTLEY_FIELDS(a, b, c, d, e, f, g, h)
  if constexpr (count == 9) MOTLEY_FIELDS(a, b, c, d, e, f, g, h, i)
  if constexpr (count == 10) MOTLEY_FIELDS(a, b, c, d, e, f, g, h, i, j)
  if constexpr (count == 11) MOTLEY_FIELDS(a, b, c, d, e, f, g, h, i, j, k)
  if constexpr (count == 12) MOTLEY_FIELDS(a, b, c, d, e, f, g, h, i, j, k, l)
  if constexpr (count == 13) MOTLEY_FIELDS(a, b, c, d, e, f, g, h, i, j, k, l, n)
  if constexpr (count == 14) MOTLEY_FIELDS(a, b, c, d, e, f, g, h, i, j, k, l, n, o)
    // clang-format on
#undef MOTLEY_FIELDS
  static_assert(count <= 14, "too many fields: group some of them in a struct");
}

class WireWriter {
 public:
  explicit WireWriter(std::string& out) : out_(out) {}

  template <WireScalar T>
  void operator()(T value) {
    raw(&value, 1);
  }
  template <WireScalar T, std::size_t count>
  void operator()(const std::array<T, count>& values) {
    raw(values.data(), count);
  }
  template <WireEnum T>
  void operator()(T value) {
    (*this)(static_cast<std::uint8_t>(value));
  }
  template <WireAggregate T>
  void operator()(const T& value) {
    with_fields(value, [&](const auto&... fields) { ((*this)(fields), ...); });
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
  void operator()(const std::string& text) { characters(text, max_text_bytes); }
  template <std::size_t max>
  void operator()(const BoundedText<max>& text) {
    characters(text, max);
  }
  template <class T, std::size_t max, std::size_t max_text>
  void operator()(const BoundedList<T, max, max_text>& list) {
    length(list.size(), max);
    if constexpr (is_flat<T>)
      raw(list.data(), list.size());
    else if constexpr (max_text > 0)
      for (const T& text : list) characters(text, max_text);
    else
      for (const T& item : list) (*this)(item);
  }
  template <WireScalar K, WireScalar V, std::size_t max>
  void operator()(const BoundedMap<K, V, max>& table) {
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
  void characters(const std::string& text, std::size_t max) {
    length(text.size(), max);
    out_.append(text);
  }
  template <class T>
  void raw(const T* values, std::size_t count) {
    out_.append(reinterpret_cast<const char*>(values), count * sizeof(T));
  }

  std::string& out_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  template <WireScalar T>
  void operator()(T& value) {
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  template <WireScalar T, std::size_t count>
  void operator()(std::array<T, count>& values) {
    std::memcpy(values.data(), take(sizeof values).data(), sizeof values);
  }
  template <WireEnum T>
  void operator()(T& value) {
    std::uint8_t number = 0;
    (*this)(number);
    if (number > static_cast<std::uint8_t>(T::last)) malformed("a number that names nothing");
    value = static_cast<T>(number);
  }
  template <WireAggregate T>
  void operator()(T& value) {
    with_fields(value, [&](auto&... fields) { ((*this)(fields), ...); });
    if constexpr (requires { value.contradiction(); })
      if (const std::string_view what = value.contradiction(); !what.empty()) malformed(what);
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
  void operator()(std::string& text) { text.assign(take(length(max_text_bytes))); }
  template <std::size_t max>
  void operator()(BoundedText<max>& text) {
    text.assign(take(length(max)));
  }
  template <class T, std::size_t max, std::size_t max_text>
  void operator()(BoundedList<T, max, max_text>& list) {
    const std::size_t count = length(max);
    list.clear();
    if constexpr (is_flat<T>) {
      const auto bytes = take(count * sizeof(T));
      list.resize(count);
      if (count > 0) std::memcpy(list.data(), bytes.data(), bytes.size());
    } else {
      // Grows as the elements prove to be there.
      for (std::size_t i = 0; i < count; ++i)
        if constexpr (max_text > 0)
          list.emplace_back(take(length(max_text)));
        else
          (*this)(list.emplace_back());
    }
  }
  template <WireScalar K, WireScalar V, std::size_t max>
  void operator()(BoundedMap<K, V, max>& table) {
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
