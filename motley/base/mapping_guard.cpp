#include "motley/base/mapping_guard.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <string>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {

// Never freed, but used again: the handler may walk over them at any time.
struct MappingGuard::Mapping {
  std::atomic<const std::byte*> begin{nullptr};  // null: free
  std::size_t size = 0;
  std::string message;
  Mapping* next = nullptr;
};

namespace {

std::mutex mapping_changes;
std::atomic<MappingGuard::Mapping*> guarded_mappings{nullptr};
struct sigaction handled_before {};  // what handled the signal

// On the thread that read; nothing but what a signal handler may do.
void on_bus_error(int, siginfo_t* fault, void*) {
  const auto* address = static_cast<const std::byte*>(fault->si_addr);
  for (const auto* mapping = guarded_mappings.load(); mapping != nullptr; mapping = mapping->next) {
    const std::byte* begin = mapping->begin.load();
    if (begin == nullptr || address < begin || address >= begin + mapping->size) continue;
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, mapping->message.data(), mapping->message.size());
    ::_exit(static_cast<int>(ErrorCode::environment));
  }
  ::sigaction(SIGBUS, &handled_before, nullptr);
  ::raise(SIGBUS);
}

void handle_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, &handled_before);
}

MappingGuard::Mapping* free_mapping() {
  for (auto* mapping = guarded_mappings.load(); mapping != nullptr; mapping = mapping->next)
    if (mapping->begin.load() == nullptr) return mapping;
  if (guarded_mappings.load() == nullptr) handle_bus_errors();
  auto* added = new MappingGuard::Mapping;
  added->next = guarded_mappings.load();
  guarded_mappings.store(added);
  return added;
}

}  // namespace

MappingGuard::MappingGuard(std::span<const std::byte> mapped, const std::filesystem::path& file) {
  const std::lock_guard lock(mapping_changes);
  mapping_ = free_mapping();
  mapping_->size = mapped.size();
  mapping_->message = fmt::format(
      "error: {} cannot be read any more: it became shorter while it was in use, or its disk fails\n\n"
      "hint: put the file back and start again; move a new file into place instead of writing over the old one\n",
      file.string());
  mapping_->begin.store(mapped.data());
}

MappingGuard::MappingGuard(MappingGuard&& other) noexcept : mapping_(std::exchange(other.mapping_, nullptr)) {}

MappingGuard::~MappingGuard() {
  if (mapping_ != nullptr) mapping_->begin.store(nullptr);
}

}  // namespace motley
