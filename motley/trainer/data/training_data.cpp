#include "motley/trainer/data/training_data.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/trainer/data/permutation.hpp"
#include "motley/trainer/data/tokenise.hpp"

namespace motley {
namespace {

TokenFile open_tokens(const TrainingDataOptions& options) {
  const std::string extension = options.file.extension();
  if (extension == ".npy") return TokenFile::open_npy(options.file);
  if (extension == ".bin") return TokenFile::open_megatron(options.file);
  if (extension == ".jsonl" || extension == ".txt")
    return tokenise({.file = options.file,
                     .model = options.model,
                     .cache = options.cache,
                     .vocabulary = options.vocabulary,
                     .threads = options.threads,
                     .progress = options.progress});
  throw input_error(fmt::format("{}: the name must end in .jsonl, .txt, .npy or .bin", options.file.string()),
                    "rename the file by its format, or convert it to one of these");
}

}  // namespace

std::unique_ptr<TrainingData> TrainingData::open(const TrainingDataOptions& options) {
  MOTLEY_CHECK(options.sequence_length > 0 && options.vocabulary > 0);
  return std::unique_ptr<TrainingData>(new TrainingData(options, open_tokens(options)));
}

TrainingData::TrainingData(TrainingDataOptions options, TokenFile tokens)
    : options_(std::move(options)),
      tokens_(std::move(tokens)),
      sequences_((tokens_.size() - 1) / options_.sequence_length) {
  if (sequences_ < 1)
    throw input_error(fmt::format("{}: {} tokens are less than one sequence of {} and the token that follows it",
                                  options_.file.string(), tokens_.size(), options_.sequence_length),
                      "give more data, or a smaller `sequence_length` in the workload");
}

TrainSequence TrainingData::sequence(std::int64_t number) const {
  MOTLEY_CHECK(number >= 0 && number < sequences_);
  const std::int64_t first = number * options_.sequence_length;
  const Tokens tokens = tokens_.read(first, options_.sequence_length + 1);
  TrainSequence sequence;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.ids[i] < 0 || tokens.ids[i] >= options_.vocabulary)
      throw input_error(
          fmt::format("{}: token {} at position {} is outside the model's vocabulary of {}", options_.file.string(),
                      tokens.ids[i], first + static_cast<std::int64_t>(i), options_.vocabulary),
          "tokenise the data with the tokenizer of this model");
    const auto id = static_cast<std::int32_t>(tokens.ids[i]);
    if (i + 1 < tokens.ids.size()) sequence.inputs.push_back(id);
    if (i > 0) sequence.targets.push_back(tokens.learned[i] ? id : -1);
  }
  return sequence;
}

std::vector<TrainSequence> TrainingData::batch(std::int64_t step, std::int64_t global_batch) const {
  MOTLEY_CHECK(step >= 1 && global_batch >= 1);
  std::vector<TrainSequence> batch;
  for (std::int64_t i = (step - 1) * global_batch; i < step * global_batch; ++i) {
    const std::int64_t place = i % sequences_;
    const auto epoch = static_cast<std::uint64_t>(i / sequences_);
    batch.push_back(sequence(options_.shuffle ? permuted(place, sequences_, options_.seed, epoch) : place));
  }
  return batch;
}

}  // namespace motley
