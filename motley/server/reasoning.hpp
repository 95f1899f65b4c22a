// Thinking and answer of a chat model, told apart as they come, wherever the tokens' borders fall.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "motley/model/families/family.hpp"

namespace motley {

struct AnswerText {
  std::string reasoning, content;
};

// Texts that set thinking apart. Where one is a special token, which decoding leaves out, mark() takes it.
std::span<const std::string_view> reasoning_marks(Reasoning form);

class ReasoningStream {
 public:
  // `prompt` is what comes before the answer, or its end: a template may have opened the thinking itself.
  explicit ReasoningStream(Reasoning form = Reasoning::none, std::string_view prompt = {});

  // Each gives out what surely belongs to one of the two; what may be the start of a mark is held back.
  AnswerText push(std::string_view text);
  AnswerText mark(std::string_view text);
  AnswerText finish();
  bool thinking() const { return state_ == State::thinking; }

 private:
  // `before` an answer that may begin with thinking; `header` of a message of harmony, or a channel's name; `after`
  // thinking.
  enum class State : std::uint8_t { before, header, thinking, after, content };

  void push_tagged(AnswerText& out);
  // Up to a mark that ends it; true when that was there.
  bool push_thought(AnswerText& out, std::string_view mark);
  // Up to the next change of what the text is; false when all is taken but what is held back.
  bool push_channels(AnswerText& out);
  void begin_thought();
  void mark_harmony(std::string_view text);
  void give(AnswerText& out, std::string_view text);

  Reasoning form_;
  State state_ = State::content;
  std::string held_;
  bool gave_reasoning_ = false, gave_content_ = false;
  // Of harmony: the header names a channel; of both forms with channels: a message has begun, one has no text yet.
  bool named_ = false, begun_ = false, new_message_ = false;
};

}  // namespace motley
