// What a training run learns from: sequences of tokens by number, and the batch of every step. Who computes a sequence
// does not matter to which sequences a step has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "motley/trainer/data/token_file.hpp"

namespace motley {

struct TrainSequence {
  std::vector<std::int32_t> inputs;   // sequence_length ids
  std::vector<std::int32_t> targets;  // of each input, the token to predict; -1: counts for nothing
};

struct TrainingDataOptions {
  std::filesystem::path file;        // .jsonl, .txt, .npy, or .bin with its .idx in the same folder
  std::filesystem::path model;       // folder with the tokenizer
  std::filesystem::path cache;       // folder where the tokens of texts are kept; empty: a temporary file
  std::int64_t sequence_length = 0;  // inputs of a sequence
  std::int64_t vocabulary = 0;       // ids must be below
  bool shuffle = true;               // each epoch in an order of its own
  std::uint64_t seed = 0;            // of those orders
  int threads = 1;                   // that tokenise
  std::function<void(double fraction)> progress = {};  // of tokenising, which the first opening of a text does
};

class TrainingData {
 public:
  // Throws input errors that name file, place, cause and fix; environment errors where tokens cannot be kept.
  static std::unique_ptr<TrainingData> open(const TrainingDataOptions& options);

  // Of an epoch, at least one. Sequence n is made of the tokens from n sequence_length on, one more than it has inputs:
  // consecutive sequences overlap by one token. What is left at the end is not a whole sequence and is not used.
  std::int64_t sequences() const { return sequences_; }
  // Record `number` in [0, sequences()), in the order of the file. Throws an input error that names the position of a
  // token outside the vocabulary.
  TrainSequence sequence(std::int64_t number) const;
  // Those of a step, counted from 1: number j of step k is at place i = (k - 1) global_batch + j of an endless row of
  // epochs, i.e. the record that the order of epoch i / sequences() has at i mod sequences().
  std::vector<TrainSequence> batch(std::int64_t step, std::int64_t global_batch) const;

 private:
  TrainingData(TrainingDataOptions options, TokenFile tokens);

  TrainingDataOptions options_;
  TokenFile tokens_;
  std::int64_t sequences_;
};

}  // namespace motley
