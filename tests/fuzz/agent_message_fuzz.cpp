#include "motley/agent/agent_messages.hpp"
#include "motley/agent/invitation.hpp"
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
        const Invitation link = parse_invitation(text);
        if (!(parse_invitation(to_text(link)) == link)) std::abort();
      }
    }
  });
}
