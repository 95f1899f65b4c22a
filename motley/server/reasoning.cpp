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
constexpr std::string_view open_channel = "<|channel>", close_channel = "<channel|>", thought_channel = "thought";
constexpr std::array<std::string_view, 2> tags = {open_tag, close_tag};
constexpr std::array<std::string_view, 4> harmony_marks = {start_mark, channel_mark, message_mark, end_mark};
constexpr std::array<std::string_view, 2> channel_marks = {open_channel, close_channel};

constexpr std::string_view blanks = " \t\r\n";

void drop_blanks_before(std::string& text) { text.erase(0, text.find_first_not_of(blanks)); }

std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(blanks) + 1);
}

}  // namespace

std::span<const std::string_view> reasoning_marks(Reasoning form) {
  if (form == Reasoning::tags) return tags;
  if (form == Reasoning::harmony) return harmony_marks;
  if (form == Reasoning::channels) return channel_marks;
  return {};
}

ReasoningStream::ReasoningStream(Reasoning form, std::string_view prompt) : form_(form) {
  prompt = without_blanks_behind(prompt);
  if (form == Reasoning::tags) state_ = prompt.ends_with(open_tag) ? State::thinking : State::before;
  if (form == Reasoning::harmony && prompt.ends_with("<|start|>assistant")) state_ = State::header;
  if (form == Reasoning::channels && prompt.ends_with("<|channel>thought")) begin_thought();
}

AnswerText ReasoningStream::push(std::string_view text) {
  AnswerText out;
  if (form_ == Reasoning::tags && state_ != State::content) {
    held_ += text;
    push_tagged(out);
  } else if (form_ == Reasoning::channels) {
    held_ += text;
    while (push_channels(out)) continue;
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
  if (form_ == Reasoning::channels) return thinking() && text == open_channel ? AnswerText() : push(text);
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
    if (push_thought(out, close_tag)) state_ = State::after;
  }
  if (state_ == State::after) {
    drop_blanks_before(held_);
    if (!held_.empty()) state_ = State::content;
  }
  if (state_ == State::content) give(out, std::exchange(held_, {}));
}

bool ReasoningStream::push_thought(AnswerText& out, std::string_view mark) {
  const std::size_t end = held_.find(mark);
  const bool ended = end != std::string::npos;
  const std::string_view thought = without_blanks_behind(
      std::string_view(held_).substr(0, ended ? end : held_.size() - possible_start(held_, mark)));
  give(out, thought);
  held_.erase(0, ended ? end + mark.size() : thought.size());
  return ended;
}

bool ReasoningStream::push_channels(AnswerText& out) {
  if (state_ == State::thinking) {
    if (new_message_) drop_blanks_before(held_);
    if (!push_thought(out, close_channel)) return false;
    state_ = gave_content_ ? State::content : State::after;
    new_message_ = false;
    return true;
  }
  if (state_ == State::header) {
    const std::string_view name = std::string_view(held_).substr(0, thought_channel.size()),
                           behind = std::string_view(held_).substr(name.size());
    const bool blank = !behind.empty() && blanks.find(behind.front()) != blanks.npos;
    const bool thought = name == thought_channel && (blank || behind.starts_with(close_channel));
    if (!thought && thought_channel.starts_with(name) && close_channel.starts_with(behind)) return false;
    state_ = State::content;  // of a channel with another name all is, with the name
    if (!thought) return true;
    begin_thought();
    held_.erase(0, thought_channel.size());
    return true;
  }
  if (state_ == State::after) {
    drop_blanks_before(held_);
    if (held_.empty()) return false;
    state_ = State::content;
  }
  const std::size_t open = held_.find(open_channel), close = held_.find(close_channel), at = std::min(open, close);
  const bool marked = at != std::string::npos;
  const std::size_t held_back = std::max(possible_start(held_, open_channel), possible_start(held_, close_channel));
  const std::string_view text = std::string_view(held_).substr(0, marked ? at : held_.size() - held_back);
  // Blanks alone may come before a thought.
  const bool waits = !gave_content_ && text.find_first_not_of(blanks) == text.npos;
  if (!waits) give(out, text);
  if (!marked) {
    if (!waits) held_.erase(0, text.size());
    return false;
  }
  held_.erase(0, at + (at == open ? open_channel : close_channel).size());
  if (at == open) {
    state_ = State::header;
    begun_ = true;
  }
  return true;
}

void ReasoningStream::begin_thought() {
  state_ = State::thinking;
  new_message_ = true;
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
