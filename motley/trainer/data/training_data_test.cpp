#include "motley/trainer/data/training_data.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "motley/base/error.hpp"
#include "motley/base/value.hpp"
#include "motley/text/text_codec.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

const fs::path tales = fs::path(MOTLEY_SOURCE_DIR) / "data/models/tales";
constexpr std::int32_t eos = 1;
constexpr std::int64_t vocabulary = 2048;

TextCodec& codec() {
  static const auto opened = TextCodec::open(tales);
  return *opened;
}

template <class T>
std::string as_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::string npy(const std::string& type, const std::vector<T>& values, int version = 1) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}", type, values.size());
  header.resize((header.size() + 64) / 64 * 64, ' ');
  header.back() = '\n';
  std::string start("\x93NUMPY", 6);
  start += static_cast<char>(version);
  start += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) start += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return start + header + as_bytes(values);
}

// Megatron's index of sequences of these lengths.
std::string megatron_index(const std::vector<std::int32_t>& sizes, char code, std::int64_t element) {
  std::vector<std::int64_t> pointers, documents = {0};
  std::int64_t end = 0;
  for (const std::int32_t size : sizes) {
    pointers.push_back(end);
    end += size * element;
    documents.push_back(std::ssize(pointers));
  }
  return std::string("MMIDIDX\0\0", 9) + as_bytes<std::uint64_t>({1}) + code +
         as_bytes<std::uint64_t>({sizes.size(), documents.size()}) + as_bytes(sizes) + as_bytes(pointers) +
         as_bytes(documents);
}

template <class T>
std::vector<T> cast(const Ids& ids) {
  return {ids.begin(), ids.end()};
}

class TrainingDataTest : public ::testing::Test {
 protected:
  TrainingDataTest() {
    std::string pattern = (fs::temp_directory_path() / "training-data-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    options.model = tales;
    options.cache = folder / "cache";
    options.sequence_length = 4;
    options.vocabulary = vocabulary;
  }
  ~TrainingDataTest() override { fs::remove_all(folder); }

  TrainingDataOptions of(const std::string& name, const std::string& content) {
    std::ofstream(folder / name, std::ios::binary) << content;
    TrainingDataOptions made = options;
    made.file = folder / name;
    return made;
  }
  TrainingDataOptions of_line(const std::string& line) { return of("data.jsonl", line + "\n"); }

  // The message of the error that opening it gives, which must have a hint.
  static std::string refusal(const TrainingDataOptions& from) {
    try {
      TrainingData::open(from)->batch(1, 8);
    } catch (const Error& error) {
      EXPECT_FALSE(error.hint().empty()) << error.what();
      EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
      return error.what();
    }
    return "accepted";
  }

  fs::path folder;
  TrainingDataOptions options;
};

std::vector<Ids> inputs_of(const std::vector<TrainSequence>& batch) {
  std::vector<Ids> inputs;
  for (const TrainSequence& sequence : batch) inputs.push_back(sequence.inputs);
  return inputs;
}

// The targets that count, over all sequences.
Ids learned(const TrainingDataOptions& from) {
  const auto data = TrainingData::open(from);
  Ids ids;
  for (std::int64_t i = 0; i < data->sequences(); ++i)
    for (const std::int32_t target : data->sequence(i).targets)
      if (target >= 0) ids.push_back(target);
  return ids;
}

Ids counting(std::int32_t count) {
  Ids ids;
  for (std::int32_t i = 0; i < count; ++i) ids.push_back(10 + i);
  return ids;
}

TEST_F(TrainingDataTest, SequencesOverlapByOneToken) {
  const auto data = TrainingData::open(of("data.npy", npy("<u2", cast<std::uint16_t>(counting(11)))));
  ASSERT_EQ(data->sequences(), 2);  // of 11 tokens, two of them are left over
  EXPECT_THAT(data->sequence(0).inputs, ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(data->sequence(0).targets, ElementsAre(11, 12, 13, 14));
  EXPECT_THAT(data->sequence(1).inputs, ElementsAre(14, 15, 16, 17));
  EXPECT_THAT(data->sequence(1).targets, ElementsAre(15, 16, 17, 18));
}

TEST_F(TrainingDataTest, WithoutShufflingStepsGoThroughTheFileAndBeginAgain) {
  TrainingDataOptions from = of("data.npy", npy("<u2", cast<std::uint16_t>(counting(21))));
  from.shuffle = false;
  const auto data = TrainingData::open(from);
  ASSERT_EQ(data->sequences(), 5);
  const auto firsts = [&](std::int64_t step, std::int64_t batch) {
    Ids ids;
    for (const TrainSequence& sequence : data->batch(step, batch)) ids.push_back((sequence.inputs[0] - 10) / 4);
    return ids;
  };
  EXPECT_THAT(firsts(1, 2), ElementsAre(0, 1));
  EXPECT_THAT(firsts(3, 2), ElementsAre(4, 0));
  EXPECT_THAT(firsts(1, 12), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1));
  EXPECT_THAT(firsts(1'000'000'000'000, 5), ElementsAre(0, 1, 2, 3, 4));
}

// Which sequences a step has follows from data, seed and step alone, whatever file holds the tokens.
TEST_F(TrainingDataTest, EveryFormatGivesTheSameOrder) {
  const std::vector<std::string> texts = {"The miller counted his ducks.", "One was \"missing\".\nWhere?", "Ümläut"};
  std::string lines;
  Ids ids;
  std::vector<std::int32_t> sizes;
  for (const std::string& text : texts) {
    lines += to_json(Value::object({{"text", text}})) + "\r\n\n";
    Ids document = codec().encode(text, true);
    document.push_back(eos);
    sizes.push_back(static_cast<std::int32_t>(document.size()));
    ids.insert(ids.end(), document.begin(), document.end());
  }
  options.seed = 7;
  const auto expected = TrainingData::open(of("data.npy", npy("<u2", cast<std::uint16_t>(ids))));
  ASSERT_GT(expected->sequences(), 4);
  const auto expect_same = [&](const TrainingDataOptions& from) {
    const auto data = TrainingData::open(from);
    ASSERT_EQ(data->sequences(), expected->sequences());
    for (const std::int64_t step : {1, 2, 9}) {
      const auto got = data->batch(step, 3), wanted = expected->batch(step, 3);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_EQ(got[i].inputs, wanted[i].inputs) << from.file;
        EXPECT_EQ(got[i].targets, wanted[i].targets) << from.file;
      }
    }
  };
  expect_same(of("data.jsonl", lines));
  expect_same(of("two.npy", npy("<u2", cast<std::uint16_t>(ids), 2)));
  expect_same(of("four.npy", npy("<u4", cast<std::uint32_t>(ids))));
  expect_same(of("eight.npy", npy("<i8", cast<std::int64_t>(ids))));
  of("short.idx", megatron_index(sizes, 8, 2));
  expect_same(of("short.bin", as_bytes(cast<std::uint16_t>(ids))));
  of("int.idx", megatron_index(sizes, 4, 4));
  expect_same(of("int.bin", as_bytes(ids)));
}

TEST_F(TrainingDataTest, ATextFileIsOneDocument) {
  const std::string text = "The miller counted his ducks.\nOne was missing.\n\nWhere was it?\n";
  TrainingDataOptions from = of("data.txt", text);
  from.shuffle = false;
  Ids ids = codec().encode(text, true);
  ids.push_back(eos);
  EXPECT_EQ(inputs_of(TrainingData::open(from)->batch(1, 1))[0], Ids(ids.begin(), ids.begin() + 4));
  from.sequence_length = std::ssize(ids) - 1;
  EXPECT_EQ(TrainingData::open(from)->sequence(0).targets, Ids(ids.begin() + 1, ids.end()));
}

TEST_F(TrainingDataTest, EpochsHaveOrdersOfTheirOwnAndAllSequences) {
  const TrainingDataOptions from = of("data.npy", npy("<u4", cast<std::uint32_t>(counting(401))));
  const auto data = TrainingData::open(from);
  const auto first = inputs_of(data->batch(1, 100)), second = inputs_of(data->batch(2, 100));
  EXPECT_NE(first, second);
  EXPECT_THAT(first, ::testing::UnorderedElementsAreArray(second));
  TrainingDataOptions other = from;
  other.seed = 1;
  EXPECT_NE(inputs_of(TrainingData::open(other)->batch(1, 100)), first);
}

// A step has the same sequences however large the steps were before it, as one that goes on needs.
TEST_F(TrainingDataTest, ABatchIsAPartOfTheSameOrder) {
  for (const std::int32_t sequences : {1, 2, 3, 7, 64, 100}) {
    const TrainingDataOptions from = of("data.npy", npy("<u4", cast<std::uint32_t>(counting(4 * sequences + 1))));
    const auto all = inputs_of(TrainingData::open(from)->batch(1, 300));
    EXPECT_TRUE(rc::check([&] {
      const auto data = TrainingData::open(from);
      const auto batch = *rc::gen::inRange<std::int64_t>(1, 20);
      const auto step = *rc::gen::inRange<std::int64_t>(1, 300 / batch + 1);
      const auto begin = all.begin() + (step - 1) * batch;
      RC_ASSERT(inputs_of(data->batch(step, batch)) == std::vector<Ids>(begin, begin + batch));
    }));
  }
}

TEST_F(TrainingDataTest, OnlyTheCompletionIsLearned) {
  options.sequence_length = 1;
  const auto completion_of = [&](const std::string& prompt, const std::string& completion) {
    const Value line = Value::object({{"prompt", prompt}, {"completion", completion}});
    return codec().decode(learned(of_line(to_json(line))), false);
  };
  EXPECT_EQ(completion_of("Where is the miller?\nAnswer:", " At the river."), " At the river.<|end|>");
  EXPECT_EQ(completion_of("Ümläut:", " é"), " é<|end|>");
  EXPECT_EQ(completion_of("The miller sleeps.", ""), "<|end|>");
  // A token across the border is one that is generated after the prompt.
  ASSERT_EQ(codec().encode(" miller", false).size(), 1U);
  EXPECT_EQ(completion_of("The mil", "ler sleeps"), " miller sleeps<|end|>");
}

TEST_F(TrainingDataTest, MaskedTokensAreNoTargets) {
  options.sequence_length = 1;
  const std::string line = to_json(Value::object({{"prompt", "The miller"}, {"completion", " sleeps"}}));
  TrainingDataOptions from = of("data.jsonl", line + "\n" + line + "\n");
  const Ids whole = codec().encode("The miller sleeps", false);
  const auto prompt = codec().encode("The miller", false).size();
  const auto data = TrainingData::open(from);
  ASSERT_EQ(data->sequences(), 2 * (std::ssize(whole) + 1) - 1);
  for (std::int64_t i = 0; i < data->sequences(); ++i) {
    const auto place = static_cast<std::size_t>(i + 1) % (whole.size() + 1);
    const std::int32_t token = place == whole.size() ? eos : whole[place];
    EXPECT_THAT(data->sequence(i).targets, ElementsAre(place < prompt ? -1 : token)) << i;
  }
}

Value message(const std::string& role, const std::string& content) {
  return Value::object({{"role", role}, {"content", content}});
}

const Value talk = Value::object(
    {{"messages", Value::array({message("user", "Where is the miller?"), message("assistant", "At the river."),
                                message("user", "And the ducks?"), message("assistant", "Gone, all of them.")})}});

TEST_F(TrainingDataTest, OnlyTheTurnsOfTheAssistantAreLearned) {
  options.sequence_length = 1;
  EXPECT_EQ(codec().decode(learned(of_line(to_json(talk))), false), "At the river.<|end|>Gone, all of them.<|end|>");
}

// As templates that leave out what earlier turns were thinking.
TEST_F(TrainingDataTest, ATurnThatIsRenderedOtherwiseLaterIsADocumentOfItsOwn) {
  const fs::path model = folder / "model";
  fs::create_directory(model);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) fs::copy_file(tales / name, model / name);
  std::ofstream(model / "chat_template.jinja")
      << "{% for message in messages %}{% if message.role == 'assistant' %}<|assistant|>{% if loop.last %}Hm. {% endif "
         "%}{% else %}<|user|>{% endif %}{{ message.content }}<|end|>{% endfor %}"
         "{% if add_generation_prompt %}<|assistant|>{% endif %}";
  options.model = model;
  options.sequence_length = 1;
  EXPECT_EQ(codec().decode(learned(of_line(to_json(talk))), false),
            "Hm. At the river.<|end|>Hm. Gone, all of them.<|end|>");
}

TEST_F(TrainingDataTest, TextIsTokenisedOnce) {
  TrainingDataOptions from = of("data.jsonl", R"({"text": "The miller counted his ducks."})");
  std::vector<double> fractions;
  from.progress = [&](double fraction) { fractions.push_back(fraction); };
  const auto first = TrainingData::open(from)->batch(1, 1);
  EXPECT_THAT(fractions, ElementsAre(1.0));
  ASSERT_EQ(std::distance(fs::directory_iterator(from.cache), {}), 1);
  EXPECT_EQ(inputs_of(TrainingData::open(from)->batch(1, 1)), inputs_of(first));
  EXPECT_EQ(fractions.size(), 1U);  // not again
  const fs::path kept = fs::directory_iterator(from.cache)->path();
  fs::resize_file(kept, fs::file_size(kept) - 1);  // damaged: again
  EXPECT_EQ(inputs_of(TrainingData::open(from)->batch(1, 1)), inputs_of(first));
  EXPECT_EQ(fractions.size(), 2U);
  of("data.jsonl", R"({"text": "The miller counted his hens, one by one."})");
  TrainingData::open(from);
  EXPECT_EQ(fractions.size(), 3U);
  EXPECT_EQ(std::distance(fs::directory_iterator(from.cache), {}), 2);
}

TEST_F(TrainingDataTest, WithoutACacheNothingIsLeft) {
  TrainingDataOptions from = of("data.jsonl", R"({"text": "The miller counted his ducks."})");
  const auto kept = inputs_of(TrainingData::open(from)->batch(1, 2));
  from.cache.clear();
  EXPECT_EQ(inputs_of(TrainingData::open(from)->batch(1, 2)), kept);
}

// Many lines, in order whatever the threads.
TEST_F(TrainingDataTest, ThreadsDoNotChangeTheTokens) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += fmt::format("{{\"text\": \"The miller counted {} ducks.\"}}\n", i);
  TrainingDataOptions from = of("data.jsonl", lines);
  from.cache.clear();
  const auto one = inputs_of(TrainingData::open(from)->batch(1, 500));
  from.threads = 4;
  EXPECT_EQ(inputs_of(TrainingData::open(from)->batch(1, 500)), one);
}

TEST_F(TrainingDataTest, ALongTextIsCutWhereTokensEnd) {
  std::string text;
  for (int i = 0; i < 45'000; ++i) text += fmt::format("The miller counted {} ducks.\n", i);
  TrainingDataOptions from = of("data.txt", text);
  from.cache.clear();
  Ids ids = codec().encode(text, true);
  ids.push_back(eos);
  from.sequence_length = std::ssize(ids) - 1;
  const auto data = TrainingData::open(from);
  EXPECT_EQ(data->sequence(0).targets, Ids(ids.begin() + 1, ids.end()));
}

// As the tokenizer begins texts, and EOS after each.
TEST_F(TrainingDataTest, DocumentsBeginAndEndAsTheModelsTextsDo) {
  for (const std::string name : {"byte_level", "sentencepiece_like", "metaspace"}) {
    options.model = fs::path(MOTLEY_SOURCE_DIR) / "tests/data/text" / name;
    const auto own = TextCodec::open(options.model);
    ASSERT_TRUE(own->eos_token()) << name;
    Ids ids = own->encode("The miller sleeps", true);
    ids.push_back(*own->eos_token());
    options.sequence_length = std::ssize(ids) - 1;
    EXPECT_EQ(TrainingData::open(of_line(R"({"text": "The miller sleeps"})"))->sequence(0).targets,
              Ids(ids.begin() + 1, ids.end()))
        << name;
  }
}

TEST_F(TrainingDataTest, TheConfigurationNamesTheEosTokenWhereTheTokenizerDoesNot) {
  const fs::path model = folder / "model";
  fs::create_directory(model);
  fs::copy_file(tales / "tokenizer.json", model / "tokenizer.json");
  options.model = model;
  EXPECT_THAT(refusal(of_line(R"({"text": "The miller sleeps"})")), HasSubstr("the model names no EOS token"));
  std::ofstream(model / "config.json") << R"({"eos_token_id": [9, 1]})";
  options.sequence_length = 1;
  EXPECT_EQ(learned(of_line(R"({"text": "The miller sleeps"})")).back(), 9);
}

TEST_F(TrainingDataTest, RefusesLines) {
  const auto line = [&](const std::string& text) { return refusal(of_line("{\"text\": \"one\"}\n" + text)); };
  const std::string place = (folder / "data.jsonl").string() + ":2: ";
  EXPECT_THAT(line("{\"text\": "), HasSubstr(place));
  EXPECT_THAT(line("{\"text\": "), Not(HasSubstr("the line")));
  EXPECT_THAT(line("[1]"), HasSubstr(place + "expected an object, found a list"));
  EXPECT_THAT(line("{\"txt\": \"a\"}"), HasSubstr(place + "the line has neither `text`"));
  EXPECT_THAT(line("{\"text\": 3}"), HasSubstr(place + "`text` must be a string, found"));
  EXPECT_THAT(line("{\"prompt\": \"a\"}"), HasSubstr(place + "the key `completion` is missing"));
  EXPECT_THAT(line("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"),
              HasSubstr(place + "`messages` has no turn of the assistant"));
  EXPECT_THAT(line("{\"messages\": []}"), HasSubstr(place + "messages: expected a list"));
  EXPECT_THAT(line("{\"text\": \"\xff\"}"), HasSubstr(place));
  EXPECT_EQ(std::distance(fs::directory_iterator(options.cache), {}), 0);  // nothing half-written
}

TEST_F(TrainingDataTest, RefusesMessagesWithoutATemplate) {
  options.model = fs::path(MOTLEY_SOURCE_DIR) / "tests/data/text/byte_level";
  EXPECT_THAT(refusal(of_line(to_json(talk))), HasSubstr("data.jsonl:1: `messages` need a chat template"));
}

TEST_F(TrainingDataTest, RefusesFiles) {
  EXPECT_THAT(refusal(of("data.csv", "1,2")), HasSubstr("data.csv: the name must end in"));
  EXPECT_THAT(refusal(of("short.npy", npy("<u2", cast<std::uint16_t>(counting(4))))),
              HasSubstr("short.npy: 4 tokens are less than one sequence of 4"));
  EXPECT_THAT(refusal(of("empty.npy", npy<std::uint16_t>("<u2", {}))), HasSubstr("empty.npy: 0 tokens are less"));
  EXPECT_THAT(refusal(of("empty.jsonl", "")), HasSubstr("empty.jsonl: 0 tokens are less"));
  EXPECT_THAT(refusal(of("bad.txt", "abc \xff")), AllOf(HasSubstr("bad.txt: "), HasSubstr("UTF-8")));
  TrainingDataOptions missing = options;
  missing.file = folder / "missing.npy";
  EXPECT_THAT(refusal(missing), HasSubstr("missing.npy: no such file"));
  missing.file = folder / "missing.txt";
  EXPECT_THAT(refusal(missing), HasSubstr("missing.txt: no such file"));
}

TEST_F(TrainingDataTest, RefusesTokensOutsideTheVocabulary) {
  Ids ids = counting(20);
  ids[6] = 2048;
  EXPECT_THAT(refusal(of("high.npy", npy("<u2", cast<std::uint16_t>(ids)))),
              HasSubstr("high.npy: token 2048 at position 6 is outside the model's vocabulary of 2048"));
  ids[6] = -3;
  EXPECT_THAT(refusal(of("low.npy", npy("<i8", cast<std::int64_t>(ids)))), HasSubstr("token -3 at position 6"));
  options.vocabulary = 20;
  EXPECT_THAT(refusal(of_line("{\"text\": \"The miller\"}")),
              AllOf(HasSubstr("data.jsonl:1: token "), HasSubstr("outside the model's vocabulary of 20")));
}

TEST_F(TrainingDataTest, RefusesDamagedNpyFiles) {
  const std::string whole = npy("<u2", cast<std::uint16_t>(counting(20)));
  EXPECT_THAT(refusal(of("a.npy", "no numbers at all")), HasSubstr("this is not a .npy file"));
  EXPECT_THAT(refusal(of("a.npy", npy<float>("<f4", {1, 2, 3}))),
              HasSubstr("the type must be little-endian uint16, uint32 or int64, found \"<f4\""));
  EXPECT_THAT(refusal(of("a.npy", npy(">u2", cast<std::uint16_t>(counting(20))))), HasSubstr("found \">u2\""));
  EXPECT_THAT(refusal(of("a.npy", whole.substr(0, whole.size() - 4))), HasSubstr("20 tokens take 40 bytes"));
  EXPECT_THAT(refusal(of("a.npy", whole + "x")), HasSubstr("the file has 41"));
  std::string long_header = npy("<u2", cast<std::uint16_t>(counting(20)), 2);
  long_header.replace(8, 4, std::string("\0\0\1\0", 4));
  EXPECT_THAT(refusal(of("a.npy", long_header + std::string(1 << 16, ' '))), HasSubstr("a header of 65536 bytes"));
  std::string square = whole;
  square.replace(square.find("(20,)"), 5, "(5,4)");
  EXPECT_THAT(refusal(of("a.npy", square)), HasSubstr("must be that of a vector, found (5,4)"));
  std::string version = whole;
  version[6] = 9;
  EXPECT_THAT(refusal(of("a.npy", version)), HasSubstr("version 9"));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(refusal(of("a.npy", whole.substr(0, size))), HasSubstr("a.npy: ")) << size;
}

TEST_F(TrainingDataTest, RefusesPairsThatDoNotMatch) {
  const std::string bin = as_bytes(cast<std::uint16_t>(counting(20)));
  EXPECT_THAT(refusal(of("a.bin", bin)), HasSubstr("a.bin: a.idx is missing"));
  const auto with = [&](const std::string& index) {
    of("a.idx", index);
    return refusal(of("a.bin", bin));
  };
  const std::string index = megatron_index({12, 8}, 8, 2);
  EXPECT_EQ(with(index), "accepted");
  EXPECT_THAT(with("short"), HasSubstr("a.idx: this is not an index"));
  EXPECT_THAT(with(megatron_index({12, 9}, 8, 2)), HasSubstr("take 42 bytes, but the .bin file has 40"));
  EXPECT_THAT(with(megatron_index({12, -2}, 8, 2)), HasSubstr("sequence 1 of -2 tokens"));
  EXPECT_THAT(with(megatron_index({12, 8}, 8, 4)),
              HasSubstr("sequence 1 of 8 tokens begins at byte 48, expected at 24"));
  EXPECT_THAT(with(megatron_index({12, 8}, 7, 2)), HasSubstr("type code 7"));
  std::string version = index;
  version[9] = 2;
  EXPECT_THAT(with(version), HasSubstr("version 2"));
  for (std::size_t size = 0; size < index.size(); ++size)
    EXPECT_THAT(with(index.substr(0, size)), HasSubstr("a.idx: ")) << size;
  std::string lie = index;
  for (std::size_t i = 18; i < 26; ++i) lie[i] = '\xff';
  EXPECT_THAT(with(lie), HasSubstr("take more than its"));
}

TEST_F(TrainingDataTest, AFullDiskLeavesNothing) {
  std::string lines;
  for (int i = 0; i < 40'000; ++i) lines += "{\"text\": \"The miller counted his ducks.\"}\n";
  const TrainingDataOptions from = of("data.jsonl", lines);
  // A limit of the size of files, as a full disk gives it.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  try {
    TrainingData::open(from);
    ADD_FAILURE() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment) << error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(std::distance(fs::directory_iterator(from.cache), {}), 0);
}

}  // namespace
}  // namespace motley
