#include "motley/convert/initial_weights.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numbers>
#include <system_error>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/parallel.hpp"
#include "motley/base/random.hpp"
#include "motley/checkpoint/digest.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/checkpoint/safetensors_writer.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t values_of_job = 1 << 20;
constexpr double default_deviation = 0.02;

double deviation_of(const Model& model) {
  const Value* value = model.config.find(family_of(model.arch).deviation);
  return value != nullptr && value->is_number() && value->as_number() > 0 ? value->as_number() : default_deviation;
}

// Normally distributed values of a tensor, each a function of seed, name and place: four come of one block of random
// bits, by the transform of Box and Muller.
class NormalValues {
 public:
  NormalValues(std::uint64_t seed, const std::string& name, double deviation) : deviation_(deviation) {
    const auto digest = sha256_of(std::as_bytes(std::span(name)));
    std::memcpy(name_.data(), digest.data(), sizeof name_);
    std::memcpy(key_.data(), &seed, sizeof key_);
  }

  // Values [first, first + values.size()); `first` is a multiple of 4.
  void fill(std::int64_t first, std::span<float> values) const {
    for (std::size_t i = 0; i < values.size(); i += 4) {
      const std::array<float, 4> four = block((static_cast<std::uint64_t>(first) + i) / 4);
      std::copy_n(four.begin(), std::min<std::size_t>(4, values.size() - i),
                  values.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

 private:
  std::array<float, 4> block(std::uint64_t number) const {
    const auto words = philox4x32(
        {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), name_[0], name_[1]}, key_);
    std::array<float, 4> values{};
    for (std::size_t pair = 0; pair < 4; pair += 2) {
      const double radius = deviation_ * std::sqrt(-2 * std::log((words[pair] + 0.5) * 0x1p-32));
      const double angle = 2 * std::numbers::pi * words[pair + 1] * 0x1p-32;
      values[pair] = static_cast<float>(radius * std::cos(angle));
      values[pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
    return values;
  }

  double deviation_;
  std::array<std::uint32_t, 2> name_{}, key_{};
};

// A part of a tensor.
struct InitialJob {
  std::size_t tensor;
  std::int64_t first, count;
};

void fill(const Model& model, const TensorSpec& tensor, std::int64_t first, std::uint64_t seed,
          std::span<float> values) {
  const bool is_bias = tensor.role.ends_with("bias");
  const std::string_view ones[] = {"delta.norm.weight", delta_step_role, "router.norm", expert_factors_role,
                                   layer_factor_role};
  if (std::ranges::find(ones, tensor.role) != std::end(ones)) {
    std::ranges::fill(values, 1.0F);
    return;
  }
  if (is_bias || tensor.role.ends_with("norm.weight")) {
    std::ranges::fill(values, is_bias || model.arch.norm == Norm::rms1p ? 0.0F : 1.0F);
    return;
  }
  if (tensor.role == delta_decay_role) {  // the logarithm of what lies evenly between these
    constexpr double least = 0.01, most = 16;
    NormalValues(seed, tensor.name, 1).fill(first, values);
    for (float& value : values) {
      const double share = 0.5 * std::erfc(-value / std::numbers::sqrt2);
      value = static_cast<float>(std::log(least + (most - least) * share));
    }
    return;
  }
  NormalValues(seed, tensor.name, deviation_of(model)).fill(first, values);
  if (const auto row = model.arch.pad_token; row && tensor.role == "embedding.weight") {
    const std::int64_t width = tensor.shape[1], end = first + std::ssize(values);
    for (std::int64_t i = std::max(first, *row * width); i < std::min(end, (*row + 1) * width); ++i)
      values[static_cast<std::size_t>(i - first)] = 0;
  }
}

void write_weights(const Model& model, const fs::path& path, const InitialOptions& options) {
  const std::vector<TensorSpec> tensors = stored_tensors(model.arch);
  std::vector<SafetensorsEntry> entries;
  std::vector<InitialJob> jobs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    entries.push_back({tensors[i].name, std::string(dtype_row(options.type).file_name), tensors[i].shape});
    const std::int64_t elements = tensors[i].elements();
    for (std::int64_t first = 0; first < elements; first += values_of_job)
      jobs.push_back({i, first, std::min(values_of_job, elements - first)});
  }
  const SafetensorsLayout layout = safetensors_layout(entries);
  SafetensorsWriter::create(path, layout);
  const SafetensorsWriter writer(path, layout);
  std::mutex mutex;
  std::size_t done = 0;
  in_parallel(jobs.size(), options.threads, [&](std::size_t number) {
    const InitialJob& job = jobs[number];
    std::vector<float> values(static_cast<std::size_t>(job.count));
    fill(model, tensors[job.tensor], job.first, options.seed, values);
    std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(options.type, job.count)));
    quantise_row(options.type, values.data(), job.count, bytes.data());
    writer.write(job.tensor, static_cast<std::uint64_t>(bytes_of(options.type, job.first)), bytes);
    const std::lock_guard lock(mutex);
    if (options.progress) options.progress(static_cast<double>(++done) / static_cast<double>(jobs.size()));
  });
  writer.sync();
}

// config.json says of which type the weights are.
Value typed_config(const Model& model, DType type) {
  Value config = model.config;
  config.set(config.find("dtype") ? "dtype" : "torch_dtype", dtype_row(type).config_name);
  if (config.find("quantization_config") != nullptr) config.set("quantization_config", Value());
  return config;
}

void copy_tokenizer(const fs::path& from, const fs::path& to) {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "tokenizer.model",
        "vocab.json", "merges.txt", "added_tokens.json", "generation_config.json"}) {
    std::error_code ignored;
    if (fs::is_regular_file(from / name, ignored)) fs::copy_file(from / name, to / name);
  }
}

}  // namespace

void write_initial_model(const Model& model, const fs::path& tokenizer, const fs::path& to,
                         const InitialOptions& options) {
  if (std::error_code ignored; fs::exists(fs::symlink_status(to, ignored)))
    throw input_error(fmt::format("{} exists already: a model's weights are not written over", to.string()),
                      "name a folder that does not exist, or remove it");
  const fs::path named = to.has_filename() ? to : to.parent_path();  // "model/" is "model"
  const fs::path partial = named.string() + fmt::format(".{}.partial", ::getpid());
  const auto give_up = [&](const fs::filesystem_error& error) {
    throw Error(ErrorCode::environment, fmt::format("{} cannot be written: {}", to.string(), error.code().message()),
                "check that the folder above exists and is writable, and that the disk has space");
  };
  std::error_code ignored;
  try {
    fs::create_directory(partial);
    write_file(partial / "config.json", to_json(typed_config(model, options.type), 2) + "\n");
    if (!tokenizer.empty()) copy_tokenizer(tokenizer, partial);
    write_weights(model, partial / "model.safetensors", options);
    for (const auto& entry : fs::directory_iterator(partial)) sync_to_disk(entry.path());
    sync_to_disk(partial);
    fs::rename(partial, named);
    sync_folder_of(named);
  } catch (const fs::filesystem_error& error) {
    fs::remove_all(partial, ignored);
    give_up(error);
  } catch (...) {
    fs::remove_all(partial, ignored);
    throw;
  }
}

}  // namespace motley
