#include "motley/workload/workload_warnings.hpp"

#include <fmt/format.h>

#include "motley/base/units.hpp"

namespace motley {

std::vector<std::string> workload_warnings(const Workload& workload) {
  constexpr double most_rate_per_s = 1e5, most_tokens = 2e6;
  // Seconds for a token of one model on one device are ordinary on a CPU; an hour of waiting is none of serving.
  constexpr double least_token_s = 50e-6, most_token_s = 60, least_request_s = 1e-3, most_request_s = 24 * 3600;
  std::vector<std::string> warnings;
  const auto warn = [&](const RequestClass& one, const std::string& key, const std::string& value) {
    warnings.push_back(fmt::format("{} of class \"{}\" is read as {}: is the unit right?", key, one.name, value));
  };
  for (const auto& one : workload.classes) {
    if (one.rate_per_s > most_rate_per_s) warn(one, "rate", fmt::format("{:g} /s", one.rate_per_s));
    for (const auto& [key, length] :
         {std::pair("prompt_tokens", one.prompt_tokens), {"output_tokens", one.output_tokens}})
      if (length.mean > most_tokens) warn(one, key, fmt::format("{:g}", length.mean));
    const auto deadline = [&](const std::string& key, double seconds, double least, double most) {
      if (seconds > 0 && (seconds < least || seconds > most))
        warn(one, "deadline." + key, format_quantity(seconds, Dimension::seconds));
    };
    deadline("first_token", one.deadline.first_token_s, least_request_s, most_request_s);
    deadline("per_token", one.deadline.per_token_s, least_token_s, most_token_s);
    deadline("total", one.deadline.total_s, least_request_s, most_request_s);
  }
  return warnings;
}

}  // namespace motley
