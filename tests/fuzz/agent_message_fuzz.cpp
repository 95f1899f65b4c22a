#include "motley/agent/join_link.hpp"
#include "motley/agent/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

// The first byte chooses what reads the rest.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  if (size == 0) return 0;
  const std::string text(text_of(data + 1, size - 1));
  return refused_or_read([&] {
    switch (data[0] % 3) {
      case 0: {
        // What can be read is written back as it was.
        const AgentMessage message = decode_agent(text);
        if (encode_agent(message) != text) std::abort();
        if (const auto* weights = std::get_if<Weights>(&message)) check_manifest(weights->manifest);
        break;
      }
      case 1:
        if (encode_request(decode_request(text)) != text) std::abort();
        break;
      default: {
        const JoinLink link = parse_join_link(text);
        if (!(parse_join_link(to_text(link)) == link)) std::abort();
      }
    }
  });
}
