#include "motley/cli/what_if.hpp"

namespace motley::cli {

void add_change_options(CLI::App& verb, Changes& changes) {
  const auto list = [&](const char* name, std::vector<std::string>& into, const char* help, const char* type) {
    verb.add_option(name, into, help)->type_name(type)->expected(1)->take_all();
  };
  list("--without", changes.without, "Replan without this device, as in box/3", "DEVICE");
  list("--add", changes.add, "Replan with one more machine: \"A100*2\", or \"A100*2 @ site\"", "DEVICES");
  list("--what-if", changes.what_if, "Replan changed: \"tp=8 on box\"; offload: \"disk.read=5 GB/s\"", "CHANGE");
}

}  // namespace motley::cli
