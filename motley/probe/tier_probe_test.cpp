#include "motley/probe/tier_probe.hpp"

#include <gtest/gtest.h>

#include "motley/base/error.hpp"
#include "motley/engine/spill/spill_file.hpp"

namespace motley {
namespace {

TierProbeOptions small(std::filesystem::path folder) {
  return {.folder = std::move(folder), .file_bytes = std::int64_t{16} << 20, .computing_threads = 2};
}

std::string what_fails(const TierProbeOptions& options) {
  try {
    probe_tiers(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment);
    return error.what();
  }
  return "nothing";
}

TEST(TierProbe, MeasuresTheDiskAndCopies) {
  const std::filesystem::path folder = spill_folder();
  const ProbedTiers tiers = probe_tiers(small(folder));
  const auto free = static_cast<double>(std::filesystem::space(folder).available);
  EXPECT_NEAR(static_cast<double>(tiers.disk.capacity_bytes), free, 0.2 * free);
  for (const double rate : {tiers.disk.read_bytes_per_s, tiers.disk.write_bytes_per_s, tiers.disk.both_bytes_per_s,
                            tiers.copy_bytes_per_s}) {
    EXPECT_GT(rate, 1e5);
    EXPECT_LT(rate, 1e12);
  }
  EXPECT_LE(tiers.disk.both_bytes_per_s, tiers.disk.read_bytes_per_s + tiers.disk.write_bytes_per_s);
}

TEST(TierProbe, RefusesADiskThatIsShort) {
  const std::filesystem::path folder = spill_folder();
  TierProbeOptions options = small(folder);
  options.file_bytes = static_cast<std::int64_t>(std::filesystem::space(folder).available / 3 * 2);
  const std::string error = what_fails(options);
  EXPECT_NE(error.find("the disk of " + folder.string() + " has "), std::string::npos) << error;
  EXPECT_NE(error.find("more than half"), std::string::npos) << error;
}

TEST(TierProbe, NamesAFolderThatIsMissing) {
  EXPECT_NE(what_fails(small("/missing/folder")).find("cannot look at the disk of /missing/folder"), std::string::npos);
}

}  // namespace
}  // namespace motley
