#include "motley/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace motley {
namespace {

constexpr std::size_t longest_name = 64;  // nothing longer has a name that was meant

const char* what_to_do(int cause) {
  switch (cause) {
    case EMFILE: return "raise the limit of open files with ulimit -n";
    case ENFILE: return "the system has too many open files: end other programs, or raise fs.file-max";
    case EAGAIN: return "raise the limit of processes and threads with ulimit -u, or the limit of the container";
    case ENOMEM:
    case ENOBUFS: return "free memory, or raise the memory limit of the container";
    case ENOSPC: return "free space on the disk, or in /dev/shm for shared memory";
    case EROFS:
    case EACCES:
    case EPERM: return "change the permissions, or run as a user that has them";
    default: return "";
  }
}

// Restricted Damerau-Levenshtein distance, case-insensitive.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

Error environment_error(std::string_view doing, std::string hint) {
  const int cause = errno;
  if (hint.empty()) hint = what_to_do(cause);
  return Error(ErrorCode::environment, std::string(doing) + ": " + std::strerror(cause), std::move(hint));
}

std::string closest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  if (word.size() > longest_name) return best;
  std::size_t best_distance = std::max<std::size_t>(1, std::max<std::size_t>(word.size(), 3) / 3) + 1;
  for (const auto& candidate : candidates) {
    if (candidate.size() >= word.size() + best_distance || word.size() >= candidate.size() + best_distance) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates, std::string otherwise,
                         char quote) {
  const std::string best = closest(word, candidates);
  return best.empty() ? std::move(otherwise) : fmt::format("did you mean {0}{1}{0}?", quote, best);
}

std::string with_hint(const std::exception& error) {
  const auto* told = dynamic_cast<const Error*>(&error);
  if (told == nullptr || told->hint().empty()) return error.what();
  return fmt::format("{} ({})", error.what(), told->hint());
}

}  // namespace motley
