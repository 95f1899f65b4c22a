// Texts of training data, document by document.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "motley/text/text_codec.hpp"

namespace motley {

// A part of a text, in bytes: [first, end).
struct TextRange {
  std::size_t first = 0, end = 0;
};

struct Document {
  std::string text;
  std::vector<TextRange> learned;  // whose tokens count for the loss; ordered
  bool starts = true;              // begins with the special tokens that the tokenizer puts before a text
  bool ends = true;                // is followed by the EOS token
};

// What a line of a .jsonl file stands for: `text`, all of it learned; `prompt` and `completion`, the latter learned
// with its EOS token; or `messages`, the assistant's turns learned, each to its end as the chat template writes it, and
// no special tokens but the template's. A conversation whose earlier turns the template renders otherwise once it goes
// on is one document for each of the assistant's turns, which ends with it. Throws input errors that begin with
// `place`.
std::vector<Document> documents_of_line(std::string_view line, TextCodec& codec);

// A document's part that is tokenised by itself, so that long texts take bounded memory: up to the last line that ends
// within this many bytes and is followed by a letter, where tokenizers cut in any case; else all of `text`.
std::string_view first_part(std::string_view text, std::size_t most_bytes);

}  // namespace motley
