#include "motley/cli/losses.hpp"

#include <fmt/format.h>

#include "motley/base/units.hpp"
#include "motley/report/table.hpp"

namespace motley::cli {

std::string losses_report(const std::vector<Loss>& losses, double tokens_per_s) {
  if (losses.empty()) return {};
  Table table({{"if lost"}, {"tokens/s", Align::right}, {"of now", Align::right}, {"to load", Align::right}});
  for (const Loss& loss : losses) {
    if (!loss.rest)
      table.add({loss.name, "does not fit"});
    else
      table.add({loss.name, fmt::format("{:.4g}", loss.rest->tokens_per_s),
                 percent(loss.rest->tokens_per_s / tokens_per_s),
                 human_bytes(static_cast<double>(loss.rest->loaded_bytes))});
  }
  return table.render("");
}

}  // namespace motley::cli
