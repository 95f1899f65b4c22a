// What a program answers that is asked once and ends: one that opens a device's libraries, which the caller does not.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/error.hpp"

namespace motley {

using Variables = std::vector<std::pair<std::string, std::string>>;  // of an environment

struct ChildQuestion {
  std::filesystem::path program;
  std::vector<std::string> arguments = {};
  Variables environment = {};  // in addition to this process's
  double within_s = 30;
  std::string purpose = {};  // "lists the GPUs"
  std::string hint = {};
};

struct ChildAnswer {
  std::string text;
  int code = 0;  // of its exit
};

// Silent but for its answer, in a process group of its own, which is ended with it. Throws an environment error where
// it cannot be started, says too much, is killed, or has not ended in time: it is ended then.
ChildAnswer ask_child(const ChildQuestion& question);

// "motley-worker --devices".
std::string name_of(const ChildQuestion& question);
// "motley-worker --devices, which lists the GPUs, WHAT", with the hint.
Error child_failure(const ChildQuestion& question, const std::string& what);

// This process's environment, with those in place of what they name: as execve() takes it, each "NAME=VALUE".
std::vector<std::string> environment_with(const Variables& variables);
std::vector<char*> pointers_to(std::vector<std::string>& texts);  // ending in a null

}  // namespace motley
