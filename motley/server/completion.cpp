#include "motley/server/completion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

namespace motley {
namespace {

std::uint64_t random_number() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

const TokenText& Serving::token(std::int32_t id) {
  const auto [entry, fresh] = tokens.try_emplace(id);
  if (fresh && codec)
    entry->second = {codec->token_text(id), codec->token_bytes(id), 0};
  else if (fresh)
    entry->second.text = fmt::format("token_id:{}", id);
  return entry->second;
}

Completion::Completion(Serving& serving, CompletionRequest request, std::shared_ptr<Exchange> exchange, Instant arrival)
    : serving_(serving), request_(std::move(request)), exchange_(std::move(exchange)), arrival_(arrival) {
  const char* prefix = request_.kind == ApiKind::chat ? "chatcmpl" : "cmpl";
  head_ = {request_.kind, fmt::format("{}-{:016x}", prefix, random_number()), serving.model.name, unix_seconds()};
  seed_ = request_.seed ? static_cast<std::uint64_t>(*request_.seed) : random_number();
}

void Completion::start(const std::vector<PreparedPrompt>& prompts, std::function<void()> on_end) {
  submit(prompts);
  on_end_ = std::move(on_end);
  // The callback may come after the end of this: it asks first whether anything is left.
  exchange_->on_gone([post = serving_.post, weak = weak_from_this()] {
    post([weak] {
      if (const auto self = weak.lock()) self->abandon();
    });
  });
  if (!request_.stream) return;
  exchange_->start_stream();
  serving_.metrics.count_request(request_.kind == ApiKind::chat ? "/v1/chat/completions" : "/v1/completions", 200);
  for (auto& choice : choices_) {
    if (request_.kind == ApiKind::chat)
      exchange_->send(event(role_chunk_value(head_, choice.part.index, usage_in_chunks())));
    else if (request_.echo && choice.prompt_records.empty())
      send_part(choice);
  }
}

GenerateRequest Completion::generate_request(const std::vector<std::int32_t>& prompt, std::int64_t choice) const {
  GenerateRequest request;
  request.prompt = prompt;
  const std::int64_t room = serving_.model.arch.context - std::ssize(prompt);
  request.max_new_tokens = std::min(request_.max_tokens.value_or(room), room);
  request.min_new_tokens = std::min(request_.min_tokens, request.max_new_tokens);
  request.ignore_eos = request_.ignore_eos;
  if (request_.kind == ApiKind::chat && !request_.ignore_eos) request.stop_tokens = serving_.chat_ends;
  request.sampling = request_.sampling;
  request.cache_salt = request_.cache_salt;
  request.cache_name = request_.prompt_cache_key;
  if (request_.echo && request_.sampling.logprobs >= 0) request.prompt_logprobs = request_.sampling.logprobs;
  request.sampling.seed =
      seed_ + static_cast<std::uint64_t>(choice);  // the choices of one prompt differ, and can be had again
  return request;
}

void Completion::submit(const std::vector<PreparedPrompt>& prompts) {
  choices_.reserve(prompts.size() * static_cast<std::size_t>(request_.n));
  try {
    for (const auto& prompt : prompts) {
      usage_.prompt_tokens += std::ssize(prompt.tokens);
      for (std::int64_t i = 0; i < request_.n; ++i) {
        const std::size_t index = choices_.size();
        Choice& choice = choices_.emplace_back();
        choice.matcher = StopMatcher(request_.stop);
        choice.part.index = static_cast<std::int64_t>(index);
        if (request_.stream) choice.events = TextEvents(head_, choice.part.index, usage_in_chunks());
        if (request_.kind == ApiKind::chat) {
          choice.reasoning = ReasoningStream(serving_.reasoning, prompt.end);
          choice.thoughts = TextEvents(head_, choice.part.index, usage_in_chunks(), &ChoicePart::reasoning);
        }
        if (prompt.echo) echo(choice, prompt);
        choice.id = serving_.generator->generate(generate_request(prompt.tokens, i));
        serving_.requests[choice.id] = {weak_from_this(), index};
        ++open_choices_;
      }
    }
  } catch (...) {
    ended_ = true;
    cancel_all();
    throw;
  }
}

// The answer goes on where the prompt ends.
void Completion::echo(Choice& choice, const PreparedPrompt& prompt) const {
  const EchoedPrompt& echo = *prompt.echo;
  choice.part.text = echo.text;
  choice.stream = echo.stream;
  choice.given_bytes = choice.decoded_bytes = echo.text.size();
  choice.decoded_characters = count_characters(echo.text);
  if (request_.sampling.logprobs < 0) return;
  for (std::size_t i = 0; i < prompt.tokens.size(); ++i)
    choice.prompt_records.push_back({text_of(prompt.tokens[i], std::nullopt), {}, echo.offsets[i]});
}

TokenText Completion::text_of(std::int32_t token, std::optional<float> logprob) const {
  TokenText text = serving_.token(token);
  text.logprob = logprob;
  return text;
}

void Completion::take_prompt_scores(Choice& choice, const std::vector<TokenScore>& scores) {
  std::vector<TokenRecord> records = std::exchange(choice.prompt_records, {});
  for (std::size_t i = 0; i < scores.size() && i + 1 < records.size(); ++i) {
    records[i + 1].token.logprob = scores[i].logprob;
    for (const auto& other : scores[i].top) records[i + 1].top.push_back(text_of(other.token, other.logprob));
  }
  choice.part.logprobs = std::move(records);
  send_part(choice);
}

void Completion::cancel_all() {
  for (auto& choice : choices_)
    if (!choice.ended && choice.id != 0) serving_.generator->cancel(choice.id);
}

DecodeStream* Completion::stream(std::size_t index) {
  Choice& choice = choices_[index];
  return serving_.codec && !ended_ && !choice.ended ? &choice.stream : nullptr;
}

void Completion::take(std::size_t index, const GenerateEvent& event, const std::string& text) {
  Choice& choice = choices_[index];
  if (ended_ || choice.ended) return;
  // The choices of a prompt find it where the first one has put it.
  if (static_cast<std::int64_t>(index) % request_.n == 0) usage_.cached_tokens += event.found_tokens;
  if (event.prompt_scores) return take_prompt_scores(choice, *event.prompt_scores);
  if (event.token) return take_token(choice, *event.token, text);
  if (*event.finished == FinishReason::failed)
    return fail(ApiError(503, "the deployment failed: " + event.stop_cause, {}, "unavailable"));
  if (*event.finished == FinishReason::no_room) return fail(ApiError(503, event.stop_cause, {}, "unavailable"));
  if (*event.finished == FinishReason::cancelled)
    return fail(ApiError(503, "the server is shutting down", {}, "unavailable"));
  end_choice(choice, *event.finished, text);
}

void Completion::take_token(Choice& choice, const SampledToken& sampled, const std::string& text) {
  choice.last_token = Clock::now();
  if (choice.tokens++ == 0) {
    choice.first_token = choice.last_token;
    serving_.metrics.observe_first_token(seconds_between(arrival_, choice.first_token));
  }
  ++usage_.completion_tokens;
  if (request_.return_token_ids || !serving_.codec) {
    if (!choice.part.token_ids) choice.part.token_ids.emplace();
    choice.part.token_ids->push_back(sampled.token);
  }
  if (request_.sampling.logprobs >= 0) {
    Record record{{text_of(sampled.token, sampled.logprob), {}, choice.decoded_characters}, choice.decoded_bytes};
    for (const auto& other : sampled.top) record.token.top.push_back(text_of(other.token, other.logprob));
    choice.records.push_back(std::move(record));
  }

  choice.decoded_bytes += text.size();
  choice.decoded_characters += count_characters(text);
  const bool thought = choice.reasoning.thinking();
  // What must come whatever it says cannot end it.
  give(choice, choice.tokens <= request_.min_tokens ? text : choice.matcher.push(text));
  if (const auto mark = serving_.marks.find(sampled.token); mark != serving_.marks.end() && !choice.matcher.stopped()) {
    give(choice, choice.matcher.finish());
    add(choice, choice.reasoning.mark(mark->second));
    send_text(choice);
  }
  if (thought || choice.reasoning.thinking()) ++usage_.reasoning_tokens;
  if (choice.matcher.stopped()) {
    serving_.generator->cancel(choice.id);
    end_choice(choice, FinishReason::stop, {});
  }
}

// Adds text to the part, with the records of the tokens that begin in what is given out.
void Completion::give(Choice& choice, const std::string& text) {
  choice.given_bytes += text.size();
  add(choice, choice.reasoning.push(text));
  give_records(choice, choice.given_bytes);
  send_text(choice);
}

void Completion::add(Choice& choice, AnswerText text) {
  choice.part.reasoning += text.reasoning;
  choice.part.text += text.content;
}

void Completion::send_text(Choice& choice) {
  if (!choice.part.text.empty() || !choice.part.reasoning.empty() || !serving_.codec) send_part(choice);
}

void Completion::give_records(Choice& choice, std::size_t before_bytes) {
  if (request_.sampling.logprobs < 0) return;
  if (!choice.part.logprobs) choice.part.logprobs.emplace();
  const auto held =
      std::ranges::find_if(choice.records, [&](const Record& record) { return record.offset_bytes >= before_bytes; });
  for (auto record = choice.records.begin(); record != held; ++record)
    choice.part.logprobs->push_back(std::move(record->token));
  choice.records.erase(choice.records.begin(), held);
}

void Completion::end_choice(Choice& choice, FinishReason reason, const std::string& text) {
  choice.ended = true;
  if (!choice.matcher.stopped()) {
    std::string rest = choice.matcher.push(text);
    rest += choice.matcher.finish();
    add(choice, choice.reasoning.push(rest));
    choice.given_bytes += rest.size();
    if (choice.matcher.stopped()) reason = FinishReason::stop;
    give_records(choice, choice.matcher.stopped() ? choice.given_bytes : std::string::npos);
  }
  add(choice, choice.reasoning.finish());
  choice.part.finish_reason = reason == FinishReason::length ? "length" : "stop";
  if (choice.tokens > 1)
    serving_.metrics.observe_token_interval(seconds_between(choice.first_token, choice.last_token) /
                                            static_cast<double>(choice.tokens - 1));
  send_part(choice);
  if (--open_choices_ == 0) finish();
}

void Completion::send_part(Choice& choice) {
  if (!request_.stream) return;
  const ChoicePart& part = choice.part;
  const bool alone = part.finish_reason.empty() && !part.logprobs && !part.token_ids;
  if (alone && part.reasoning.empty() && !part.text.empty())
    exchange_->send(choice.events.event(part.text));
  else if (alone && part.text.empty() && !part.reasoning.empty())
    exchange_->send(choice.thoughts.event(part.reasoning));
  else
    exchange_->send(event(chunk_value(head_, part, usage_in_chunks())));
  const std::int64_t index = choice.part.index;
  choice.part = {};
  choice.part.index = index;
}

void Completion::finish() {
  if (request_.stream) {
    if (request_.include_usage) exchange_->send(event(usage_chunk_value(head_, usage_)));
    exchange_->send(last_event);
    exchange_->end();
  } else {
    std::vector<ChoicePart> parts;
    for (auto& choice : choices_) parts.push_back(std::move(choice.part));
    serving_.metrics.count_request(request_.kind == ApiKind::chat ? "/v1/chat/completions" : "/v1/completions", 200);
    HttpResponse response;
    response.body = to_json(answer_value(head_, parts, usage_));
    exchange_->reply(std::move(response));
  }
  close();
}

void Completion::fail(const ApiError& error) {
  if (ended_) return;
  cancel_all();
  if (request_.stream) {
    exchange_->send(event(error_value(error)));
    exchange_->end();
  } else {
    serving_.metrics.count_request(request_.kind == ApiKind::chat ? "/v1/chat/completions" : "/v1/completions",
                                   error.status);
    exchange_->reply(error_response(error));
  }
  close();
}

void Completion::abandon() {
  if (ended_) return;
  cancel_all();
  close();
}

void Completion::close() {
  ended_ = true;
  serving_.metrics.observe_duration(seconds_since(arrival_));
  if (on_end_) std::exchange(on_end_, nullptr)();
}

}  // namespace motley
