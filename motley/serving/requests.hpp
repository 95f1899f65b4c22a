// What is asked of a driver, and what comes of it. Token ids only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/workers/worker_messages.hpp"

namespace motley {

struct GenerateRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t max_new_tokens = 16;       // 0: only the prompt is computed
  Sampling sampling;                      // `generated` and `forbidden` are filled by the driver
  std::vector<std::int32_t> stop_tokens;  // ends of sequence; not part of the output
  std::int64_t min_new_tokens = 0;
  bool ignore_eos = false;
  // Log-probabilities of the prompt's tokens, with this many of the most likely at each place.
  std::optional<std::int32_t> prompt_logprobs = {};
  std::string cache_salt = {};  // requests of one salt find what others have computed of the same tokens
  std::string cache_name =
      {};  // requests of one name begin alike: they go where the last one went, unless that is late
};

// failed: the deployment failed; no_room: the plan has changed, and the new one does not hold the request.
enum class FinishReason { stop, length, cancelled, failed, no_room };

// The scores of the prompt, a new token, or the end.
struct GenerateEvent {
  std::uint64_t request = 0;
  std::optional<SampledToken> token = {};                     // a new token
  std::optional<FinishReason> finished = {};                  // the last event
  std::string stop_cause = {};                                // the error's text when failed or without room
  std::optional<std::vector<TokenScore>> prompt_scores = {};  // before the first token; of all but the prompt's first
  std::int64_t found_tokens = 0;  // of the prompt, that others had computed; with the first token, or an end before it
};

// What answers take that are asked for one at a time: medians.
struct AnswerTimes {
  std::int64_t prompt_tokens = 0;
  double first_token_s = 0, per_token_s = 0;
};

}  // namespace motley
