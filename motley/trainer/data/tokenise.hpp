// Texts as token files that are kept, so that a text is tokenised once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "motley/trainer/data/token_file.hpp"

namespace motley {

struct TokeniseOptions {
  std::filesystem::path file;   // .jsonl or .txt
  std::filesystem::path model;  // folder with the tokenizer
  std::filesystem::path cache;  // folder of token files, which is made where it is missing; empty: nothing is kept
  std::int64_t vocabulary = 0;
  int threads = 1;  // the result does not depend on it
  std::function<void(double fraction)> progress = {};
};

// The tokens of all documents, joined: each with the special tokens that the tokenizer puts before a text, and followed
// by EOS, which is the tokenizer's `eos_token`, or else the first `eos_token_id` of config.json. Kept under a name made
// of the digests of file and tokenizer, so that a changed one is tokenised again.
TokenFile tokenise(const TokeniseOptions& options);

}  // namespace motley
