// How a text is cut before its bytes are merged into tokens, as tokenizer.json spells it out and GGUF files name it.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace motley {

struct PreTokenizer {
  std::string_view names;                    // of `tokenizer.ggml.pre`, a space between two; the first is written
  std::array<std::string_view, 5> patterns;  // regular expressions, applied one after the other; then empty
  bool whole_words_first = false;            // what is in the vocabulary as a whole is one token
  bool begins = false;                       // with BOS, where the file does not say
};

// Of no family here, yet files of their architectures may have them.
extern const std::span<const PreTokenizer> more_pre_tokenizers;

inline constexpr std::string_view one_digit = R"(\p{N})";
inline constexpr std::string_view gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view llama3_words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace motley
