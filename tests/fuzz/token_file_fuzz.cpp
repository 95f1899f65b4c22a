#include "motley/trainer/data/token_file.hpp"

#include "tests/fuzz/fuzz.hpp"

// A .npy file, and the index of a .bin file of 64 bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  const std::string_view text = text_of(data, size);
  const auto read = [](const TokenFile& tokens) { tokens.read(0, tokens.size()); };
  refused_or_read([&] { read(TokenFile::open_npy(file_of(text, ".npy"))); });
  return refused_or_read([&] {
    const std::filesystem::path bin = file_of(std::string(64, 'x'), ".bin");
    file_of(text, ".idx");
    read(TokenFile::open_megatron(bin));
  });
}
