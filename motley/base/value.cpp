#include "motley/base/value.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <toml++/toml.h>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr int max_depth = 64;

// Counts the lines that the JSON lexer has consumed. The lexer reads one character ahead at most, so a value's line is
// right unless it ends a line by itself, in which case the position is taken before the look-ahead (see
// Builder::here()).
struct Cursor {
  const char* at;
};

class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, Cursor* cursor) : at_(at), cursor_(cursor) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    if (cursor_) cursor_->at = at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  Cursor* cursor_;
};

int line_of(std::string_view text, std::size_t offset) {
  int line = 1;
  for (std::size_t i = 0; i < offset && i < text.size(); ++i) line += text[i] == '\n';
  return line;
}

[[noreturn]] void refuse(std::string_view source, int line, const std::string& message, std::string hint = {}) {
  Error error = input_error(message, std::move(hint));
  error.prepend_context(line > 0 ? fmt::format("{}:{}", source, line) : std::string(source));
  throw error;
}

// Receives nlohmann's parse events and builds the tree.
class Builder final : public nlohmann::json::json_sax_t {
 public:
  Builder(std::string_view text, std::string_view source, const Cursor& cursor)
      : text_(text), source_(source), cursor_(cursor) {}

  bool null() override { return put(Value()); }
  bool boolean(bool b) override { return put(Value(b)); }
  bool number_integer(number_integer_t i) override { return put(Value(static_cast<std::int64_t>(i))); }
  bool number_unsigned(number_unsigned_t u) override {
    if (u > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()))
      return put(Value(static_cast<double>(u)));
    return put(Value(static_cast<std::int64_t>(u)));
  }
  bool number_float(number_float_t d, const string_t&) override { return put(Value(static_cast<double>(d))); }
  bool string(string_t& s) override { return put(Value(std::move(s))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Value(Value::Object{})); }
  bool start_array(std::size_t) override { return open(Value(Value::Array{})); }
  bool key(string_t& k) override {
    if (!seen_.back().insert(k).second) refuse(source_, here(), fmt::format("key \"{}\" stands twice", k));
    keys_.back() = std::move(k);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t offset, const std::string&, const nlohmann::json::exception& error) override {
    // nlohmann's text: "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ...".
    std::string what = error.what();
    if (const auto at = what.find(": "); at != std::string::npos) what = what.substr(at + 2);
    refuse(source_, line_of(text_, offset > 0 ? offset - 1 : 0), what);
  }

  Value take() { return std::move(root_); }

 private:
  int here() {
    // Lines are counted once over the whole text, as the cursor moves on.
    const char* end = cursor_.at > text_.data() ? cursor_.at - 1 : text_.data();
    for (; counted_ < end; ++counted_) line_ += *counted_ == '\n';
    return line_;
  }
  bool put(Value value) {
    value.position.line = here();
    attach(std::move(value));
    return true;
  }
  bool open(Value value) {
    value.position.line = here();
    if (open_.size() >= max_depth) refuse(source_, line_, fmt::format("nested deeper than {} levels", max_depth));
    open_.push_back(std::move(value));
    keys_.emplace_back();
    seen_.emplace_back();
    return true;
  }
  bool close() {
    Value value = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    seen_.pop_back();
    attach(std::move(value));
    return true;
  }
  void attach(Value value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (open_.back().is_array())
      open_.back().as_array().push_back(std::move(value));
    else
      open_.back().as_object().emplace_back(std::move(keys_.back()), std::move(value));
  }

  std::string_view text_;
  std::string_view source_;
  const Cursor& cursor_;
  const char* counted_ = text_.data();
  int line_ = 1;
  Value root_;
  std::vector<Value> open_;
  std::vector<std::string> keys_;
  std::vector<std::unordered_set<std::string>> seen_;
};

Value from_toml(const toml::node& node, std::string_view source) {
  Value value;
  if (const auto* table = node.as_table()) {
    value = Value::object();
    for (const auto& [key, child] : *table)
      value.as_object().emplace_back(std::string(key.str()), from_toml(child, source));
  } else if (const auto* list = node.as_array()) {
    value = Value::array();
    for (const auto& child : *list) value.as_array().push_back(from_toml(child, source));
  } else if (const auto* text = node.as_string()) {
    value = Value(text->get());
  } else if (const auto* integer = node.as_integer()) {
    value = Value(static_cast<std::int64_t>(integer->get()));
  } else if (const auto* number = node.as_floating_point()) {
    value = Value(number->get());
  } else if (const auto* flag = node.as_boolean()) {
    value = Value(flag->get());
  } else {
    refuse(source, static_cast<int>(node.source().begin.line), "dates and times are not used here");
  }
  value.position.line = static_cast<int>(node.source().begin.line);
  return value;
}

nlohmann::ordered_json to_nlohmann(const Value& value) {
  if (value.is_null()) return nullptr;
  if (value.is_bool()) return value.as_bool();
  if (value.is_integer()) return value.as_integer();
  if (value.is_number()) return value.as_number();
  if (value.is_string()) return value.as_string();
  if (value.is_array()) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& item : value.as_array()) list.push_back(to_nlohmann(item));
    return list;
  }
  // Members go straight into the ordered container: its operator[] searches linearly.
  nlohmann::ordered_json::object_t members;
  for (const auto& [key, item] : value.as_object())
    members.std::vector<std::pair<const std::string, nlohmann::ordered_json>>::emplace_back(key, to_nlohmann(item));
  return members;
}

template <class T>
const T& expect(const T* pointer) {
  MOTLEY_CHECK(pointer != nullptr);
  return *pointer;
}

}  // namespace

bool Value::as_bool() const { return expect(std::get_if<bool>(&data_)); }
std::int64_t Value::as_integer() const { return expect(std::get_if<std::int64_t>(&data_)); }
double Value::as_number() const {
  if (const auto* integer = std::get_if<std::int64_t>(&data_)) return static_cast<double>(*integer);
  return expect(std::get_if<double>(&data_));
}
const std::string& Value::as_string() const { return expect(std::get_if<std::string>(&data_)); }
const Value::Array& Value::as_array() const { return expect(std::get_if<Array>(&data_)); }
Value::Array& Value::as_array() { return const_cast<Array&>(std::as_const(*this).as_array()); }
const Value::Object& Value::as_object() const { return expect(std::get_if<Object>(&data_)); }
Value::Object& Value::as_object() { return const_cast<Object&>(std::as_const(*this).as_object()); }

const Value* Value::find(std::string_view key) const {
  if (const auto* members = std::get_if<Object>(&data_))
    for (const auto& [name, value] : *members)
      if (name == key) return &value;
  return nullptr;
}

Value& Value::set(std::string_view key, Value value) {
  if (is_null()) data_ = Object{};
  for (auto& [name, old] : as_object())
    if (name == key) {
      old = std::move(value);
      return *this;
    }
  as_object().emplace_back(std::string(key), std::move(value));
  return *this;
}

void Value::push_back(Value value) {
  if (is_null()) data_ = Array{};
  as_array().push_back(std::move(value));
}

std::string_view Value::type_name() const {
  if (is_null()) return "null";
  if (is_bool()) return "true or false";
  if (is_integer()) return "an integer";
  if (is_number()) return "a number";
  if (is_string()) return "a string";
  if (is_array()) return "a list";
  return "a table";
}

bool operator==(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_integer() == b.as_integer();
    return a.as_number() == b.as_number();
  }
  return a.data_ == b.data_;
}

Value parse_json(std::string_view text, std::string_view source) {
  if (text.empty()) refuse(source, 0, "is empty");
  Cursor cursor{text.data()};
  Builder builder(text, source, cursor);
  nlohmann::json::sax_parse(CountingIterator(text.data(), &cursor),
                            CountingIterator(text.data() + text.size(), nullptr), &builder);
  return builder.take();
}

Value parse_toml(std::string_view text, std::string_view source) {
  try {
    return from_toml(toml::parse(text, source), source);
  } catch (const toml::parse_error& error) {
    refuse(source, static_cast<int>(error.source().begin.line), std::string(error.description()));
  }
}

Value read_document(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  return path.extension() == ".toml" ? parse_toml(text, path.string()) : parse_json(text, path.string());
}

std::string to_json(const Value& value, int indent) {
  return to_nlohmann(value).dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string read_file(const std::filesystem::path& path) {
  std::error_code status;
  if (std::filesystem::is_directory(path, status))
    throw input_error(fmt::format("{}: is a folder, not a file", path.string()));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw input_error(fmt::format("{}: cannot be read ({})", path.string(), std::strerror(errno)));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) throw input_error(fmt::format("{}: reading failed", path.string()));
  return text;
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + fmt::format(".{}.tmp", ::getpid());
  const auto give_up = [&](std::string_view what) {
    const std::string why = std::strerror(errno);
    ::unlink(temporary.c_str());
    throw Error(ErrorCode::environment, fmt::format("{}: {} ({})", path.string(), what, why));
  };
  std::ofstream file(temporary, std::ios::binary);
  if (!file) give_up("cannot be written");
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) give_up("writing failed");
  if (std::rename(temporary.c_str(), path.c_str()) != 0) give_up("cannot be replaced");
}

}  // namespace motley
