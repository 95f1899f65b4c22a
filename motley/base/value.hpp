// A parsed JSON or TOML document: one tree of values, each knowing where in the source it stands.
//
// All files that motley reads or writes pass through this tree; the libraries that parse and print (nlohmann-json,
// toml++) are included by value.cpp alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace motley {

struct Position {
  int line = 0;  // 1-based; 0: unknown
};

class Value {
 public:
  using Array = std::vector<Value>;
  using Member = std::pair<std::string, Value>;
  using Object = std::vector<Member>;  // in source order, keys unique

  Value() = default;
  Value(std::nullptr_t) {}
  Value(bool b) : data_(b) {}
  Value(std::int64_t i) : data_(i) {}
  Value(int i) : data_(std::int64_t{i}) {}
  Value(double d) : data_(d) {}
  Value(std::string s) : data_(std::move(s)) {}
  Value(std::string_view s) : data_(std::string(s)) {}
  Value(const char* s) : data_(std::string(s)) {}
  Value(Array a) : data_(std::move(a)) {}
  Value(Object o) : data_(std::move(o)) {}

  static Value object(std::initializer_list<Member> members = {}) { return Value(Object(members)); }
  static Value array(std::initializer_list<Value> items = {}) { return Value(Array(items)); }

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<std::string>(data_); }
  bool is_array() const { return std::holds_alternative<Array>(data_); }
  bool is_object() const { return std::holds_alternative<Object>(data_); }

  // These throw an internal error on another type: check first, or read through binding.hpp.
  bool as_bool() const;
  std::int64_t as_integer() const;
  double as_number() const;  // integers too
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  // The member of an object; nullptr where there is none (or this is not an object).
  const Value* find(std::string_view key) const;
  // Replaces or appends a member of an object; a null value becomes an object first.
  Value& set(std::string_view key, Value value);
  void push_back(Value value);  // a null value becomes an array first

  // "an object", "a string", ...: for messages.
  std::string_view type_name() const;

  Position position;

  // Equality of content; positions do not count, and 1 equals 1.0.
  friend bool operator==(const Value& a, const Value& b);

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> data_;
};

// Both throw an input error that names source, line and cause. `source` is a file name or a phrase ("request body").
// Duplicate keys, nesting deeper than 64 and invalid UTF-8 are refused.
Value parse_json(std::string_view text, std::string_view source);
Value parse_toml(std::string_view text, std::string_view source);

// By extension: .toml is TOML, anything else JSON.
Value read_document(const std::filesystem::path& path);

// indent < 0: one line. Doubles are written with the shortest digits that read back to the same value.
std::string to_json(const Value& value, int indent = -1);

// Whole-file helpers; writing goes to a temporary file first and is renamed, so that nothing is ever half-written.
std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view content);

}  // namespace motley
