// Traces: CSV files of requests, and what a workload takes from them.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "motley/base/error.hpp"
#include "motley/workload/trace.hpp"
#include "motley/workload/workload.hpp"

namespace motley {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view blank = " \t\r";
  const auto first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> cells;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    cells.push_back(trim(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return cells;
}

const std::vector<std::string> columns = {"arrival_s", "prompt_tokens", "output_tokens", "class"};

// A CSV file with a header out of `columns`, and the place for messages.
class Table {
 public:
  explicit Table(const std::filesystem::path& path) : source_(path.string()), text_(read_file(path)) {
    std::string_view header;
    if (!next_line(header))
      fail("is empty", "name the columns in the first line: arrival_s,prompt_tokens,output_tokens,class");
    names_ = split(header);
    for (const std::string_view name : names_) {
      if (std::find(columns.begin(), columns.end(), name) == columns.end())
        fail(fmt::format("column \"{}\" is unknown", name),
             did_you_mean(name, columns, "use the columns arrival_s, prompt_tokens, output_tokens, class", '`'));
      if (std::count(names_.begin(), names_.end(), name) > 1)
        fail(fmt::format("column \"{}\" appears twice", name), "keep one of them");
    }
  }

  bool next_row() {
    std::string_view line;
    if (!next_line(line)) return false;
    cells_ = split(line);
    if (cells_.size() != names_.size())
      fail(fmt::format("{} cells under {} columns", cells_.size(), names_.size()),
           "give each line one cell per column");
    return true;
  }

  bool has(std::string_view column) const { return std::find(names_.begin(), names_.end(), column) != names_.end(); }
  void require(std::string_view column) const {
    if (!has(column))
      fail(fmt::format("column `{}` is missing", column), fmt::format("the file has: {}", fmt::join(names_, ", ")));
  }
  std::string_view cell(std::string_view column) const {
    const auto found = std::find(names_.begin(), names_.end(), column);
    return found == names_.end() ? std::string_view() : cells_[static_cast<std::size_t>(found - names_.begin())];
  }

  double seconds(std::string_view column) const {
    const std::string_view text = cell(column);
    double value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0)
      fail(fmt::format("{}: \"{}\" is not a time in seconds", column, text), "give a number of at least 0");
    return value;
  }
  std::int64_t tokens(std::string_view column) const {
    const std::string_view text = cell(column);
    std::int64_t value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size() || value < 1 || value > most_tokens)
      fail(fmt::format("{}: \"{}\" is not a number of tokens", column, text),
           fmt::format("give an integer from 1 to {}", most_tokens));
    return value;
  }

  [[noreturn]] void fail(std::string message, std::string hint) const {
    Error error = input_error(std::move(message), std::move(hint));
    error.prepend_context(line_number_ > 0 ? fmt::format("{}:{}", source_, line_number_) : source_);
    throw error;
  }

 private:
  static constexpr std::int64_t most_tokens = 100'000'000;

  bool next_line(std::string_view& line) {
    while (begin_ < text_.size()) {
      const std::size_t end = std::min(text_.find('\n', begin_), text_.size());
      line = trim(std::string_view(text_).substr(begin_, end - begin_));
      begin_ = end + 1;
      ++line_number_;
      if (!line.empty()) return true;
    }
    return false;
  }

  std::string source_;
  std::string text_;
  std::size_t begin_ = 0;
  int line_number_ = 0;
  std::vector<std::string_view> names_;
  std::vector<std::string_view> cells_;
};

// Linear interpolation between the sorted values.
double percentile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// What is not given comes from the tokens of a trace.
void fill(Length& length, std::vector<double> tokens) {
  std::sort(tokens.begin(), tokens.end());
  double sum = 0;
  for (const double count : tokens) sum += count;
  if (length.mean == 0) length.mean = sum / static_cast<double>(tokens.size());
  if (length.p50 == 0) length.p50 = percentile(tokens, 0.50);
  if (length.p99 == 0) length.p99 = percentile(tokens, 0.99);
}

void fill_from_file(Length& length, const std::filesystem::path& folder, std::string_view column,
                    const std::string& class_name) {
  if (length.trace.empty()) return;
  length.trace = (folder / length.trace).lexically_normal().string();
  const std::vector<std::int64_t> tokens = read_lengths(length.trace, column, class_name);
  fill(length, {tokens.begin(), tokens.end()});
}

// Classes take rate and lengths from the trace, except what they give themselves.
void fill_from_arrivals(Workload& workload, const std::vector<TraceRequest>& requests) {
  const std::string& source = workload.arrival.file;
  if (workload.classes.empty())
    for (const auto& request : requests)
      if (std::none_of(workload.classes.begin(), workload.classes.end(),
                       [&](const auto& c) { return c.name == request.class_name; }))
        workload.classes.emplace_back().name = request.class_name;
  std::vector<std::string> names;
  for (const auto& described : workload.classes) names.push_back(described.name);
  for (const auto& request : requests)
    if (std::find(names.begin(), names.end(), request.class_name) == names.end())
      throw input_error(fmt::format("{}: class \"{}\" is not in the workload", source, request.class_name),
                        did_you_mean(request.class_name, names,
                                     fmt::format("add a [[class]] for it, or use one of {}", fmt::join(names, ", "))));
  const double span_s = requests.back().arrival_s - requests.front().arrival_s;
  for (auto& described : workload.classes) {
    std::vector<double> prompts, outputs;
    for (const auto& request : requests)
      if (request.class_name == described.name) {
        prompts.push_back(static_cast<double>(request.prompt_tokens));
        outputs.push_back(static_cast<double>(request.output_tokens));
      }
    if (prompts.empty())
      throw input_error(fmt::format("{}: the trace has no request of class \"{}\"", source, described.name),
                        "remove the class, or use the name in the trace");
    // n arrivals bound n - 1 times between them.
    const auto share = static_cast<double>(prompts.size()) / static_cast<double>(requests.size());
    if (described.rate_per_s == 0 && span_s > 0)
      described.rate_per_s = share * static_cast<double>(requests.size() - 1) / span_s;
    fill(described.prompt_tokens, std::move(prompts));
    fill(described.output_tokens, std::move(outputs));
  }
}

}  // namespace

std::vector<std::int64_t> read_lengths(const std::filesystem::path& path, std::string_view column,
                                       const std::string& class_name) {
  Table table(path);
  table.require(column);
  std::vector<std::int64_t> lengths;
  while (table.next_row())
    if (const std::int64_t tokens = table.tokens(column); !table.has("class") || table.cell("class") == class_name)
      lengths.push_back(tokens);
  if (lengths.empty())
    table.fail(fmt::format("the trace has no request of class \"{}\"", class_name), "use the name in the trace");
  return lengths;
}

std::vector<TraceRequest> read_trace(const std::filesystem::path& path) {
  Table table(path);
  for (const std::string_view column : {"arrival_s", "prompt_tokens", "output_tokens"}) table.require(column);
  std::vector<TraceRequest> requests;
  while (table.next_row()) {
    TraceRequest request{table.seconds("arrival_s"), table.tokens("prompt_tokens"), table.tokens("output_tokens"),
                         table.has("class") ? std::string(table.cell("class")) : "default"};
    if (request.class_name.empty()) table.fail("class: the cell is empty", "name the class, or remove the column");
    if (!requests.empty() && request.arrival_s < requests.back().arrival_s)
      table.fail(
          fmt::format("arrival_s: {} comes before the line above, {}", request.arrival_s, requests.back().arrival_s),
          "sort the lines by arrival");
    requests.push_back(std::move(request));
  }
  if (requests.empty()) table.fail("the trace has no request", "write one line per request below the header");
  return requests;
}

Workload read_workload(const std::filesystem::path& path) {
  auto workload = read<Workload>(read_document(path), path.string());
  const std::filesystem::path folder = path.parent_path();
  for (auto& described : workload.classes) {
    fill_from_file(described.prompt_tokens, folder, "prompt_tokens", described.name);
    fill_from_file(described.output_tokens, folder, "output_tokens", described.name);
  }
  if (workload.arrival.process == ArrivalProcess::trace) {
    workload.arrival.file = (folder / workload.arrival.file).lexically_normal().string();
    fill_from_arrivals(workload, read_trace(workload.arrival.file));
  }
  return workload;
}

}  // namespace motley
