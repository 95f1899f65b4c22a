#include "motley/base/binding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "motley/base/foreign.hpp"
#include "motley/base/version.hpp"

namespace motley {

Reader Reader::member(std::string_view key, const Value& child) const {
  return below(path_.empty() ? shortened(key) : path_ + "." + shortened(key), child);
}

Reader Reader::item(std::size_t index, const Value& child) const {
  return below(path_ + fmt::format("[{}]", index), child);
}

Reader Reader::below(std::string path, const Value& child) const {
  Reader reader(child, source_);
  reader.path_ = std::move(path);
  if (reader.value_->position.line == 0) reader.inherited_line_ = line();
  reader.file_ = file_;
  return reader;
}

Reader Reader::file() const {
  Reader reader = *this;
  if (!file_) reader.file_ = value_;
  return reader;
}

void Reader::fail(std::string_view message, std::string hint) const {
  std::string place = source_;
  if (line() > 0) place += fmt::format(":{}", line());
  if (!path_.empty()) place += (place.empty() ? "" : ": ") + path_;
  Error error = input_error(shortened(message, most_message_bytes), shortened(hint, most_message_bytes));
  if (!place.empty()) error.prepend_context(place);
  throw error;
}

void Reader::expected(std::string_view what, std::string hint) const {
  fail(fmt::format("expected {}, found {}", what, value_->type_name()), std::move(hint));
}

namespace {

// The numbers of "motley 0.1.0"; none of anything else.
std::optional<std::array<int, 3>> version_numbers(std::string_view text) {
  constexpr std::string_view program = "motley ";
  if (!text.starts_with(program)) return {};
  std::array<int, 3> numbers{};
  const char* at = text.data() + program.size();
  const char* const end = text.data() + text.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0 && (at == end || *at++ != '.')) return {};
    const auto [rest, status] = std::from_chars(at, end, numbers[i]);
    if (status != std::errc()) return {};
    at = rest;
  }
  return at == end ? std::optional(numbers) : std::nullopt;
}

}  // namespace

void Reader::fail_unknown(std::string_view message, std::string hint) const {
  if (!file_) fail(message, std::move(hint));
  const Value* writer = file_->find(writer_key);
  const std::string theirs = writer && writer->is_string() ? writer->as_string() : "", ours = program_version();
  const auto their_version = version_numbers(theirs);
  if (their_version && their_version <= version_numbers(ours)) fail(message, std::move(hint));
  if (!hint.empty()) hint += ' ';
  if (!their_version) fail(message, fmt::format("{}(a newer version than {} may have written it)", hint, ours));
  fail(fmt::format("{}: {} wrote the file, and this is {}", message, theirs, ours),
       fmt::format("{}(or read it with {} or later)", hint, theirs));
}

namespace {

void check_range(const Reader& r, double value, const Limits& limits, std::optional<Dimension> dimension) {
  if (!std::isfinite(value)) r.fail("must be finite", "give a finite number, not inf or nan");
  if (value >= limits.min && value > limits.above && value <= limits.max) return;
  const std::string shown = dimension ? format_quantity(value, *dimension) : fmt::format("{}", value);
  r.fail(fmt::format("{} is out of range", shown), "accepted: " + binding::range_text(limits, dimension));
}

}  // namespace

namespace binding {

bool read_bool(const Reader& r) {
  if (!r.value().is_bool()) r.expected("true or false");
  return r.value().as_bool();
}

std::int64_t read_integer(const Reader& r, const Limits& limits) {
  if (!r.value().is_integer()) r.expected("an integer");
  const std::int64_t value = r.value().as_integer();
  check_range(r, static_cast<double>(value), limits, {});
  return value;
}

double read_number(const Reader& r, const Limits& limits) {
  if (!r.value().is_number()) r.expected("a number");
  const double value = r.value().as_number();
  check_range(r, value, limits, {});
  return value;
}

std::string read_string(const Reader& r) {
  if (!r.value().is_string()) r.expected("a string");
  return r.value().as_string();
}

double read_quantity(const Reader& r, Dimension dimension, const Limits& limits) {
  if (!r.value().is_string()) {
    r.fail(r.value().is_number() ? "a number needs its unit"
                                 : fmt::format("expected a quantity with its unit, found {}", r.value().type_name()),
           fmt::format("write it as a string such as \"{}\"; units: {}", example_quantity(dimension),
                       accepted_units(dimension)));
  }
  double value = 0;
  try {
    value = parse_quantity(r.value().as_string(), dimension);
  } catch (const Error& error) {
    r.fail(error.message(), error.hint());
  }
  check_range(r, value, limits, dimension);
  return value;
}

std::string read_choice(const Reader& r, const std::vector<std::string>& names) {
  if (!r.value().is_string()) r.expected("a string");
  const std::string& name = r.value().as_string();
  if (std::find(names.begin(), names.end(), name) != names.end()) return name;
  r.fail_unknown(fmt::format("\"{}\" is not one of {}", shortened(name), fmt::join(names, ", ")),
                 did_you_mean(name, names));
}

FieldDoc row(std::string_view key, std::string type, std::string range, std::string_view doc, const Limits& limits) {
  return {std::string(key),     std::move(type), std::move(range), std::string(doc), limits.required, {},
          limits.always_written};
}

namespace {

// A member of a member: its own schema says how it is read, written and left out.
class InnerMember final : public Member {
 public:
  InnerMember(std::ptrdiff_t place, std::shared_ptr<const Member> member) : place_(place), member_(std::move(member)) {}
  void read(void* object, const Reader& r) const override { member_->read(static_cast<char*>(object) + place_, r); }
  Value write(const void* object) const override { return member_->write(static_cast<const char*>(object) + place_); }

 private:
  std::ptrdiff_t place_;
  std::shared_ptr<const Member> member_;
};

}  // namespace

void SchemaTable::add(FieldDoc row, std::shared_ptr<const Member> member) {
  doc_.fields.push_back(std::move(row));
  members_.push_back(std::move(member));
}

void SchemaTable::add_all(const SchemaTable& inner, std::ptrdiff_t place) {
  for (std::size_t i = 0; i < inner.members_.size(); ++i)
    add(inner.doc_.fields[i], std::make_shared<InnerMember>(place, inner.members_[i]));
  for (const auto& condition : inner.checks_)
    checks_.push_back(
        [place, &condition](void* object, const Reader& r) { condition(static_cast<char*>(object) + place, r); });
}

void SchemaTable::read_fields(void* object, const Reader& place) const {
  if (!place.value().is_object()) place.expected("a table (" + doc_.name + ")");
  const Reader r = doc_.format.empty() ? place : place.file();
  std::vector<std::string> known;
  for (const FieldDoc& field : doc_.fields) known.push_back(field.key);
  if (!doc_.format.empty()) {
    check_format(r, doc_.format);
    known.push_back("format");
  }
  check_keys(r, known);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const FieldDoc& field = doc_.fields[i];
    if (const Value* child = r.value().find(field.key); child && !child->is_null())
      members_[i]->read(object, r.member(field.key, *child));
    else if (field.required)
      r.fail("`" + field.key + "` is missing", field.doc);
  }
  for (const auto& condition : checks_) condition(object, r);
}

Value SchemaTable::write_fields(const void* object) const {
  Value out = Value::object();
  if (!doc_.format.empty()) out.set("format", doc_.format);
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (Value value = members_[i]->write(object); !value.is_null()) out.set(doc_.fields[i].key, std::move(value));
  return out;
}

void check_format(const Reader& r, std::string_view expected) {
  const std::string_view kind = expected.substr(0, expected.find('/'));
  const Value* format = r.value().find("format");
  if (!format) r.fail("`format` is missing", fmt::format("write format = \"{}\" at the top of the file", expected));
  const Reader at = r.member("format", *format);
  const std::string text = read_string(at);
  if (text == expected) return;
  if (text.substr(0, text.find('/')) == kind)
    at.fail(fmt::format("version \"{}\" is not supported", text),
            fmt::format("give a file with format = \"{}\"", expected));
  at.fail(fmt::format("this is a \"{}\" file, not \"{}\"", text, expected),
          fmt::format("give a file with format = \"{}\"", expected));
}

void check_keys(const Reader& r, const std::vector<std::string>& known) {
  for (const auto& [key, child] : r.value().as_object()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    r.member(key, child)
        .fail_unknown("unknown key",
                      did_you_mean(key, known, fmt::format("known keys: {}", fmt::join(known, ", ")), '`'));
  }
}

std::string page_link(std::string_view format) {
  const std::string_view kind = format.substr(format.find('.') + 1);
  return fmt::format("[`{}`]({}.md)", format, kind.substr(0, kind.find('/')));
}

std::string range_text(const Limits& limits, std::optional<Dimension> dimension) {
  const auto show = [&](double value) {
    return dimension ? format_quantity(value, *dimension) : fmt::format("{}", value);
  };
  std::vector<std::string> parts;
  if (std::isfinite(limits.min)) parts.push_back("at least " + show(limits.min));
  if (std::isfinite(limits.above)) parts.push_back("above " + show(limits.above));
  if (std::isfinite(limits.max)) parts.push_back("at most " + show(limits.max));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace binding

// Prose in lines of at most 120 columns, as ./dev lint asks of every page.
static std::string wrapped(std::string_view text) {
  std::string out;
  std::size_t column = 0;
  while (!text.empty()) {
    const auto word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const bool fits = column + 1 + word.size() <= 120;
    if (column > 0) out += fits ? ' ' : '\n';
    column = word.size() + (column > 0 && fits ? column + 1 : 0);
    out += word;
  }
  return out;
}

std::string document_markdown(const SchemaDoc& root) {
  std::string out;
  std::vector<const SchemaDoc*> queue{&root};
  std::set<std::string> seen{root.name};
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const SchemaDoc& table = *queue[next];
    out += fmt::format("## {}\n\n{}\n\n", table.name, wrapped(table.doc));
    out += "| key | type | range | meaning |\n|---|---|---|---|\n";
    if (!table.format.empty())
      out += fmt::format("| `format` (required) | `\"{}\"` | | Kind and version of the file. |\n", table.format);
    for (const auto& field : table.fields) {
      out += fmt::format("| `{}`{} | {} | {} | {} |\n", field.key, field.required ? " (required)" : "", field.type,
                         field.range, field.doc);
      for (const auto nested : field.nested) {
        const SchemaDoc* child = nested();
        if (seen.insert(child->name).second) queue.push_back(child);
      }
    }
    out += "\n";
  }
  return out;
}

}  // namespace motley
