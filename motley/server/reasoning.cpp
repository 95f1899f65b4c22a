#include "motley/server/reasoning.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "motley/server/text_stream.hpp"

namespace motley {
namespace {

constexpr std::string_view open_tag = "<think>", close_tag = "</think>";
constexpr std::string_view start_mark = "<|start|>", channel_mark = "<|channel|>", message_mark = "<|message|>",
                           end_mark = "<|end|>";
constexpr std::array<std::string_view, 2> tags = {open_tag, close_tag};
constexpr std::array<std::string_view, 4> harmony_marks = {start_mark, channel_mark, message_mark, end_mark};

constexpr std::string_view blanks = " \t\r\n";

void drop_blanks_before(std::string& text) { text.erase(0, text.find_first_not_of(blanks)); }

std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(blanks) + 1);
}

}  // namespace

std::span<const std::string_view> reasoning_marks(Reasoning form) {
  if (form == Reasoning::tags) return tags;
  if (form == Reasoning::harmony) return harmony_marks;
  return {};
}

ReasoningStream::ReasoningStream(Reasoning form, std::string_view prompt) : form_(form) {
  prompt = without_blanks_behind(prompt);
  if (form == Reasoning::tags) state_ = prompt.ends_with(open_tag) ? State::thinking : State::before;
  if (form == Reasoning::harmony && prompt.ends_with("<|start|>assistant")) state_ = State::header;
}

AnswerText ReasoningStream::push(std::string_view text) {
  AnswerText out;
  if (form_ == Reasoning::tags && state_ != State::content) {
    held_ += text;
    push_tagged(out);
  } else if (state_ == State::header) {
    held_ += text;
  } else {
    give(out, text);
  }
  return out;
}

AnswerText ReasoningStream::mark(std::string_view text) {
  if (form_ == Reasoning::harmony) {
    mark_harmony(text);
    return {};
  }
  const bool expected = (state_ == State::before && text == open_tag) || (thinking() && text == close_tag);
  return expected ? push(text) : AnswerText();
}

AnswerText ReasoningStream::finish() {
  AnswerText out;
  const std::string held = std::exchange(held_, {});
  // A header that no message followed was none.
  if (state_ == State::header && begun_) return out;
  give(out, thinking() ? without_blanks_behind(held) : held);
  return out;
}

void ReasoningStream::push_tagged(AnswerText& out) {
  if (state_ == State::before) {
    const std::size_t begin = std::min(held_.find_first_not_of(blanks), held_.size());
    const std::string_view tag = std::string_view(held_).substr(begin, open_tag.size());
    if (tag.size() < open_tag.size() && open_tag.starts_with(tag)) return;
    state_ = tag == open_tag ? State::thinking : State::content;
    if (thinking()) held_.erase(0, begin + open_tag.size());
  }
  if (state_ == State::thinking) {
    if (!gave_reasoning_) drop_blanks_before(held_);
    const std::size_t end = held_.find(close_tag);
    const bool ended = end != std::string::npos;
    const std::string_view thought = without_blanks_behind(
        std::string_view(held_).substr(0, ended ? end : held_.size() - possible_start(held_, close_tag)));
    give(out, thought);
    held_.erase(0, ended ? end + close_tag.size() : thought.size());
    if (ended) state_ = State::after;
  }
  if (state_ == State::after) {
    drop_blanks_before(held_);
    if (!held_.empty()) state_ = State::content;
  }
  if (state_ == State::content) give(out, std::exchange(held_, {}));
}

void ReasoningStream::mark_harmony(std::string_view text) {
  if (text == message_mark) {
    drop_blanks_before(held_);
    const bool analysis = named_ && held_.substr(0, held_.find_first_of(blanks)) == "analysis";
    state_ = analysis ? State::thinking : State::content;
    begun_ = new_message_ = true;
  } else {
    state_ = State::header;
    named_ = text == channel_mark;
  }
  held_.clear();
}

void ReasoningStream::give(AnswerText& out, std::string_view text) {
  if (text.empty()) return;
  bool& gave = thinking() ? gave_reasoning_ : gave_content_;
  std::string& part = thinking() ? out.reasoning : out.content;
  const bool apart = std::exchange(new_message_, false) && gave;  // from the message before
  if (apart) part += '\n';
  part += text;
  gave = true;
}

}  // namespace motley
