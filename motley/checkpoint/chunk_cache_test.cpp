#include "motley/checkpoint/chunk_cache.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <set>

#include "motley/base/disk_calls_test.hpp"
#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/gguf_writer.hpp"
#include "motley/checkpoint/large_model_test.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

// The code and the message of what `action` throws.
std::pair<ErrorCode, std::string> error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::negative, "none"};
}

std::string contents(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class ChunkCacheTest : public LargeModelTest {
 protected:
  ChunkCacheTest() {
    change_byte(write_large(), chunk_bytes + 5);
    manifest_ = make_manifest(folder);
  }

  std::vector<std::byte> chunk(const ChunkId& id) const {
    return read_chunk(folder, manifest_.files[id.file], id.chunk);
  }
  void put_all(ChunkCache& cache) const {
    for (const ChunkId& id : all_chunks(manifest_)) cache.put(id, chunk(id));
  }

  const fs::path root_ = folder / "cache";
  ModelManifest manifest_;
};

TEST_F(ChunkCacheTest, HoldsWhatWasPut) {
  ChunkCache cache(root_, manifest_);
  EXPECT_EQ(cache.manifest(), manifest_);
  const std::vector<ChunkId> all = all_chunks(manifest_);
  EXPECT_EQ(cache.missing(all), all);
  cache.put({0, 1}, chunk({0, 1}));
  EXPECT_THAT(cache.missing(all), ElementsAre(ChunkId{0, 0}, ChunkId{0, 2}));
  EXPECT_THAT(cache.missing({{0, 2}, {0, 1}}), ElementsAre(ChunkId{0, 2}));
  cache.put({0, 1}, chunk({0, 1}));  // once more does no harm
  put_all(cache);
  EXPECT_TRUE(cache.missing(all).empty());
  EXPECT_EQ(contents(cache.model() / "model.safetensors"), contents(folder / "model.safetensors"));
  EXPECT_EQ(make_manifest(cache.model()), manifest_);
}

TEST_F(ChunkCacheTest, RefusesADamagedChunkAndChangesNothing) {
  ChunkCache cache(root_, manifest_);
  const fs::path file = cache.model() / "model.safetensors";
  const std::string before = contents(file);
  std::vector<std::byte> bytes = chunk({0, 1});
  bytes[17] ^= std::byte{1};
  EXPECT_EQ(error_of([&] {
              cache.put({0, 1}, bytes);
            }),
            std::pair(ErrorCode::peer, std::string("chunk 1 of model.safetensors came damaged")));
  EXPECT_EQ(error_of([&] { cache.put({0, 1}, chunk({0, 0})); }).first, ErrorCode::peer);
  EXPECT_EQ(error_of([&] { cache.put({0, 1}, std::span(bytes).first(100)); }).first, ErrorCode::peer);
  EXPECT_EQ(error_of([&] { cache.put({0, 1}, {}); }).first, ErrorCode::peer);
  EXPECT_EQ(cache.missing({{0, 1}}).size(), 1u);
  EXPECT_EQ(contents(file), before);
  cache.put({0, 1}, chunk({0, 1}));
  EXPECT_TRUE(cache.missing({{0, 1}}).empty());
}

TEST_F(ChunkCacheTest, AnotherProcessFindsWhatIsThere) {
  {
    ChunkCache cache(root_, manifest_);
    cache.put({0, 2}, chunk({0, 2}));
  }
  ChunkCache again(root_, manifest_);
  EXPECT_THAT(again.missing(all_chunks(manifest_)), ElementsAre(ChunkId{0, 0}, ChunkId{0, 1}));
  change_byte(folder / "model.safetensors", 2 * chunk_bytes);
  const ModelManifest other = make_manifest(folder);
  EXPECT_EQ(ChunkCache(root_, other).missing({{0, 2}}).size(), 1u) << "other weights";
  EXPECT_TRUE(again.missing({{0, 2}}).empty());
}

// Whatever a power loss leaves of it, a mark stands for bytes that the disk has.
TEST_F(ChunkCacheTest, TheDiskHasAChunkBeforeItsMark) {
  ChunkCache cache(root_, manifest_);
  const std::vector<std::byte> bytes = chunk({0, 1});
  DiskCalls::all().take();
  cache.put({0, 1}, bytes);
  EXPECT_THAT(DiskCalls::all().take(),
              ElementsAre("write model.safetensors", "sync model.safetensors", "write .model.safetensors.chunks"));
}

class EndedChunkCacheTest : public ChunkCacheTest {
 protected:
  static void in_another_process(const std::function<void()>& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      work();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  void put_and_end_in_order() const {
    in_another_process([&] {
      ChunkCache cache(root_, manifest_);
      put_all(cache);
    });
  }
  void put_and_end_without_order() const {
    in_another_process([&] { put_all(*new ChunkCache(root_, manifest_)); });
  }
  void damage(std::uint32_t chunk) const {
    change_byte(root_ / manifest_.digest() / "model.safetensors", chunk * chunk_bytes + 17);
  }
};

TEST_F(EndedChunkCacheTest, AfterAnEndWithoutOrderDamagedChunksAreMissing) {
  put_and_end_without_order();
  damage(1);
  int alive = 0;
  {
    ChunkCache cache(root_, manifest_, [&] { ++alive; });
    EXPECT_GT(alive, 0);
    EXPECT_EQ(cache.damaged(), 1u);
    EXPECT_THAT(cache.missing(all_chunks(manifest_)), ElementsAre(ChunkId{0, 1}));
    cache.put({0, 1}, chunk({0, 1}));
  }
  const ChunkCache again(root_, manifest_);
  EXPECT_EQ(again.damaged(), 0u);
  EXPECT_TRUE(again.missing(all_chunks(manifest_)).empty());
}

TEST_F(EndedChunkCacheTest, ADamagedChunkStaysMissing) {
  put_and_end_without_order();
  damage(2);
  EXPECT_EQ(ChunkCache(root_, manifest_).damaged(), 1u);
  EXPECT_THAT(ChunkCache(root_, manifest_).missing(all_chunks(manifest_)), ElementsAre(ChunkId{0, 2}));
}

TEST_F(EndedChunkCacheTest, AfterAnOrderlyEndNothingIsRead) {
  put_and_end_in_order();
  int alive = 0;
  const ChunkCache cache(root_, manifest_, [&] { ++alive; });
  EXPECT_EQ(alive, 0);
  EXPECT_TRUE(cache.missing(all_chunks(manifest_)).empty());
}

// It has ended in order only when the last that has it open has.
TEST_F(EndedChunkCacheTest, TheFirstToEndOfTwoLeavesItOpen) {
  in_another_process([&] {
    put_all(*new ChunkCache(root_, manifest_));
    ChunkCache(root_, manifest_);
  });
  damage(0);
  EXPECT_EQ(ChunkCache(root_, manifest_).damaged(), 1u);
}

TEST_F(ChunkCacheTest, OpensWithHolesOnceItsHeadersAreThere) {
  ChunkCache cache(root_, manifest_);
  EXPECT_THROW(Checkpoint{cache.model()}, Error);
  cache.put({0, 0}, chunk({0, 0}));
  const Checkpoint checkpoint(cache.model());
  EXPECT_EQ(checkpoint.find("zeros").tensor.bytes.size(), large_bytes - header_bytes);
}

TEST_F(ChunkCacheTest, OpensAGgufFileByItsName) {
  GgufWriter writer;
  writer.set_text("general.name", "small");
  writer.add_tensor("token_embd.weight", "Q8_0", {2, 32});
  writer.write(folder / "small.gguf",
               [&](std::int64_t, const GgufWriter::Sink& sink) { sink(std::vector<std::byte>(68, std::byte{7})); });
  manifest_ = make_manifest(folder / "small.gguf");
  ChunkCache cache(root_, manifest_);
  put_all(cache);
  EXPECT_EQ(cache.model().filename(), "small.gguf");
  static constexpr std::array<TensorNames, 1> names = {{{"embedding", "model.embed_tokens", "token_embd"}}};
  const Checkpoint checkpoint(cache.model(), [](const Value&) { return TensorNaming{names, 0}; });
  EXPECT_EQ(checkpoint.find("model.embed_tokens.weight").tensor.bytes.size(), 68u);
}

TEST_F(ChunkCacheTest, RefusesWhatIsNoManifestBeforeItMakesAnything) {
  ModelManifest outside = manifest_;
  outside.files[0].name = "../outside";
  EXPECT_EQ(error_of([&] { ChunkCache(root_, outside); }).first, ErrorCode::input);
  EXPECT_FALSE(fs::exists(root_));
}

TEST_F(ChunkCacheTest, SaysWhereItCannotWrite) {
  std::ofstream(root_) << "a file";
  const auto [code, message] = error_of([&] { ChunkCache(root_, manifest_); });
  EXPECT_EQ(code, ErrorCode::environment);
  EXPECT_THAT(message, HasSubstr(root_.string()));
}

// As where the disk is full: no file may grow beyond the first chunk and a bit.
TEST_F(ChunkCacheTest, AChunkThatDoesNotFitOnTheDiskStaysMissing) {
  ChunkCache cache(root_, manifest_);
  const auto before_signal = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = chunk_bytes + chunk_bytes / 4;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto [code, message] = error_of([&] { cache.put({0, 1}, chunk({0, 1})); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, before_signal);
  EXPECT_EQ(code, ErrorCode::environment);
  EXPECT_THAT(message, HasSubstr("cannot write model.safetensors to the cache of weights"));
  EXPECT_EQ(cache.missing({{0, 1}}).size(), 1u);
  EXPECT_EQ(ChunkCache(root_, manifest_).missing({{0, 1}}).size(), 1u);
  cache.put({0, 1}, chunk({0, 1}));
  EXPECT_TRUE(cache.missing({{0, 1}}).empty());
}

TEST_F(ChunkCacheTest, ReadsNoChunkOfAFileThatIsGoneOrShorter) {
  fs::resize_file(folder / "model.safetensors", 2 * chunk_bytes + 1);
  EXPECT_EQ(chunk({0, 1}).size(), chunk_bytes);
  EXPECT_THAT(refusal([&] { chunk({0, 2}); }), HasSubstr("cannot be read any more"));
  fs::remove(folder / "model.safetensors");
  EXPECT_THAT(refusal([&] { chunk({0, 0}); }), HasSubstr("cannot be read any more"));
}

// ---- the room that they take ----

class TrimChunkCachesTest : public ChunkCacheTest {
 protected:
  // Weights that were last used this many hours ago, with a chunk on disk. Returns their digest.
  std::string add(std::uint64_t number, int hours) {
    change_byte(folder / "model.safetensors", 2 * chunk_bytes + number);
    const ModelManifest manifest = make_manifest(folder);
    ChunkCache cache(root_, manifest);
    cache.put({0, 1}, read_chunk(folder, manifest.files[0], 1));
    fs::last_write_time(root_ / manifest.digest(), fs::file_time_type::clock::now() - std::chrono::hours(hours));
    manifests_.push_back(manifest);
    return manifest.digest();
  }
  std::set<std::string> left() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_)) names.insert(entry.path().filename());
    return names;
  }
  std::vector<ModelManifest> manifests_;
};

TEST_F(TrimChunkCachesTest, RemovesTheLeastRecentlyUsedUntilTheRestFits) {
  const std::string recent = add(0, 1), oldest = add(1, 3), old = add(2, 2);
  trim_chunk_caches(root_, 4 * chunk_bytes, "");
  EXPECT_EQ(left(), (std::set{oldest, old, recent}));
  trim_chunk_caches(root_, 2 * chunk_bytes + chunk_bytes / 2, "");
  EXPECT_EQ(left(), (std::set{old, recent}));
  trim_chunk_caches(root_, 0, "");
  EXPECT_EQ(left(), std::set<std::string>());
  trim_chunk_caches(root_ / "nowhere", 0, "");
}

TEST_F(TrimChunkCachesTest, KeepsWhatIsToBeUsed) {
  const std::string oldest = add(0, 3), old = add(1, 2), recent = add(2, 1);
  trim_chunk_caches(root_, 2 * chunk_bytes + chunk_bytes / 2, oldest);
  EXPECT_EQ(left(), (std::set{oldest, recent}));
  trim_chunk_caches(root_, 0, oldest);
  EXPECT_EQ(left(), std::set{oldest});
}

TEST_F(TrimChunkCachesTest, KeepsWhatAProcessHasOpen) {
  const std::string used = add(0, 3), idle = add(1, 2);
  {
    ChunkCache cache(root_, manifests_[0]);
    fs::last_write_time(root_ / used, fs::file_time_type::clock::now() - std::chrono::hours(3));
    trim_chunk_caches(root_, 0, "");
    EXPECT_EQ(left(), std::set{used});
    EXPECT_TRUE(cache.missing({{0, 1}}).empty());
  }
  trim_chunk_caches(root_, 0, "");
  EXPECT_EQ(left(), std::set<std::string>());
}

TEST_F(TrimChunkCachesTest, ToOpenIsToUse) {
  const std::string first = add(0, 3), second = add(1, 2);
  ChunkCache(root_, manifests_[0]);
  trim_chunk_caches(root_, chunk_bytes + chunk_bytes / 2, "");
  EXPECT_EQ(left(), std::set{first});
}

}  // namespace
}  // namespace motley
