// What a machine of a deployment may be called. The name goes by certificate, plan, command line and file name.
#pragma once

#include <string>
#include <string_view>

namespace motley {

constexpr std::size_t longest_machine_name = 63;

// Why a machine cannot have this name; empty: it can. 1 to 63 letters, digits, `-`, `_` and `.`, of which the first is
// a letter or a digit; not "coordinator" and not "default", which stand for something else.
std::string machine_name_objection(std::string_view name);
constexpr const char* machine_name_hint = "choose another name for the machine: --name NAME";

// Equal for names that differ in case alone: such machines are not told apart.
std::string folded_machine_name(std::string_view name);

// The host's name up to the first dot, made to fit; "machine" where nothing of it does.
std::string machine_name_of_host(std::string_view host);

}  // namespace motley
