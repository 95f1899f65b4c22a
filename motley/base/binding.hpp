// One table per struct: it reads and writes JSON and TOML, checks ranges, places errors, and documents the format.
//
//   struct Link { double latency_s = 0; double bandwidth_bytes_per_s = 0; bool operator==(const Link&) const = default;
//   };
//
//   Schema<Link> schema_of(Bound<Link>);                     // in the header
//
//   Schema<Link> schema_of(Bound<Link>) {                    // in the source
//     return Schema<Link>("link", "A link between two places.")
//         .quantity("latency", &Link::latency_s, Dimension::seconds, "One way.", {.required = true, .min = 0})
//         .quantity("bandwidth", &Link::bandwidth_bytes_per_s, Dimension::bytes_per_s, "Bandwidth of the path.",
//         {.above = 0});
//   }
//
//   Link link = read<Link>(value, "cluster.toml");   Value back = write(link);
//
// Keys that equal the member of a default-constructed struct are not written unless required. Unknown keys are errors
// with a suggestion. A struct whose table has a format is a whole file, also inside another one.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/base/value.hpp"

namespace motley {

// A value and the way to it: "cluster.toml:14: machine[2].devices[0]".
class Reader {
 public:
  Reader(const Value& value, std::string source) : value_(&value), source_(std::move(source)) {}

  const Value& value() const { return *value_; }
  const std::string& path() const { return path_; }
  const std::string& source() const { return source_; }
  Reader member(std::string_view key, const Value& child) const;
  Reader item(std::size_t index, const Value& child) const;
  // The same place as the top of a versioned file, unless it already stands in one: its key `written_by` is read first,
  // so that errors about everything below can name the version that wrote it.
  Reader file() const;

  [[noreturn]] void fail(std::string_view message, std::string hint = {}) const;
  [[noreturn]] void expected(std::string_view what,
                             std::string hint = {}) const;  // "expected a string, found a number"
  // Of a key or a name that this program does not know. Both are added without a new format, so a newer version may
  // have written the file: the error says so, with that version where the file names it.
  [[noreturn]] void fail_unknown(std::string_view message, std::string hint) const;

 private:
  Reader below(std::string path, const Value& child) const;
  int line() const { return value_->position.line > 0 ? value_->position.line : inherited_line_; }

  const Value* value_;
  std::string source_;
  std::string path_;
  int inherited_line_ = 0;       // of the nearest parent that knows its line
  const Value* file_ = nullptr;  // the versioned file that this stands in
};

// The key of a versioned file that names the program that wrote it: "motley 0.1.0".
constexpr std::string_view writer_key = "written_by";

struct Limits {
  bool required = false;
  bool always_written = false;  // also where it equals the default
  double min = -std::numeric_limits<double>::infinity();
  double above = -std::numeric_limits<double>::infinity();  // exclusive minimum
  double max = std::numeric_limits<double>::infinity();
};

// One row of a format's documentation.
struct FieldDoc {
  std::string key;
  std::string type;  // "string", "quantity (s, ms, us, ...)", "list of link"
  std::string range;
  std::string doc;
  bool required = false;
  std::vector<const struct SchemaDoc* (*)()> nested;  // tables of the structs it holds
  bool always_written = false;
};

struct SchemaDoc {
  std::string name;
  std::string doc;
  std::string format;  // "motley.cluster/1" for whole files
  std::vector<FieldDoc> fields;
};

// Markdown tables of a format: its own and those of the structs inside, each once.
std::string document_markdown(const SchemaDoc& root);

// Names a type in a call: its own schema_of() or names_of() is found by this argument.
template <class T>
struct Bound {};

template <class T>
class Schema;
template <class T>
const Schema<T>& schema() {
  static const Schema<T> made = schema_of(Bound<T>());
  return made;
}

template <class E>
struct EnumName {
  E value;
  std::string_view name;
};
template <class E>
using EnumNames = std::vector<EnumName<E>>;
template <class E>
const EnumNames<E>& enum_names() {
  static const EnumNames<E> made = names_of(Bound<E>());
  return made;
}

template <class E>
std::string_view name_of(E value) {
  for (const auto& entry : enum_names<E>())
    if (entry.value == value) return entry.name;
  check_failed("enumerator has a name", __FILE__, __LINE__);
}

namespace binding {

bool read_bool(const Reader&);
std::int64_t read_integer(const Reader&, const Limits&);
double read_number(const Reader&, const Limits&);
std::string read_string(const Reader&);
double read_quantity(const Reader&, Dimension, const Limits&);
std::string read_choice(const Reader&, const std::vector<std::string>& names);
void check_format(const Reader&, std::string_view expected);
void check_keys(const Reader&, const std::vector<std::string>& known);
std::string range_text(const Limits&, std::optional<Dimension> = {});
std::string page_link(std::string_view format);  // "[`motley.cluster/1`](cluster.md)"

template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};
template <class T>
struct is_map : std::false_type {};
template <class T>
struct is_map<std::map<std::string, T>> : std::true_type {};

template <class T>
T read_any(const Reader& r, const Limits& limits);

template <class T>
Value write_any(const T& value) {
  if constexpr (std::is_same_v<T, Value> || std::is_same_v<T, bool> || std::is_same_v<T, std::string> ||
                std::is_same_v<T, double>) {
    return Value(value);
  } else if constexpr (std::is_integral_v<T>) {
    return Value(static_cast<std::int64_t>(value));
  } else if constexpr (std::is_enum_v<T>) {
    return Value(name_of(value));
  } else if constexpr (is_optional<T>::value) {
    return value ? write_any(*value) : Value();
  } else if constexpr (is_vector<T>::value) {
    Value list = Value::array();
    for (const auto& item : value) list.push_back(write_any<typename T::value_type>(item));
    return list;
  } else if constexpr (is_map<T>::value) {
    Value table = Value::object();
    for (const auto& [key, item] : value) table.as_object().emplace_back(key, write_any(item));
    return table;
  } else {
    return schema<T>().write(value);
  }
}

template <class T>
T read_any(const Reader& r, const Limits& limits) {
  if constexpr (std::is_same_v<T, Value>) {
    return r.value();
  } else if constexpr (std::is_same_v<T, bool>) {
    return read_bool(r);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return read_string(r);
  } else if constexpr (std::is_same_v<T, double>) {
    return read_number(r, limits);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(read_integer(r, limits));
  } else if constexpr (std::is_enum_v<T>) {
    std::vector<std::string> names;
    for (const auto& entry : enum_names<T>()) names.emplace_back(entry.name);
    const std::string name = read_choice(r, names);
    for (const auto& entry : enum_names<T>())
      if (entry.name == name) return entry.value;
    check_failed("choice is a name", __FILE__, __LINE__);
  } else if constexpr (is_optional<T>::value) {
    return read_any<typename T::value_type>(r, limits);
  } else if constexpr (is_vector<T>::value) {
    if (!r.value().is_array()) r.expected("a list");
    T list;
    std::size_t index = 0;
    for (const auto& item : r.value().as_array())
      list.push_back(read_any<typename T::value_type>(r.item(index++, item), limits));
    return list;
  } else if constexpr (is_map<T>::value) {
    if (!r.value().is_object()) r.expected("a table");
    T table;
    for (const auto& [key, item] : r.value().as_object())
      table.emplace(key, read_any<typename T::mapped_type>(r.member(key, item), limits));
    return table;
  } else {
    return schema<T>().read(r);
  }
}

template <class T>
std::string type_text();
template <class T>
void collect_nested(std::vector<const SchemaDoc* (*)()>& out);

}  // namespace binding

namespace binding {

// A member of a struct by its place in it, with what reads and writes it. Schemas know nothing more of their structs,
// so that all their code but two functions per type of member is compiled once: half the time, half the code.
class Member {
 public:
  virtual ~Member() = default;
  virtual void read(void* object, const Reader&) const = 0;
  virtual Value write(const void* object) const = 0;  // null: not written
};

class SchemaTable {
 public:
  const SchemaDoc& doc() const { return doc_; }

 protected:
  SchemaTable(std::string_view name, std::string_view doc) : doc_{std::string(name), std::string(doc), {}, {}} {}

  void add(FieldDoc row, std::shared_ptr<const Member> member);
  void add_all(const SchemaTable& inner, std::ptrdiff_t place);
  void read_fields(void* object, const Reader&) const;
  Value write_fields(const void* object) const;

  SchemaDoc doc_;
  std::vector<std::shared_ptr<const Member>> members_;  // in the order of doc_.fields
  std::vector<std::function<void(void* object, const Reader&)>> checks_;
};

// Of a struct's place in memory, as offsetof for members that are known by their pointers.
template <class T, class M>
std::ptrdiff_t place_of(M T::*member) {
  static const T object{};
  return reinterpret_cast<const char*>(&(object.*member)) - reinterpret_cast<const char*>(&object);
}

template <class M>
class PlacedMember : public Member {
 public:
  // Where the member equals `left_out` it is not written; null: it always is.
  PlacedMember(std::ptrdiff_t place, const M* left_out) : place_(place), left_out_(left_out) {}
  void read(void* object, const Reader& r) const final {
    *reinterpret_cast<M*>(static_cast<char*>(object) + place_) = read_member(r);
  }
  Value write(const void* object) const final {
    const M& member = *reinterpret_cast<const M*>(static_cast<const char*>(object) + place_);
    return left_out_ != nullptr && member == *left_out_ ? Value() : write_member(member);
  }

 private:
  virtual M read_member(const Reader&) const = 0;
  virtual Value write_member(const M&) const = 0;

  std::ptrdiff_t place_;
  const M* left_out_;
};

// A key that is not one member of its struct.
class FreeMember final : public Member {
 public:
  using Read = std::function<void(void* object, const Reader&)>;
  using Write = std::function<Value(const void* object)>;
  FreeMember(Read read, Write write) : read_(std::move(read)), write_(std::move(write)) {}
  void read(void* object, const Reader& r) const override { read_(object, r); }
  Value write(const void* object) const override { return write_(object); }

 private:
  Read read_;
  Write write_;
};

template <class M>
class PlainMember final : public PlacedMember<M> {
 public:
  PlainMember(std::ptrdiff_t place, const M* left_out, const Limits& limits)
      : PlacedMember<M>(place, left_out), limits_(limits) {}

 private:
  M read_member(const Reader& r) const override { return read_any<M>(r, limits_); }
  Value write_member(const M& member) const override { return write_any<M>(member); }

  Limits limits_;
};

template <class M>
class QuantityMember final : public PlacedMember<M> {
 public:
  QuantityMember(std::ptrdiff_t place, const M* left_out, Dimension dimension, const Limits& limits)
      : PlacedMember<M>(place, left_out), dimension_(dimension), limits_(limits) {}

 private:
  M read_member(const Reader& r) const override {
    const double value = read_quantity(r, dimension_, limits_);
    if constexpr (std::is_integral_v<M> || std::is_same_v<M, std::optional<std::int64_t>>)
      return static_cast<std::int64_t>(std::llround(value));
    else
      return value;
  }
  Value write_member(const M& member) const override {
    if constexpr (is_optional<M>::value)
      return member ? Value(format_quantity(static_cast<double>(*member), dimension_)) : Value();
    else
      return Value(format_quantity(static_cast<double>(member), dimension_));
  }

  Dimension dimension_;
  Limits limits_;
};

template <class M>
class CustomMember final : public PlacedMember<M> {
 public:
  CustomMember(std::ptrdiff_t place, const M* left_out, std::function<M(const Reader&)> read,
               std::function<Value(const M&)> write)
      : PlacedMember<M>(place, left_out), read_(std::move(read)), write_(std::move(write)) {}

 private:
  M read_member(const Reader& r) const override { return read_(r); }
  Value write_member(const M& member) const override { return write_(member); }

  std::function<M(const Reader&)> read_;
  std::function<Value(const M&)> write_;
};

FieldDoc row(std::string_view key, std::string type, std::string range, std::string_view doc, const Limits&);
template <class M>
FieldDoc row_of(std::string_view key, std::string_view doc, const Limits&);

}  // namespace binding

template <class T>
class Schema : public binding::SchemaTable {
 public:
  Schema(std::string_view name, std::string_view doc) : SchemaTable(name, doc) {}

  // The file carries `format = "motley.<kind>/1"`.
  Schema& format(std::string_view name) {
    doc_.format = name;
    return *this;
  }

  // Any member that JSON has a shape for: bool, integer, double, string, enum, Value, struct, optional, vector, map.
  template <class M>
  Schema& field(std::string_view key, M T::*member, std::string_view doc, const Limits& limits = {}) {
    return put<binding::PlainMember<M>>(binding::row_of<M>(key, doc, limits), member, limits);
  }

  // A number that people write with its unit: double, std::int64_t, or an optional of either.
  template <class M>
  Schema& quantity(std::string_view key, M T::*member, Dimension dimension, std::string_view doc,
                   const Limits& limits = {}) {
    return put<binding::QuantityMember<M>>(binding::row(key, "quantity: " + accepted_units(dimension),
                                                        binding::range_text(limits, dimension), doc, limits),
                                           member, dimension, limits);
  }

  // A member with a reader and a writer of its own. A writer's null is not written.
  template <class M>
  Schema& custom(FieldDoc row, M T::*member, std::function<M(const Reader&)> read_member,
                 std::function<Value(const M&)> write_member) {
    return put<binding::CustomMember<M>>(std::move(row), member, std::move(read_member), std::move(write_member));
  }

  // The keys of a member struct stand among this struct's own.
  template <class M>
  Schema& flatten(M T::*member) {
    add_all(schema<M>(), binding::place_of(member));
    return *this;
  }

  // A key that is not a single member: `read_key` puts into the struct what it says, `write_key` returns what is
  // written, or null for nothing.
  Schema& key(FieldDoc row, std::function<void(T&, const Reader&)> read_key, std::function<Value(const T&)> write_key) {
    add(std::move(row),
        std::make_shared<binding::FreeMember>(
            [read_key = std::move(read_key)](void* object, const Reader& r) { read_key(*static_cast<T*>(object), r); },
            [write_key = std::move(write_key)](const void* object) {
              return write_key(*static_cast<const T*>(object));
            }));
    return *this;
  }

  // Runs after all fields are read: conditions across fields. It reports through `Reader::fail`.
  Schema& check(std::function<void(const T&, const Reader&)> condition) { return derive(std::move(condition)); }

  // Runs after all fields are read, in order with the checks: members that follow from those that have keys.
  Schema& derive(std::function<void(T&, const Reader&)> rest) {
    checks_.push_back([rest = std::move(rest)](void* object, const Reader& r) { rest(*static_cast<T*>(object), r); });
    return *this;
  }

  T read(const Reader& r) const {
    T object{};
    read_fields(&object, r);
    return object;
  }

  Value write(const T& object) const { return write_fields(&object); }

 private:
  template <class Kind, class M, class... Arguments>
  Schema& put(FieldDoc row, M T::*member, Arguments&&... arguments) {
    static const T defaults{};
    const M* left_out = row.required || row.always_written ? nullptr : &(defaults.*member);
    add(std::move(row),
        std::make_shared<Kind>(binding::place_of(member), left_out, std::forward<Arguments>(arguments)...));
    return *this;
  }
};

namespace binding {

template <class T>
std::string type_text() {
  if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "string";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else if constexpr (std::is_integral_v<T>) {
    return "integer";
  } else if constexpr (std::is_same_v<T, Value>) {
    return "any value";
  } else if constexpr (std::is_enum_v<T>) {
    std::string text;
    for (const auto& entry : enum_names<T>()) text += (text.empty() ? "`" : ", `") + std::string(entry.name) + "`";
    return text;
  } else if constexpr (is_optional<T>::value) {
    return type_text<typename T::value_type>();
  } else if constexpr (is_vector<T>::value) {
    return "list of " + type_text<typename T::value_type>();
  } else if constexpr (is_map<T>::value) {
    return "table of " + type_text<typename T::mapped_type>();
  } else {
    const SchemaDoc& doc = schema<T>().doc();
    return doc.format.empty() ? doc.name : page_link(doc.format);
  }
}

template <class T>
void collect_nested(std::vector<const SchemaDoc* (*)()>& out) {
  if constexpr (is_optional<T>::value || is_vector<T>::value) {
    collect_nested<typename T::value_type>(out);
  } else if constexpr (is_map<T>::value) {
    collect_nested<typename T::mapped_type>(out);
  } else if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string> && !std::is_same_v<T, Value>) {
    if (!schema<T>().doc().format.empty()) return;  // a whole file has a page of its own
    out.push_back([]() -> const SchemaDoc* { return &schema<T>().doc(); });
  }
}

template <class M>
FieldDoc row_of(std::string_view key, std::string_view doc, const Limits& limits) {
  FieldDoc result = row(key, type_text<M>(), range_text(limits), doc, limits);
  collect_nested<M>(result.nested);
  return result;
}

}  // namespace binding

template <class T>
T read(const Value& value, std::string source) {
  return schema<T>().read(Reader(value, std::move(source)));
}

template <class T>
Value write(const T& object) {
  return schema<T>().write(object);
}

}  // namespace motley
