// Processes of Python in which strangers' templates, vocabularies and regular expressions run. A first one loads what
// is asked of it and then only copies itself; the copies work, each call within bounds of time and memory that the
// kernel enforces. A copy that overruns them ends, and the next is there within milliseconds.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "motley/comm/net/file_descriptor.hpp"

namespace motley {

using TextParts = std::vector<std::string>;

// The bounds of one call, and what is said where they are overrun.
struct TextWork {
  const char* doer;  // "the chat template"
  const char* hint;
  double seconds;
  std::uint64_t bytes;  // of memory, in addition to what a copy starts with
};

class TextProcesses {
 public:
  // `first` is what the first process is asked, whenever it starts: a name in METHODS of the Python sources, and
  // arguments. Throws: environment error where Python or its packages are missing, what the answer says otherwise.
  explicit TextProcesses(std::function<TextParts()> first);
  ~TextProcesses();
  TextProcesses(const TextProcesses&) = delete;
  TextProcesses& operator=(const TextProcesses&) = delete;

  // What it answered.
  const TextParts& answer() const { return answer_; }

  // Asks a copy that is idle, or a new one. From any thread: as many copies live as threads have called at once.
  TextParts call(const TextWork& work, const TextParts& request);

 private:
  void start();
  void end();
  FileDescriptor idle_copy();

  const std::function<TextParts()> first_;
  std::mutex mutex_;
  FileDescriptor original_;
  pid_t process_ = 0;
  TextParts answer_;
  std::vector<FileDescriptor> idle_;
};

}  // namespace motley
