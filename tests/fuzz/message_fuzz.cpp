#include "motley/trainer/layout/train_messages.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  // What can be read is written back as it was.
  return refused_or_read([&] {
    const Message message = decode(text_of(data, size));
    if (encode(message) != text_of(data, size)) std::abort();
    if (std::holds_alternative<JobMessage>(message) && Message(encode_train(decode_train(message))) != message)
      std::abort();
  });
}
