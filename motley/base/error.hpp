// The one exception type. Thrown where the cause is known, caught at the edges (a command, a request, a worker's loop).
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace motley {

// The values are the program's exit codes; the server maps them to HTTP statuses.
enum class ErrorCode {
  negative = 1,      // a negative answer: does not fit, violations found
  input = 2,         // bad usage or bad input: a file, a flag, a request
  environment = 3,   // something this machine lacks: a library, a device, a permission, a free port
  limit = 4,         // a limit was reached and there is no usable answer
  peer = 5,          // a worker or a peer failed while running
  internal = 70,     // a bug
  interrupted = 130  // Ctrl-C
};

class Error : public std::exception {
 public:
  // `hint` says what to do next; it may be empty.
  Error(ErrorCode code, std::string message, std::string hint = {})
      : code_(code), message_(std::move(message)), hint_(std::move(hint)) {
    compose();
  }

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }

  // Puts an outer context in front, as in "cluster.toml:14: machine[2].devices[0]".
  Error& prepend_context(std::string_view context) {
    context_ = context_.empty() ? std::string(context) : std::string(context) + ": " + context_;
    compose();
    return *this;
  }

  // Context and message in one line, without the hint.
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  void compose() { text_ = context_.empty() ? message_ : context_ + ": " + message_; }

  ErrorCode code_;
  std::string message_;
  std::string hint_;
  std::string context_;
  std::string text_;
};

inline Error input_error(std::string message, std::string hint = {}) {
  return Error(ErrorCode::input, std::move(message), std::move(hint));
}

// What the system refuses, with its own words, right after the call that failed: "cannot make a socket: Too many open
// files". Without a hint, that of the cause: "raise the limit of open files with ulimit -n".
Error environment_error(std::string_view doing, std::string hint = {});

// The closest of `candidates` to `word`, or an empty string when none is close.
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

// did you mean "box/1"? With the closest() of `candidates`, or `otherwise` when none is close. What is typed as it
// stands (a key, an option, a column) has a backtick as its quote.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates, std::string otherwise = {},
                         char quote = '"');

// Text and hint of an error, for where there is only one line: "no address to listen at (`listen` is HOST:PORT)".
std::string with_hint(const std::exception& error);

// For broken invariants only: never reachable from user input.
#define MOTLEY_CHECK(condition)                               \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      ::motley::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) {
  throw Error(ErrorCode::internal,
              std::string("internal check failed: ") + condition + " (" + file + ":" + std::to_string(line) + ")");
}

}  // namespace motley
