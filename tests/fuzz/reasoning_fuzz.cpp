// Answers of models, in pieces of any length; what is special is between zeros. Nothing of a chat's text may be lost.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "motley/server/reasoning.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  if (size < 2) return 0;
  constexpr std::array forms = {Reasoning::tags, Reasoning::harmony, Reasoning::channels};
  constexpr std::array<std::string_view, 4> prompts = {"<think>\n", "<|start|>assistant", "<|channel>thought\n", ""};
  const std::size_t piece = 1 + data[1] % 16;
  std::string_view text = text_of(data + 2, size - 2);
  ReasoningStream stream(forms[data[0] % forms.size()], prompts[data[0] / forms.size() % prompts.size()]);
  std::size_t given = 0;
  const auto count = [&](const AnswerText& out) { given += out.reasoning.size() + out.content.size(); };
  const std::size_t whole = text.size();
  std::size_t messages = 0;
  while (!text.empty()) {
    const bool special = text.front() == '\0';
    const std::string_view token =
        special ? text.substr(1, text.find('\0', 1) - 1) : text.substr(0, std::min(piece, text.find('\0')));
    count(special ? stream.mark(token) : stream.push(token));
    messages += special ? 1 : 0;
    text.remove_prefix(std::min(token.size() + (special ? 2 : 0), text.size()));
  }
  count(stream.finish());
  if (given > whole + messages) std::abort();  // a line break before each further message, and nothing else, is added
  return 0;
}
