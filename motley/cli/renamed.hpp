// Commands that have another name now: the old one still works, is in no help, and names the new one on stderr.
#pragma once

#include <string>
#include <vector>

namespace motley::cli {

// Words of the command line, without the program's name, with the names of today.
std::vector<std::string> renamed(std::vector<std::string> words);

}  // namespace motley::cli
