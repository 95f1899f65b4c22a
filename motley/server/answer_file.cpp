#include "motley/server/answer_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "motley/base/error.hpp"
#include "motley/base/foreign.hpp"
#include "motley/checkpoint/digest.hpp"

namespace motley {
namespace {

constexpr const char* line_format =
    R"(a line is {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}})";

std::string place(const std::filesystem::path& path, std::int64_t line) {
  return fmt::format("{}:{}", path.string(), line);
}

std::string text_of(const Value& line, const char* key, const std::string& place, const char* hint) {
  const Value* value = line.is_object() ? line.find(key) : nullptr;
  if (value == nullptr || !value->is_string() || value->as_string().empty())
    throw input_error(fmt::format("{}: the line has no `{}`", place, key), hint);
  return value->as_string();
}

}  // namespace

BatchReader::BatchReader(const std::filesystem::path& path) : path_(path), file_(path) {
  if (!file_) throw environment_error(fmt::format("cannot read {}", path.string()));
}

std::optional<BatchRequest> BatchReader::next() {
  std::string text;
  do {
    if (!std::getline(file_, text)) return std::nullopt;
    ++line_;
  } while (text.find_first_not_of(" \t\r") == std::string::npos);
  const std::string here = place(path_, line_);
  const Value line = parse_json(text, here);
  BatchRequest request{
      line_, text_of(line, "custom_id", here, line_format), text_of(line, "url", here, line_format), {}};
  if (const std::string method = text_of(line, "method", here, line_format); method != "POST")
    throw input_error(fmt::format("{}: `method` must be POST, found {}", here, shortened(method)), line_format);
  if (request.url != "/v1/chat/completions" && request.url != "/v1/completions")
    throw input_error(fmt::format("{}: `url` {} is not answered here", here, shortened(request.url)),
                      "use /v1/chat/completions or /v1/completions");
  const Value* body = line.find("body");
  if (body == nullptr || !body->is_object())
    throw input_error(fmt::format("{}: `body` must be an object", here), line_format);
  request.body = *body;
  if (const Value* stream = request.body.find("stream"); stream != nullptr && stream->is_bool() && stream->as_bool())
    throw input_error(fmt::format("{}: answers in a file are not streamed", here), "leave out `stream`");
  return request;
}

NameSet::Digest NameSet::digest(const std::string& name) {
  const auto bytes = sha256_of(std::as_bytes(std::span(name)));
  Digest digest{};
  std::memcpy(digest.data(), bytes.data(), sizeof(digest));
  return digest;
}

bool NameSet::insert(const std::string& name) { return digests_.insert(digest(name)).second; }

AnswerFile::AnswerFile(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (!file_) throw environment_error(fmt::format("cannot write {}", path_.string()));
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0)
    throw input_error(fmt::format("another process writes answers to {}", path_.string()),
                      "wait for it to end, or name another --output");
  std::ifstream lines(path_);
  std::string text;
  for (std::int64_t line = 1; std::getline(lines, text) && !lines.eof(); ++line) {
    const std::string here = place(path_, line);
    constexpr const char* hint = "name another --output: this file does not hold answers of `motley generate`";
    const std::string name = text_of(parse_json(text, here), "custom_id", here, hint);
    if (!answered_.insert(name))
      throw input_error(fmt::format("{}: `{}` was answered before", here, shortened(name)), hint);
    bytes_ += std::ssize(text) + 1;
  }
  if (::ftruncate(file_.get(), bytes_) != 0)
    throw environment_error(fmt::format("cannot remove the unfinished last line of {}", path_.string()));
}

void AnswerFile::append(const Value& answer) {
  const std::string line = to_json(answer) + "\n";
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(file_.get(), line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    written += static_cast<std::size_t>(count);
  }
  if (written == line.size()) {
    bytes_ += std::ssize(line);
    answered_.insert(answer.find("custom_id")->as_string());
    return;
  }
  const Error error =
      environment_error(fmt::format("cannot append an answer of {} bytes to {}, which keeps the {} before it",
                                    line.size(), path_.string(), answered_.size()),
                        "free space on its disk, and run the same command again: it goes on from there");
  if (::ftruncate(file_.get(), bytes_) != 0)
    throw environment_error(fmt::format("cannot remove the unfinished last line of {}", path_.string()));
  throw error;
}

}  // namespace motley
