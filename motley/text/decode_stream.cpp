#include "motley/text/decode_stream.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace motley {
namespace {

// A character has at most four bytes, so a longer run without a whole one is not text.
constexpr std::size_t most_pending_tokens = 8;

constexpr std::string_view replacement_character = "\xef\xbf\xbd";

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

// What follows the first `count` characters. Counted in characters, for one that was given out as a replacement may
// turn out as another, of another length.
std::string_view after(std::string_view text, std::ptrdiff_t count) {
  std::size_t at = 0;
  for (; at < text.size() && (count > 0 || !starts_character(text[at])); ++at)
    if (starts_character(text[at])) --count;
  return text.substr(at);
}

// What the window's text adds to what was given out before; empty while it may still change.
std::string take(DecodeStream& stream, const std::string& text, bool everything) {
  if (text.ends_with(replacement_character) && !everything) return {};
  std::string added(after(text, count_characters(*stream.before)));
  if (added.empty()) {
    // Special tokens give none, however many come.
    if (everything) stream.window.resize(stream.given);
    return {};
  }
  stream.window.erase(stream.window.begin(), stream.window.begin() + static_cast<std::ptrdiff_t>(stream.given));
  stream.given = stream.window.size();
  stream.before.reset();
  return added;
}

}  // namespace

std::int64_t count_characters(std::string_view text) { return std::ranges::count_if(text, starts_character); }

std::vector<std::string> decode_streams(TextCodec& codec, const std::vector<StreamToken>& tokens,
                                        bool skip_special_tokens) {
  std::vector<std::string> texts(tokens.size());
  std::vector<std::size_t> round, later;
  for (std::size_t i = 0; i < tokens.size(); ++i) round.push_back(i);
  for (; !round.empty(); round = std::exchange(later, {})) {
    std::vector<std::size_t> decoded;  // of this round
    std::vector<std::vector<std::int32_t>> lists;
    std::unordered_set<const DecodeStream*> seen;
    for (const std::size_t i : round) {
      DecodeStream& stream = *tokens[i].stream;
      if (!seen.insert(&stream).second) {
        later.push_back(i);
        continue;
      }
      if (tokens[i].token)
        stream.window.push_back(*tokens[i].token);
      else if (stream.given == stream.window.size())
        continue;
      decoded.push_back(i);
      if (stream.given == 0) stream.before.emplace();
      if (!stream.before)
        lists.emplace_back(stream.window.begin(), stream.window.begin() + static_cast<std::ptrdiff_t>(stream.given));
      lists.push_back(stream.window);
    }
    if (decoded.empty()) continue;
    const std::vector<std::string> answers = codec.decode_all(lists, skip_special_tokens);
    auto answer = answers.begin();
    for (const std::size_t i : decoded) {
      DecodeStream& stream = *tokens[i].stream;
      if (!stream.before) stream.before = *answer++;
      const bool everything = !tokens[i].token || stream.window.size() - stream.given >= most_pending_tokens;
      texts[i] = take(stream, *answer++, everything);
    }
  }
  return texts;
}

}  // namespace motley
