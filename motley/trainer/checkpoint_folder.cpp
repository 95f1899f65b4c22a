#include "motley/trainer/checkpoint_folder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "motley/base/files.hpp"
#include "motley/checkpoint/digest.hpp"
#include "motley/checkpoint/stored_tensor.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t digest_bytes = std::size_t{64} << 20;
constexpr const char* record_name = "motley.json";
constexpr const char* partial = ".partial";

std::vector<std::string> digests_of(const fs::path& file) {
  const MappedFile mapped(file);
  std::vector<std::string> digests;
  for (std::size_t first = 0; first < mapped.bytes().size(); first += digest_bytes) {
    const auto chunk = mapped.bytes().subspan(first, std::min(digest_bytes, mapped.bytes().size() - first));
    digests.push_back(fmt::format("sha256:{:02x}", fmt::join(sha256_of(chunk), "")));
  }
  return digests;
}

// Configuration and tokenizer: all but weights.
void copy_model_files(const fs::path& model, const fs::path& to, const TrainPlan& plan) {
  for (const auto& entry : fs::directory_iterator(model)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
                         name.ends_with(".bin") || name.ends_with(".gguf") || name == record_name;
    if (!entry.is_regular_file() || weights || name == "config.json") continue;
    fs::copy_file(entry.path(), to / name, fs::copy_options::overwrite_existing);
  }
  Value config = read_document(model / "config.json");
  // As the configuration's writer calls it.
  config.set(config.find("dtype") != nullptr ? "dtype" : "torch_dtype",
             training_of(plan.workload).precision == DType::bf16 ? "bfloat16" : "float32");
  // It may say that a head is tied which the weights have apart (read_model()).
  if (config.find("tie_word_embeddings") != nullptr) config.set("tie_word_embeddings", plan.model.arch.tied_embeddings);
  write_file(to / "config.json", to_json(config, 2) + "\n");
}

void write_index(const fs::path& folder, const std::string& stem, const StateFiles& files, std::size_t first,
                 std::size_t end) {
  if (first == end) return;
  Value weight_map = Value::object();
  std::int64_t total = 0;
  for (std::size_t f = first; f < end; ++f) {
    for (const SafetensorsEntry& entry : files.files[f].entries) weight_map.set(entry.name, files.files[f].name);
    for (const std::uint64_t bytes : safetensors_layout(files.files[f].entries).bytes)
      total += static_cast<std::int64_t>(bytes);
  }
  write_file(
      folder / (stem + ".safetensors.index.json"),
      to_json(Value::object({{"metadata", Value::object({{"total_size", total}})}, {"weight_map", weight_map}}), 1) +
          "\n");
}

}  // namespace

Schema<CheckpointFile> schema_of(Bound<CheckpointFile>) {
  using F = CheckpointFile;
  return Schema<F>("checkpoint file", "A file of tensors.")
      .field("name", &F::name, "In the checkpoint's folder.", {.required = true})
      .field("bytes", &F::bytes, "Length.", {.required = true, .min = 0})
      .field("digests", &F::digests, "SHA-256 of each 64 MiB; the last piece may be shorter.", {.required = true});
}

Schema<CheckpointRecord> schema_of(Bound<CheckpointRecord>) {
  using C = CheckpointRecord;
  return Schema<C>("checkpoint", "What a checkpoint of a training run holds, and how far the run was.")
      .format("motley.checkpoint/1")
      .field("step", &C::step, "Steps that were run.", {.required = true, .min = 0})
      .field("updates", &C::updates, "Steps that changed the weights.", {.required = true, .min = 0})
      .field("sequences", &C::sequences, "Sequences of the data that were taken.", {.required = true, .min = 0})
      .field("seed", &C::seed, "Of the order of the data.", {.always_written = true})
      .field("loss", &C::loss, "Of the last step.", {.always_written = true})
      .field("files", &C::files, "Files of weights and of the optimizer's states.", {.required = true})
      .field("plan", &C::plan, "The training plan by which it came about.", {.required = true});
}

std::string checkpoint_name(std::int64_t step) { return fmt::format("step-{}", step); }

fs::path begin_checkpoint(const fs::path& run, std::int64_t step, const TrainPlan& plan, const fs::path& model) {
  const Training& training = training_of(plan.workload);
  const fs::path folder = run / (checkpoint_name(step) + partial);
  fs::remove_all(folder);
  fs::create_directories(folder);
  try {
    const StateFiles files = state_files(plan.model.arch, training);
    for (const StateFile& file : files.files)
      SafetensorsWriter::create(folder / file.name, safetensors_layout(file.entries));
    write_index(folder, "model", files, 0, files.weight_files);
    write_index(folder, "optimizer", files, files.weight_files, files.files.size());
    copy_model_files(model, folder, plan);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    throw;
  }
  return folder;
}

void commit_checkpoint(const fs::path& folder, CheckpointRecord record) {
  record.files.clear();
  for (const auto& entry : fs::directory_iterator(folder)) {
    sync_to_disk(entry.path());
    if (entry.path().extension() != ".safetensors") continue;
    record.files.push_back(
        {entry.path().filename().string(), static_cast<std::int64_t>(entry.file_size()), digests_of(entry.path())});
  }
  std::ranges::sort(record.files, {}, &CheckpointFile::name);
  write_file(folder / record_name, to_json(write(record), 1) + "\n");
  const fs::path name = folder.parent_path() / folder.stem();
  fs::remove_all(name);
  fs::rename(folder, name);
  sync_folder_of(name);
  write_file(folder.parent_path() / "latest", name.filename().string() + "\n");
}

std::vector<std::int64_t> checkpoints_of(const fs::path& run) {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run, ignored)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view stem = "step-";
    std::int64_t step = 0;
    if (!name.starts_with(stem)) continue;
    const auto [rest, failure] = std::from_chars(name.data() + stem.size(), name.data() + name.size(), step);
    if (failure == std::errc() && rest == name.data() + name.size()) steps.push_back(step);
  }
  std::ranges::sort(steps);
  return steps;
}

CheckpointRecord verify_checkpoint(const fs::path& folder) {
  const fs::path path = folder / record_name;
  const std::string hint = "resume from another checkpoint with --from N, where the run has one";
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    throw input_error(fmt::format("{}: the checkpoint has no {}", folder.string(), record_name), hint);
  CheckpointRecord record = read<CheckpointRecord>(read_document(path), path.string());
  for (const CheckpointFile& file : record.files) {
    if (file.name.empty() || file.name.find('/') != std::string::npos)
      throw input_error(fmt::format("{}: \"{}\" is not the name of a file", path.string(), file.name), hint);
    const fs::path at = folder / file.name;
    const std::uintmax_t bytes = fs::file_size(at, ignored);
    if (ignored) throw input_error(fmt::format("{}: the checkpoint's file is missing", at.string()), hint);
    if (static_cast<std::int64_t>(bytes) != file.bytes)
      throw input_error(fmt::format("{}: {} bytes, and {} lists {}", at.string(), bytes, record_name, file.bytes),
                        hint);
    const std::vector<std::string> digests = digests_of(at);
    for (std::size_t i = 0; i < std::max(digests.size(), file.digests.size()); ++i)
      if (i >= digests.size() || i >= file.digests.size() || digests[i] != file.digests[i])
        throw input_error(fmt::format("{}: damaged between {} and {} MiB: not the digest that {} lists", at.string(),
                                      64 * i, 64 * (i + 1), record_name),
                          hint);
  }
  return record;
}

void prune_checkpoints(const fs::path& run, std::size_t keep) {
  std::vector<std::int64_t> steps = checkpoints_of(run);
  if (steps.size() <= keep) return;
  for (std::size_t i = 1; i < keep; ++i) verify_checkpoint(run / checkpoint_name(steps[steps.size() - 1 - i]));
  for (std::size_t i = 0; i + keep < steps.size(); ++i) fs::remove_all(run / checkpoint_name(steps[i]));
}

}  // namespace motley
