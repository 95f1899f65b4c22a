// One completion request under way: its prompts and choices, the text that becomes of their tokens, and its answer. To
// be used on the service's thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/server/http.hpp"
#include "motley/server/metrics.hpp"
#include "motley/server/openai_api.hpp"
#include "motley/server/prepared_request.hpp"
#include "motley/server/reasoning.hpp"
#include "motley/server/text_stream.hpp"
#include "motley/serving/generator.hpp"
#include "motley/text/decode_stream.hpp"
#include "motley/text/text_codec.hpp"

namespace motley {

class Completion;

// What completions need of the service; it outlives them.
struct Serving {
  Model model;
  std::shared_ptr<TextCodec> codec;                     // shared with the program; null: token ids only
  Reasoning reasoning = Reasoning::none;                // of chats
  std::map<std::int32_t, std::string_view> marks = {};  // special tokens that set it apart
  std::vector<std::int32_t> chat_ends = {};             // tokens that end a chat's answer, beyond the model's own
  Generator* generator = nullptr;                       // null: not running
  Metrics metrics;
  std::function<void(std::function<void()>)> post;  // runs a job on the service's thread

  // Who gets the events of a generator's request. An entry stays until the last event has come.
  struct Owner {
    std::weak_ptr<Completion> completion;
    std::size_t choice = 0;
  };
  std::unordered_map<std::uint64_t, Owner> requests;

  // Text and bytes of a token; remembered, for the same few come again and again.
  const TokenText& token(std::int32_t id);
  std::map<std::int32_t, TokenText> tokens;
};

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(Serving& serving, CompletionRequest request, std::shared_ptr<Exchange> exchange, Instant arrival);

  // Hands the prompts to the generator. Throws an Error before anything is answered; nothing is under way then.
  // `on_end` is called when the request has ended in whatever way.
  void start(const std::vector<PreparedPrompt>& prompts, std::function<void()> on_end);
  // Ends it with an error.
  void fail(const ApiError& error);
  // Decodes the tokens of a choice; null where their text is not wanted.
  DecodeStream* stream(std::size_t index);
  // What the generator brought one of the choices. `text` is what the token gives out, or what the end does.
  void take(std::size_t index, const GenerateEvent& event, const std::string& text);
  // The client has left.
  void abandon();

 private:
  struct Record {
    TokenRecord token;
    std::size_t offset_bytes = 0;  // in the choice's text
  };
  struct Choice {
    std::uint64_t id = 0;  // the generator's
    DecodeStream stream;
    StopMatcher matcher;
    ReasoningStream reasoning;
    std::int64_t tokens = 0;
    std::size_t decoded_bytes = 0, given_bytes = 0;
    std::int64_t decoded_characters = 0;
    std::vector<TokenRecord> prompt_records;  // of an echoed prompt whose scores have not come
    std::vector<Record> records;              // whose text is not given out yet
    TextEvents events, thoughts;              // streaming
    ChoicePart part;                          // streaming: the next chunk; otherwise the whole
    Instant first_token, last_token;
    bool ended = false;
  };

  GenerateRequest generate_request(const std::vector<std::int32_t>& prompt, std::int64_t choice) const;
  void submit(const std::vector<PreparedPrompt>& prompts);
  void echo(Choice& choice, const PreparedPrompt& prompt) const;
  void cancel_all();

  TokenText text_of(std::int32_t token, std::optional<float> logprob) const;
  void take_prompt_scores(Choice& choice, const std::vector<TokenScore>& scores);
  void take_token(Choice& choice, const SampledToken& token, const std::string& text);
  void give(Choice& choice, const std::string& text);
  static void add(Choice& choice, AnswerText text);
  void send_text(Choice& choice);
  void give_records(Choice& choice, std::size_t before_bytes);
  void end_choice(Choice& choice, FinishReason reason, const std::string& text);
  void send_part(Choice& choice);
  UsageInChunks usage_in_chunks() const { return request_.include_usage ? UsageInChunks::null : UsageInChunks::absent; }
  void finish();
  void close();

  Serving& serving_;
  const CompletionRequest request_;
  const std::shared_ptr<Exchange> exchange_;  // shared with the connection
  const Instant arrival_;
  AnswerHead head_;
  Usage usage_;
  std::uint64_t seed_ = 0;
  std::vector<Choice> choices_;
  std::size_t open_choices_ = 0;
  bool ended_ = false;
  std::function<void()> on_end_;
};

}  // namespace motley
