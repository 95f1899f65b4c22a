#include "motley/hub/named_model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>

#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"
#include "motley/base/value.hpp"

#ifdef MOTLEY_WITH_RUNTIME
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "motley/base/version.hpp"
#endif

namespace motley {

std::string_view hub_download_source();  // hub_download.py

namespace {

#ifdef MOTLEY_WITH_RUNTIME

constexpr std::size_t max_answer_bytes = 1 << 20;

// What the helper program writes to its standard output; its progress goes to ours for errors.
std::string run_python(const std::string& source, const std::string& argument) {
  const std::string python = python_environment() / "bin/python3";
  if (::access(python.c_str(), X_OK) != 0)
    throw Error(ErrorCode::environment, fmt::format("{} is missing: it downloads models from the hub", python),
                environment_hint);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error(ErrorCode::environment, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::array<std::string, 5> words = {python, "-I", "-c", source, argument};  // -I: without the user's packages
  std::array<char*, 6> arguments{};
  std::ranges::transform(words, arguments.begin(), [](std::string& word) { return word.data(); });
  pid_t process = 0;
  const int failed = ::posix_spawn(&process, python.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string answer;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0;
       failed == 0 && answer.size() < max_answer_bytes && (count = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
    answer.append(buffer.data(), static_cast<std::size_t>(count));
  ::close(ends[0]);
  int status = 0;
  if (failed != 0 || ::waitpid(process, &status, 0) != process || status != 0 || answer.empty())
    throw Error(ErrorCode::environment, fmt::format("{} could not download the model", python), environment_hint);
  return answer;
}

std::string text_at(const Value& object, std::string_view key) {
  const Value* value = object.find(key);
  return value && value->is_string() ? value->as_string() : std::string();
}

LocatedModel download(const std::string& named, const HubName& name, ModelFiles files, const std::string& revision) {
  const Value asked = Value::object({{"repository", name.repository},
                                     {"file", name.file},
                                     {"revision", revision},
                                     {"weights", files == ModelFiles::all},
                                     {"version", std::string(version())}});
  const Value answer = parse_json(run_python(std::string(hub_download_source()), to_json(asked)), "the download");
  if (const std::string error = text_at(answer, "error"); !error.empty())
    throw input_error(fmt::format("{}: there is no such file or folder here, and {}", named, error),
                      text_at(answer, "hint").empty() ? environment_hint : text_at(answer, "hint"));
  return {text_at(answer, "path"), named, text_at(answer, "revision")};
}

#else

LocatedModel download(const std::string& named, const HubName&, ModelFiles, const std::string&) {
  throw Error(
      ErrorCode::environment,
      fmt::format("{}: there is no such file or folder here, and this program cannot reach the hub: it was built "
                  "for planning alone",
                  named),
      "build motley with `./dev build`, or give a folder, a file or a name such as llama-2-70b");
}

#endif

}  // namespace

std::optional<HubName> parse_hub_name(const std::string& text) {
  static const std::regex form(
      R"(([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?::([\w.-][\w./-]{0,250}\.gguf))?)");
  static const std::regex file(R"(.*\.(json|gguf|toml|safetensors))", std::regex::icase);
  std::smatch parts;
  if (text.size() > 512 || !std::regex_match(text, parts, form) || std::regex_match(parts.str(1), file) ||
      parts.str(2).find("..") != std::string::npos)
    return std::nullopt;
  return HubName{parts.str(1), parts.str(2)};
}

LocatedModel locate_model(const std::string& named, ModelFiles files, const std::string& revision) {
  std::error_code ignored;
  const auto name = parse_hub_name(named);
  if (!name || std::filesystem::exists(named, ignored)) return {named, {}, {}};
  return download(named, *name, files, revision);
}

Model read_named_model(const std::string& named, const std::string& revision) {
  const LocatedModel located = locate_model(named, ModelFiles::configuration, revision);
  Model model = read_model(located.path);
  if (located.source.empty()) return model;
  model.source = located.source;
  model.revision = located.revision;
  const HubName name = *parse_hub_name(named);
  model.name = name.repository.substr(name.repository.find('/') + 1);  // the folder's name is the revision
  return model;
}

std::string planned_revision(const Model& planned, const std::string& named) {
  return planned.source == named ? planned.revision : std::string();
}

}  // namespace motley
