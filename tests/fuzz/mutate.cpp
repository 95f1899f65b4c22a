// Gives a fuzz target inputs without libFuzzer: files with a few things changed, by a generator whose numbers follow
// from the seed. Less thorough, as nothing says which inputs reach new code, and everywhere a compiler is.
//
//   NAME_mutations INPUTS FILE...
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t longest = std::size_t{64} << 10, most_changes = 4, longest_piece = 64;
constexpr std::array<const char*, 16> numbers = {"0",     "1",    "-1",         "2",        "3",
                                                 "7",     "0.5",  "1e-300",     "1e300",    "255",
                                                 "65536", "null", "2147483648", "16777216", "9223372036854775807",
                                                 "\"x\""};
constexpr std::array<std::uint64_t, 12> words = {
    0, 1, 2, 3, 7, 255, 256, 65535, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};

class Generator {
 public:
  explicit Generator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  std::string next() {
    std::string input = any(seeds_);
    for (std::size_t change = 1 + below(most_changes); change > 0; --change) apply(input);
    input.resize(std::min(input.size(), longest));
    return input;
  }

 private:
  std::size_t below(std::size_t end) { return end == 0 ? 0 : static_cast<std::size_t>(random_() % end); }
  template <class List>
  const typename List::value_type& any(const List& list) {
    return list[below(list.size())];
  }

  void apply(std::string& input) {
    const std::size_t at = below(input.size());
    const std::size_t length = std::min(below(longest_piece) + 1, input.size() - at);
    switch (below(8)) {
      case 0: input.erase(at, length); break;
      case 1: input.insert(at, input.substr(at, length)); break;
      case 2: {  // a piece of another file
        const std::string& other = any(seeds_);
        input.replace(at, length, other, below(other.size()), length);
        break;
      }
      case 3:
        if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 4: {  // as files have numbers in binary
        std::uint64_t word = any(words);
        for (std::size_t byte = at; byte < std::min(input.size(), at + (below(2) == 0 ? 4 : 8)); ++byte, word >>= 8U)
          input[byte] = static_cast<char>(word & 0xffU);
        break;
      }
      default: {  // as they have them in text
        const std::size_t begin = input.find_first_of("0123456789", at);
        if (begin == std::string::npos) break;
        input.replace(begin, std::min(input.find_first_not_of("0123456789.", begin), input.size()) - begin,
                      any(numbers));
      }
    }
  }

  std::vector<std::string> seeds_;
  std::mt19937_64 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> seeds;
  for (int file = 2; file < argc; ++file) {
    std::ifstream in(argv[file], std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "usage: %s INPUTS FILE...\n", argv[0]);
    return 2;
  }
  Generator generator(std::move(seeds));
  for (long left = std::atol(argv[1]); left > 0; --left) {
    const std::string input = generator.next();
    try {
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
    } catch (const std::exception& error) {
      std::ofstream("broken-input", std::ios::binary) << input;
      std::fprintf(stderr, "%s; the input is in broken-input\n", error.what());
      return 1;
    }
  }
  return 0;
}
