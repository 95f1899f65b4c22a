// What preparing a stranger's body costs, whatever it holds: the memory of this program (the tokenizer's is not
// counted), and processor time that grows as the bytes do.
#include "motley/server/prepared_request.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "motley/base/cost_test.hpp"
#include "motley/base/hostile_json_test.hpp"

namespace motley {
namespace {

Cost cost_of_body(const std::string& body, ApiKind kind, const Model& model, TextCodec& codec) {
  return cost_of([&] {
    try {
      Preparation preparation(body, kind, model, &codec);
      while (preparation.step()) {
      }
      preparation.take();
    } catch (const Error& error) {
      EXPECT_LT(to_json(error_value(to_api_error(error))).size(), 1500U);
    }
  });
}

TEST(Preparation, CostsWhatTheBytesDo) {
  constexpr std::size_t few_bytes = std::size_t{1} << 17, bytes = 16 * few_bytes;
  // As many values as a body may hold, and the rest by its bytes: 248 MB for the longest body, of 8 MiB.
  constexpr std::size_t most_bytes = 80'000'000 + 20 * bytes;
  const auto codec = TextCodec::open(MOTLEY_SOURCE_DIR "/tests/data/text/metaspace");
  Model model;
  model.arch.context = 512;
  model.arch.vocabulary = codec->vocabulary_size();
  struct Place {
    std::string_view name;
    ApiKind kind;
    std::string before, after;
  };
  const std::vector<Place> places = {
      {"the body", ApiKind::completion, "", ""},
      {"prompt", ApiKind::completion, "{\"prompt\":", "}"},
      {"messages", ApiKind::chat, "{\"messages\":", "}"},
      {"content", ApiKind::chat, "{\"messages\":[{\"role\":\"user\",\"content\":", "}]}"},
      {"stop", ApiKind::completion, "{\"prompt\":\"a\",\"stop\":", "}"},
      {"logit_bias", ApiKind::completion, "{\"prompt\":\"a\",\"logit_bias\":", "}"},
  };
  cost_of_body(R"({"messages":[{"role":"user","content":"a"}]})", ApiKind::chat, model, *codec);  // first use
  for (std::size_t at = 0; at < hostile_documents().size(); ++at) {
    const HostileJson& document = hostile_documents()[at];
    const std::string small_text = document.make(few_bytes), large_text = document.make(bytes);
    for (const Place& place : places) {
      SCOPED_TRACE(fmt::format("{} as {}", document.name, place.name));
      const Cost small = cost_of_body(place.before + small_text + place.after, place.kind, model, *codec);
      const auto cost_of_large = [&] {
        return cost_of_body(place.before + large_text + place.after, place.kind, model, *codec);
      };
      const Cost large = cost_of_large();
      EXPECT_LT(large.peak_bytes, most_bytes);
      const double most_s = 80 * small.processor_s + 0.1;
      EXPECT_LT(least_processor_s(large, most_s, cost_of_large), most_s);
      if (std::getenv("MOTLEY_SHOW_COSTS") != nullptr)
        fmt::print("{:32} {:12} {:4} MB at once, {:.3f} s\n", document.name, place.name, large.peak_bytes >> 20,
                   large.processor_s);
    }
  }
}

// An echo of many special tokens, which have no text of their own.
TEST(Preparation, EchoesOfTokensWithoutTextAreLinear) {
  const auto codec = TextCodec::open(MOTLEY_SOURCE_DIR "/tests/data/text/metaspace");
  Model model;
  model.arch.context = 1 << 20;
  model.arch.vocabulary = codec->vocabulary_size();
  const auto cost = [&](std::size_t tokens) {
    std::string list = "2";
    for (std::size_t i = 1; i < tokens; ++i) list += ",2";
    return cost_of_body("{\"echo\":true,\"max_tokens\":0,\"prompt\":[" + list + "]}", ApiKind::completion, model,
                        *codec);
  };
  const double most_s = 80 * cost(1000).processor_s + 0.1;
  EXPECT_LT(least_processor_s(cost(16000), most_s, [&] { return cost(16000); }), most_s);
}

}  // namespace
}  // namespace motley
