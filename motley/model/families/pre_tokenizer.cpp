#include "motley/model/families/pre_tokenizer.hpp"

namespace motley {
namespace {

constexpr std::string_view up_to_three_digits = R"(\p{N}{1,3})";
constexpr std::string_view three_digits = R"([0-9][0-9][0-9])";
constexpr std::string_view all_digits = R"(\p{N}+)";
constexpr std::string_view words_with_marks =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view words_by_case_with_endings =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view words_by_class =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view chinese_and_japanese = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr std::string_view chinese_japanese_and_korean = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
constexpr std::string_view line_end = R"([\r\n])";
constexpr std::string_view letters = R"(\s?\p{L}+)";
constexpr std::string_view punctuation = R"(\s?\p{P}+)";
constexpr std::string_view signs = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr std::string_view signs_and_backticks = R"([\p{P}\$\+<=>\^~\|`]+)";

constexpr std::array<PreTokenizer, 8> of_other_models = {{
    {"glm4", {llama3_words}, true},
    {"dbrx smaug-bpe chatglm-bpe", {llama3_words}},
    {"qwen35", {words_with_marks}},
    {"gpt-4o llama4 kanana2 minimax-m2", {words_by_case_with_endings}},
    {"deepseek-v3 hunyuan-dense", {up_to_three_digits, chinese_and_japanese, words_by_class}},
    {"deepseek-coder", {line_end, letters, punctuation, chinese_japanese_and_korean, one_digit}},
    {"falcon", {signs_and_backticks, gpt2_words, three_digits}},
    {"default", {signs, gpt2_words, all_digits, three_digits}},
}};

}  // namespace

const std::span<const PreTokenizer> more_pre_tokenizers = of_other_models;

}  // namespace motley
