#include <gtest/gtest.h>

#include "motley/text/text_codec_fixture_test.hpp"

namespace motley {
namespace {

const fs::path family_templates = text_data / "templates";

class ChatTemplates : public testing::TestWithParam<std::string> {};

TEST_P(ChatTemplates, AsTransformers) {
  const Folder folder;
  folder.copy(text_data / "metaspace/tokenizer.json").copy(text_data / "metaspace/tokenizer_config.json");
  folder.write("chat_template.jinja", read_file(family_templates / (GetParam() + ".jinja")));
  const auto codec = TextCodec::open(folder.path());
  const Value goldens = read_document(family_templates / "chats.json");
  int rows = 0, refused = 0;
  for (const Value& row : member(goldens, "rows").as_array()) {
    if (member(row, "template").as_string() != GetParam()) continue;
    const std::string& chat = member(row, "chat").as_string();
    const Value &messages = member(member(goldens, "chats"), chat), &arguments = member(row, "arguments");
    SCOPED_TRACE(chat + " " + to_json(arguments));
    const auto render = [&] {
      return codec->apply_chat_template(messages, member(row, "add_generation_prompt").as_bool(), arguments);
    };
    ++rows;
    if (const Value* expected = row.find("text")) {
      EXPECT_EQ(render(), expected->as_string());
    } else {
      ++refused;
      const Error error = error_of(render);
      EXPECT_EQ(error.code(), ErrorCode::input);
      EXPECT_NE(error.message().find(member(row, "error").as_string()), std::string::npos) << error.message();
    }
  }
  EXPECT_EQ(rows, 72);
  EXPECT_LT(refused, rows / 2);
}

INSTANTIATE_TEST_SUITE_P(All, ChatTemplates, testing::Values("chatml", "gemma", "gemma4", "glm", "harmony", "minimax"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace motley
