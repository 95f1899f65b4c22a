// Messages with any values in all fields, for tests of what is sent.
#pragma once

#include <rapidcheck.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "motley/comm/net/wire.hpp"

namespace motley {

struct AnyValue {
  template <WireScalar T>
  void operator()(T& value) const {
    value = *rc::gen::arbitrary<T>();
  }
  void operator()(std::byte& value) const { value = static_cast<std::byte>(*rc::gen::arbitrary<std::uint8_t>()); }
  template <class T, std::size_t count>
  void operator()(std::array<T, count>& values) const {
    for (T& value : values) (*this)(value);
  }
  template <WireEnum T>
  void operator()(T& value) const {
    value = static_cast<T>(*rc::gen::inRange<int>(0, static_cast<int>(T::last) + 1));
  }
  template <WireAggregate T>
  void operator()(T& value) const {
    with_fields(value, [&](auto&... fields) { ((*this)(fields), ...); });
  }
  template <class T>
  void operator()(std::optional<T>& value) const {
    if (*rc::gen::arbitrary<bool>()) (*this)(value.emplace());
  }
  template <class... Kinds>
  void operator()(std::variant<Kinds...>& message) const {
    message = any_kind<std::variant<Kinds...>>(*rc::gen::inRange<std::size_t>(0, sizeof...(Kinds)));
  }
  void operator()(std::string& text) const { text = *rc::gen::arbitrary<std::string>(); }
  template <class T>
  void operator()(std::vector<T>& list) const {
    list.resize(static_cast<std::size_t>(*rc::gen::inRange(0, 4)));
    for (T& item : list) (*this)(item);
  }
  template <class K, class V>
  void operator()(std::map<K, V>& table) const {
    table = *rc::gen::arbitrary<std::map<K, V>>();
  }

  template <class Message>
  Message any_kind(std::size_t kind) const {
    return kind_from<Message, 0>(kind);
  }

 private:
  template <class Message, std::size_t index>
  Message kind_from(std::size_t kind) const {
    if constexpr (index + 1 < std::variant_size_v<Message>)
      if (kind != index) return kind_from<Message, index + 1>(kind);
    std::variant_alternative_t<index, Message> message;
    (*this)(message);
    return message;
  }
};

}  // namespace motley
