#include "motley/base/units.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <span>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/foreign.hpp"

namespace motley {
namespace {

struct Unit {
  std::string_view name;
  double scale;
  bool preferred;  // written by format_quantity()
};

constexpr double kibi = 1024.0, mebi = kibi * 1024, gibi = mebi * 1024, tebi = gibi * 1024;

constexpr Unit byte_units[] = {{"B", 1, true},      {"kB", 1e3, true},   {"MB", 1e6, true},
                               {"GB", 1e9, true},   {"TB", 1e12, true},  {"KiB", kibi, true},
                               {"MiB", mebi, true}, {"GiB", gibi, true}, {"TiB", tebi, true}};
constexpr Unit rate_units[] = {{"B/s", 1, true},           {"kB/s", 1e3, true},        {"MB/s", 1e6, true},
                               {"GB/s", 1e9, true},        {"TB/s", 1e12, true},       {"KiB/s", kibi, false},
                               {"MiB/s", mebi, false},     {"GiB/s", gibi, false},     {"bit/s", 0.125, false},
                               {"kbit/s", 0.125e3, false}, {"Mbit/s", 0.125e6, false}, {"Gbit/s", 0.125e9, false},
                               {"Tbit/s", 0.125e12, false}};
constexpr Unit time_units[] = {{"s", 1, true},     {"ms", 1e-3, true}, {"us", 1e-6, true}, {"µs", 1e-6, false},
                               {"ns", 1e-9, true}, {"min", 60, false}, {"h", 3600, false}, {"d", 86400, false}};
constexpr Unit flop_units[] = {{"FLOP/s", 1, true},
                               {"GFLOP/s", 1e9, true},
                               {"TFLOP/s", 1e12, true},
                               {"PFLOP/s", 1e15, true},
                               {"MFLOP/s", 1e6, true}};
constexpr Unit price_units[] = {{"$/h", 1, true}, {"USD/h", 1, false}};
constexpr Unit inverse_rate_units[] = {{"s/B", 1, true}, {"s/GB", 1e-9, false}};
constexpr Unit frequency_units[] = {{"/s", 1, true}, {"/min", 1.0 / 60, false}, {"/h", 1.0 / 3600, false}};

std::span<const Unit> units_of(Dimension dimension) {
  switch (dimension) {
    case Dimension::bytes: return byte_units;
    case Dimension::bytes_per_s: return rate_units;
    case Dimension::seconds: return time_units;
    case Dimension::flop_per_s: return flop_units;
    case Dimension::usd_per_hour: return price_units;
    case Dimension::seconds_per_byte: return inverse_rate_units;
    case Dimension::per_s: return frequency_units;
  }
  check_failed("dimension is known", __FILE__, __LINE__);
}

std::string scaled(double value, std::span<const std::pair<double, std::string_view>> scales) {
  for (const auto& [scale, name] : scales)
    if (std::abs(value) >= scale || scale == scales.back().first) {
      const double shown = value / scale;
      return fmt::format("{:.{}f} {}", shown, std::abs(shown) >= 100 ? 0 : std::abs(shown) >= 10 ? 1 : 2, name);
    }
  return fmt::format("{}", value);
}

}  // namespace

double parse_quantity(std::string_view text, Dimension dimension) {
  const auto refuse = [&](std::string_view why) {
    return input_error(
        fmt::format("\"{}\" {}", shortened(text), why),
        fmt::format("write it as \"{}\"; units: {}", example_quantity(dimension), accepted_units(dimension)));
  };
  const auto trim = [](std::string_view s) {
    while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
    while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
    return s;
  };
  const std::string_view body = trim(text);
  double number = 0;
  const auto [end, status] = std::from_chars(body.data(), body.data() + body.size(), number);
  if (status != std::errc() || !std::isfinite(number)) throw refuse("does not start with a number");
  const std::string_view unit = trim(body.substr(static_cast<std::size_t>(end - body.data())));
  if (unit.empty()) throw refuse("has no unit");
  for (const Unit& candidate : units_of(dimension))
    if (candidate.name == unit) return number * candidate.scale;
  throw refuse(fmt::format("has a wrong unit, \"{}\"", shortened(unit)));
}

std::string format_quantity(double value, Dimension dimension) {
  std::string best;
  for (const Unit& unit : units_of(dimension)) {
    if (!unit.preferred) continue;
    const double shown = value / unit.scale;
    if (shown * unit.scale != value) continue;
    std::string text = fmt::format("{}", shown);
    if (text.find('e') != std::string::npos && unit.scale != 1) continue;
    text += fmt::format(" {}", unit.name);
    if (best.empty() || text.size() <= best.size()) best = std::move(text);
  }
  return best;
}

std::string accepted_units(Dimension dimension) {
  std::vector<std::string_view> names;
  for (const Unit& unit : units_of(dimension)) names.push_back(unit.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string example_quantity(Dimension dimension) {
  switch (dimension) {
    case Dimension::bytes: return "24 GiB";
    case Dimension::bytes_per_s: return "10 Gbit/s";
    case Dimension::seconds: return "5 us";
    case Dimension::flop_per_s: return "76.7 TFLOP/s";
    case Dimension::usd_per_hour: return "0.53 $/h";
    case Dimension::seconds_per_byte: return "5e-11 s/B";
    case Dimension::per_s: return "4 /s";
  }
  check_failed("dimension is known", __FILE__, __LINE__);
}

std::string human_bytes(double bytes) {
  static constexpr std::pair<double, std::string_view> scales[] = {
      {tebi, "TiB"}, {gibi, "GiB"}, {mebi, "MiB"}, {kibi, "KiB"}, {1, "B"}};
  return scaled(bytes, scales);
}

std::string human_rate(double bytes_per_s) {
  static constexpr std::pair<double, std::string_view> scales[] = {
      {1e12, "TB/s"}, {1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "kB/s"}, {1, "B/s"}};
  return scaled(bytes_per_s, scales);
}

std::string human_seconds(double seconds) {
  static constexpr std::pair<double, std::string_view> scales[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
  return scaled(seconds, scales);
}

std::string human_count(double count) {
  static constexpr std::pair<double, std::string_view> scales[] = {
      {1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}, {1, ""}};
  std::string text = scaled(count, scales);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace motley
