#include "motley/server/answer_times.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/median.hpp"
#include "motley/server/client.hpp"
#include "motley/server/http_server.hpp"
#include "motley/server/service.hpp"
#include "motley/serving/driver.hpp"

namespace motley {
namespace {

constexpr std::size_t request_tokens = 40;
constexpr std::chrono::milliseconds idle{50};
constexpr int request_rounds = 20, warm_up_requests = 3;

// Null where there is no text, or no package to read it with.
std::shared_ptr<TextCodec> open_text(const std::filesystem::path& folder) {
  if (folder.empty()) return nullptr;
  try {
    return TextCodec::open(folder);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::environment) throw;
    return nullptr;
  }
}

}  // namespace

AnswerTimes measure_answers(const ServePlan& plan, Fleet& fleet, const std::filesystem::path& model_folder,
                            const std::filesystem::path& text_folder, std::int64_t answer_tokens, double seconds) {
  const std::shared_ptr<TextCodec> codec = open_text(text_folder);
  Service service(plan, codec, {});
  Driver driver(plan, fleet,
                {.model_folder = model_folder,
                 .report = {},
                 .on_events = [&service](std::vector<GenerateEvent> events) { service.take(std::move(events)); }});
  Server server([&](HttpRequest request,
                    std::shared_ptr<Exchange> exchange) { service.handle(std::move(request), std::move(exchange)); },
                {.port = 0});
  service.attach(driver);
  const ServerAddress address{.port = std::to_string(server.port()), .api_key = {}};
  const Value prompt =
      codec ? Value(
                  "A lantern and an owl, a river and a hill, and a friend who was lost in the rain. Who was it that "
                  "found the lantern, and who the friend? It was the owl, of course.")
            : Value(Value::Array(request_tokens, Value(1)));
  const Value request = Value::object({{"prompt", prompt},
                                       {"max_tokens", answer_tokens},
                                       {"temperature", 1},  // or it is one token again and again, and no text
                                       {"seed", 1},
                                       {"ignore_eos", true},
                                       {"return_token_ids", true}});
  AnswerTimes measured;
  std::vector<double> first_token_s, per_token_s;
  const Instant start = Clock::now();
  for (int i = 0; i < warm_up_requests + request_rounds; ++i) {
    std::this_thread::sleep_for(idle);  // a request under light load finds cold caches and sleeping cores
    const StreamedReply reply = stream_completion(address, request, [](std::string_view) {});
    if (i < warm_up_requests) continue;
    measured.prompt_tokens = reply.prompt_tokens;
    first_token_s.push_back(reply.first_token_s);
    per_token_s.push_back((reply.last_token_s - reply.first_token_s) / static_cast<double>(answer_tokens - 1));
    if (seconds_since(start) > seconds) break;
  }
  service.detach();
  measured.first_token_s = median(first_token_s);
  measured.per_token_s = median(per_token_s);
  return measured;
}

}  // namespace motley
