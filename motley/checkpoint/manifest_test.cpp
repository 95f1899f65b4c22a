#include "motley/checkpoint/manifest.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <limits>
#include <set>

#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/digest.hpp"
#include "motley/checkpoint/gguf_writer.hpp"
#include "motley/checkpoint/large_model_test.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

class ManifestTest : public LargeModelTest {
 protected:
  fs::path write_gguf(const std::string& name, std::uint16_t part = 0, std::uint16_t parts = 1) {
    GgufWriter writer;
    writer.set_text("general.name", "small");
    if (parts > 1) {
      writer.set_u32("split.no", part);
      writer.set_u32("split.count", parts);
    }
    writer.add_tensor(fmt::format("blk.{}.attn_q.weight", part), "Q8_0", {2, 32});
    writer.write(folder / name,
                 [&](std::int64_t, const GgufWriter::Sink& sink) { sink(std::vector<std::byte>(68, std::byte{7})); });
    return folder / name;
  }
  // As if nothing had happened to the file since.
  static void keep_time(const fs::path& file, const std::function<void()>& change) {
    const auto before = fs::last_write_time(file);
    change();
    fs::last_write_time(file, before);
  }
  ModelManifest cached() const { return make_manifest(folder, folder / "digests"); }
};

TEST_F(ManifestTest, ListsTheChunksOfAFolder) {
  write_large();
  const ModelManifest manifest = make_manifest(folder);
  check_manifest(manifest);
  EXPECT_EQ(manifest.opens, "");
  ASSERT_EQ(manifest.files.size(), 1u);
  const ManifestFile& file = manifest.files[0];
  EXPECT_EQ(file.name, "model.safetensors");
  EXPECT_EQ(file.bytes, large_bytes);
  EXPECT_EQ(file.header_bytes, header_bytes);
  const std::vector<std::byte> zeros(chunk_bytes);
  ASSERT_EQ(file.digests.size(), 3u);
  EXPECT_NE(file.digests[0], sha256_of(zeros)) << "the header is in it";
  EXPECT_EQ(file.digests[1], sha256_of(zeros));
  EXPECT_EQ(file.digests[2], sha256_of(std::span(zeros).first(chunk_bytes / 2)));
  EXPECT_EQ(chunk_size(file, 1), chunk_bytes);
  EXPECT_EQ(chunk_size(file, 2), chunk_bytes / 2);
}

TEST_F(ManifestTest, ListsEveryFileOfAnIndexAndTheIndex) {
  write(file_of(small_header, small_data), "one.safetensors");
  write(file_of(R"({"c": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", bytes_of<float>({9})),
        "two.safetensors");
  write("no weights", "tokenizer.json");
  const std::string index = R"({"weight_map": {"a": "one.safetensors", "c": "two.safetensors"}})";
  write(index, "model.safetensors.index.json");
  const ModelManifest manifest = make_manifest(folder);
  check_manifest(manifest);
  std::vector<std::string> names;
  for (const ManifestFile& file : manifest.files) names.push_back(file.name);
  EXPECT_THAT(names, ElementsAre("one.safetensors", "two.safetensors", "model.safetensors.index.json"));
  EXPECT_EQ(manifest.files[0].header_bytes, 8 + small_header.size());
  EXPECT_EQ(manifest.files[2].header_bytes, index.size()) << "all of it is read";
}

TEST_F(ManifestTest, NamesTheGgufFileThatIsOpened) {
  const fs::path alone = write_gguf("small.gguf");
  const ModelManifest manifest = make_manifest(alone);
  EXPECT_EQ(manifest.opens, "small.gguf");
  ASSERT_EQ(manifest.files.size(), 1u);
  EXPECT_EQ(manifest.files[0].header_bytes, GgufFile(alone).header().size());
  EXPECT_EQ(manifest.files[0].bytes, fs::file_size(alone));

  const fs::path first = write_gguf("parts-00001-of-00002.gguf", 0, 2);
  write_gguf("parts-00002-of-00002.gguf", 1, 2);
  const ModelManifest split = make_manifest(first);
  check_manifest(split);
  EXPECT_EQ(split.opens, "parts-00001-of-00002.gguf");
  EXPECT_EQ(split.files.size(), 2u);
}

TEST_F(ManifestTest, AByteThatChangesChangesItsChunkAlone) {
  const fs::path file = write_large();
  const ModelManifest before = make_manifest(folder);
  for (const std::uint64_t at : {header_bytes, chunk_bytes - 1, chunk_bytes, large_bytes - 1}) {
    change_byte(file, at);
    const ModelManifest after = make_manifest(folder);
    EXPECT_NE(after.digest(), before.digest());
    for (std::size_t chunk = 0; chunk < 3; ++chunk)
      EXPECT_EQ(after.files[0].digests[chunk] == before.files[0].digests[chunk], chunk != at / chunk_bytes) << at;
    change_byte(file, at);
  }
  EXPECT_EQ(make_manifest(folder), before);
}

TEST_F(ManifestTest, ItsDigestCoversAllThatItSays) {
  const ManifestFile file{"a", 10, 4, {ChunkDigest{std::byte{1}}}};
  const ModelManifest manifest{"", {file}};
  std::set<std::string> digests{manifest.digest()};
  const auto differs = [&](const std::function<void(ModelManifest&)>& change) {
    ModelManifest changed = manifest;
    change(changed);
    return digests.insert(changed.digest()).second;
  };
  EXPECT_TRUE(differs([](ModelManifest& m) { m.opens = "a"; }));
  EXPECT_TRUE(differs([](ModelManifest& m) { m.files[0].name = "b"; }));
  EXPECT_TRUE(differs([](ModelManifest& m) { m.files[0].bytes = 11; }));
  EXPECT_TRUE(differs([](ModelManifest& m) { m.files[0].header_bytes = 5; }));
  EXPECT_TRUE(differs([](ModelManifest& m) { m.files[0].digests[0].back() = std::byte{1}; }));
  EXPECT_TRUE(differs([&](ModelManifest& m) { m.files.push_back(file); }));
  EXPECT_TRUE(differs([](ModelManifest& m) { m.files.clear(); }));
  for (const std::string& digest : digests) {
    EXPECT_EQ(digest.size(), 64u);
    EXPECT_EQ(digest.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}

// The file's bytes change, and nothing else that can be seen: then it was not read.
TEST_F(ManifestTest, DoesNotReadAgainWhatHasNotChanged) {
  const fs::path file = write_large();
  const ModelManifest first = cached();
  EXPECT_EQ(first, make_manifest(folder));
  keep_time(file, [&] { change_byte(file, chunk_bytes); });
  EXPECT_EQ(cached(), first);
  const ModelManifest changed = make_manifest(folder);
  EXPECT_NE(changed, first);

  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(1));
  EXPECT_EQ(cached(), changed);
  keep_time(file, [&] { fs::resize_file(file, large_bytes + 1); });
  EXPECT_EQ(cached(), make_manifest(folder));
  EXPECT_NE(cached(), changed);
}

TEST_F(ManifestTest, WhatIsKeptIsNotBelievedWhereItIsDamagedOrAnothers) {
  const fs::path file = write_large();
  const ModelManifest right = cached();
  ASSERT_EQ(std::distance(fs::directory_iterator(folder / "digests"), {}), 1);
  const fs::path kept = fs::directory_iterator(folder / "digests")->path();
  const std::uint64_t whole = fs::file_size(kept);
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{5}, whole - 1, whole + 1}) {
    fs::resize_file(kept, size);
    EXPECT_EQ(cached(), right) << size;
  }
  // Another file in its place, of the same size and time.
  fs::copy_file(file, folder / "copy");
  change_byte(folder / "copy", 2 * chunk_bytes);
  fs::last_write_time(folder / "copy", fs::last_write_time(file));
  fs::rename(folder / "copy", file);
  EXPECT_EQ(cached(), make_manifest(folder));
  EXPECT_NE(cached(), right);
}

TEST_F(ManifestTest, NeedsNoPlaceForWhatItFinds) {
  write_large();
  std::ofstream(folder / "digests") << "a file";
  EXPECT_EQ(cached(), make_manifest(folder));
}

// What changes while it is read may have been read as it was before: it is read again the next time.
TEST_F(ManifestTest, AFileThatChangesMeanwhileIsReadAgain) {
  const fs::path file = write_large();
  fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(1));
  bool changed = false;
  make_manifest(folder, folder / "digests", [&](double) {
    if (!std::exchange(changed, true)) change_byte(file, header_bytes);  // of the chunk that was read
  });
  EXPECT_EQ(cached(), make_manifest(folder));
}

TEST_F(ManifestTest, TellsHowMuchIsDone) {
  write_large();
  for (int round = 0; round < 2; ++round) {  // the second finds all of it
    std::vector<double> told;
    make_manifest(folder, folder / "digests", [&](double fraction) { told.push_back(fraction); });
    ASSERT_FALSE(told.empty());
    EXPECT_TRUE(std::ranges::is_sorted(told));
    EXPECT_GT(told.front(), 0);
    EXPECT_EQ(told.back(), 1);
  }
}

TEST_F(ManifestTest, RefusesWhatIsNoModel) {
  EXPECT_THAT(refusal([&] { make_manifest(folder); }), HasSubstr("cannot open"));
  EXPECT_THAT(refusal([&] { make_manifest(folder / "nowhere.gguf"); }), HasSubstr("cannot open"));
}

std::string objection_to(const ModelManifest& manifest) {
  try {
    check_manifest(manifest);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    return error.what();
  }
  return "none";
}

TEST(Manifest, RefusesNamesThatLeadElsewhere) {
  for (const std::string& name :
       {std::string(), std::string("a/b"), std::string("/a"), std::string("a/"), std::string(".."), std::string("."),
        std::string(".a"), std::string("a\nb"), std::string("a\0b", 3)})
    EXPECT_THAT(objection_to({"", {{name, 0, 0, {}}}}), HasSubstr("a model's file cannot be called")) << name;
  EXPECT_EQ(objection_to({"", {{"a", 0, 0, {}}, {"a", 0, 0, {}}}}), "the file a is listed twice");
  EXPECT_EQ(objection_to({"b", {{"a", 0, 0, {}}}}), "the file b is not among those of the model");
  EXPECT_EQ(objection_to({"a", {{"a", 0, 0, {}}}}), "none");
}

TEST(Manifest, RefusesAnotherNumberOfDigestsThanChunks) {
  const auto with = [](std::uint64_t bytes, std::uint64_t header, std::size_t digests) {
    return objection_to({"", {{"a", bytes, header, std::vector<ChunkDigest>(digests)}}});
  };
  EXPECT_EQ(with(0, 0, 0), "none");
  EXPECT_EQ(with(1, 1, 1), "none");
  EXPECT_EQ(with(chunk_bytes, 0, 1), "none");
  EXPECT_EQ(with(chunk_bytes + 1, 0, 2), "none");
  EXPECT_EQ(with(chunk_bytes + 1, 0, 1), "the file a of 8388609 bytes has 1 digests and a header of 0 bytes");
  EXPECT_NE(with(chunk_bytes, 0, 2), "none");
  EXPECT_NE(with(0, 0, 1), "none");
  EXPECT_NE(with(1, 2, 1), "none") << "a header that is longer than the file";
  EXPECT_NE(with(std::numeric_limits<std::uint64_t>::max(), 0, 0), "none");
}

}  // namespace
}  // namespace motley
