#include "motley/server/operator_key.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/paths.hpp"
#include "motley/comm/authority/authority.hpp"
#include "motley/comm/net/file_descriptor.hpp"

namespace motley {
namespace {

constexpr std::size_t longest_key = 4096;

std::filesystem::path keys_folder() { return state_folder() / "operators"; }

bool is_private(int descriptor) {
  struct stat found {};
  return ::fstat(descriptor, &found) == 0 && found.st_uid == ::geteuid() && (found.st_mode & 077) == 0;
}

// None where it is not there, or another user could have written into it.
FileDescriptor open_folder() {
  FileDescriptor folder(::open(keys_folder().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder && !is_private(folder.get())) {
    errno = EPERM;
    return {};
  }
  return folder;
}

// Two servers may have one port at two addresses. Who listens at all of them is called by the first.
std::string name_of(const std::string& host, const std::string& port) {
  return fmt::format("{}:{}", host == "localhost" || host == "0.0.0.0" ? "127.0.0.1" : host, port);
}

// Empty where there is none.
std::string read_key(const FileDescriptor& folder, const std::string& name) {
  const FileDescriptor file(::openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file || !is_private(file.get())) return {};
  std::string text(longest_key, '\0');
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return text.substr(0, text.find('\n'));
}

}  // namespace

OperatorKey::OperatorKey(const std::string& given)
    : key_(given.empty() ? make_join_token() : given), given_(!given.empty()) {}

OperatorKey::~OperatorKey() {
  const FileDescriptor folder = name_.empty() ? FileDescriptor() : open_folder();
  if (folder && read_key(folder, name_) == key_) ::unlinkat(folder.get(), name_.c_str(), 0);
}

void OperatorKey::keep(const std::string& host, int port) {
  const std::string name = name_of(host, std::to_string(port));
  if (given_) {  // what an earlier server left there holds no more
    if (const FileDescriptor folder = open_folder()) ::unlinkat(folder.get(), name.c_str(), 0);
    return;
  }
  std::error_code ignored;
  std::filesystem::create_directories(keys_folder().parent_path(), ignored);
  ::mkdir(keys_folder().c_str(), 0700);
  if (!open_folder())
    throw environment_error(fmt::format("cannot keep the operator's key in {}", keys_folder().string()),
                            "make the folder this user's alone (mode 0700), or choose a key with --operator-key");
  replace_file(keys_folder() / name, key_ + "\n", Readers::owner);
  name_ = name;
}

std::string kept_operator_key(const std::string& host, const std::string& port) {
  const FileDescriptor folder = open_folder();
  return folder ? read_key(folder, name_of(host, port)) : std::string();
}

}  // namespace motley
