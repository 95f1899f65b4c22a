// Texts, lists and tables that come from other processes or from files, with the most that they may hold: the bound is
// part of the type, where a struct declares the member. Readers hold lengths against it (comm/net/wire.hpp); a plain
// std::string may have max_text_bytes.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace motley {

constexpr std::size_t max_text_bytes = std::size_t{64} << 10;

template <std::size_t max>
struct BoundedText : std::string {
  using std::string::string;
  BoundedText() = default;
  BoundedText(std::string text) : std::string(std::move(text)) {}
};

// `max_text`: of each, where these are texts.
template <class T, std::size_t max, std::size_t max_text = 0>
struct BoundedList : std::vector<T> {
  using std::vector<T>::vector;
  BoundedList() = default;
  BoundedList(std::vector<T> list) : std::vector<T>(std::move(list)) {}
};

template <class Key, class Value, std::size_t max>
struct BoundedMap : std::map<Key, Value> {
  using std::map<Key, Value>::map;
  BoundedMap() = default;
  BoundedMap(std::map<Key, Value> table) : std::map<Key, Value>(std::move(table)) {}
};

}  // namespace motley
