#include "motley/convert/quantise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "motley/base/parallel.hpp"
#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/checkpoint/stored_rows.hpp"
#include "motley/convert/gguf_keys.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/model.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

constexpr std::int64_t values_at_once = 1 << 22;  // quantised together, over the threads

// Takes over the keys of a GGUF file that begin so, but for its architecture's.
void copy_keys(const Value& metadata, std::string_view prefix, GgufWriter& writer) {
  for (const auto& [key, value] : metadata.as_object()) {
    if (!key.starts_with(prefix)) continue;
    if (value.is_string()) writer.set_text(key, value.as_string());
    if (value.is_bool()) writer.set_bool(key, value.as_bool());
    if (value.is_integer()) writer.set_u32(key, static_cast<std::uint32_t>(value.as_integer()));
    if (value.is_number() && !value.is_integer()) writer.set_f32(key, static_cast<float>(value.as_number()));
    if (!value.is_array()) continue;
    std::vector<std::string> texts;
    std::vector<std::int32_t> integers;
    std::vector<float> numbers;
    for (const Value& item : value.as_array()) {
      if (item.is_string()) texts.push_back(item.as_string());
      if (item.is_integer()) integers.push_back(static_cast<std::int32_t>(item.as_integer()));
      if (item.is_number()) numbers.push_back(static_cast<float>(item.as_number()));
    }
    if (!texts.empty())
      writer.set_texts(key, texts);
    else if (integers.size() == numbers.size())
      writer.set_i32s(key, integers);
    else
      writer.set_f32s(key, numbers);
  }
}

// A tensor of the new file: one of the model's, or those of all experts one behind the other.
struct NewTensor {
  std::vector<TensorSpec> specs;
  std::string name;
  DType type;
  std::int64_t head_rows = 0;  // rows of a head whose pairs are put side by side; 0: rows stay in order
  float added = 0;             // to each value
  std::int64_t elements() const { return std::ssize(specs) * specs.front().elements(); }
};

std::string file_name_of(DType type) { return std::string(dtype_row(type).file_name); }

std::vector<NewTensor> new_tensors(const Model& model, DType type) {
  const Architecture& arch = model.arch;
  const std::span<const TensorNames> names = family_of(arch).tensors;
  std::vector<NewTensor> tensors;
  std::map<std::string, std::size_t> places;  // of those in `tensors`
  for (const TensorSpec& spec : part_tensors(arch, whole_model(arch))) {
    const std::string name = gguf_name(names, spec.name);
    if (!spec.stacked_name.empty() && places.contains(name)) {
      tensors[places.at(name)].specs.push_back(spec);
      continue;
    }
    places.emplace(name, tensors.size());
    tensors.push_back({{spec},
                       name,
                       spec.may_be_quantised() ? fitting(type, spec.shape[1]) : DType::fp32,
                       has_paired_rows(names, name) ? arch.head_dim : 0,
                       names_of(names, name)->one_more ? 1.0F : 0.0F});
  }
  return tensors;
}

// In Hugging Face's order, the row that stands at this place of the file.
std::int64_t row_at(std::int64_t place, std::int64_t head_rows) {
  if (head_rows == 0) return place;
  const std::int64_t inside = place % head_rows;
  return place - inside + inside % 2 * (head_rows / 2) + inside / 2;
}

void write_rows(const StoredRows& rows, const NewTensor& tensor, int threads, const GgufWriter::Sink& sink) {
  const std::int64_t count = tensor.specs.front().shape.front(), width = rows.width();
  const auto row_bytes = static_cast<std::size_t>(bytes_of(tensor.type, width));
  const std::int64_t at_once = std::max<std::int64_t>(1, values_at_once / width);
  std::vector<std::byte> made;
  for (std::int64_t first = 0; first < count; first += at_once) {
    const auto part = static_cast<std::size_t>(std::min(at_once, count - first));
    made.resize(part * row_bytes);
    const std::size_t jobs = std::min<std::size_t>(part, 64);
    in_parallel(jobs, threads, [&](std::size_t job) {
      std::vector<float> values(static_cast<std::size_t>(width));
      for (std::size_t i = part * job / jobs; i < part * (job + 1) / jobs; ++i) {
        const std::int64_t row = row_at(first + static_cast<std::int64_t>(i), tensor.head_rows);
        if (rows.type() == tensor.type && tensor.added == 0) {
          rows.copy(row, 0, width, made.data() + i * row_bytes);
        } else {
          rows.values(row, 0, width, values.data());
          for (float& value : values) value += tensor.added;
          quantise_row(tensor.type, values.data(), width, made.data() + i * row_bytes);
        }
      }
    });
    sink(made);
  }
}

}  // namespace

Quantised quantise_model(const std::string& model_path, const std::filesystem::path& to,
                         const QuantiseOptions& options) {
  const Model model = read_model(model_path);
  GgufWriter writer;
  write_architecture(model, options.type, writer);
  const Checkpoint checkpoint(model_path, tensor_naming);
  if (is_gguf(model_path))
    copy_keys(open_gguf(model_path).front()->metadata(), "tokenizer.", writer);
  else
    write_tokenizer(model_path, model, writer);

  const std::vector<NewTensor> tensors = new_tensors(model, options.type);
  Quantised result;
  std::int64_t weights = 0;
  for (const NewTensor& tensor : tensors) {
    for (const TensorSpec& spec : tensor.specs)
      StoredRows(checkpoint, spec.name, spec.shape);  // refused before a byte is written
    std::vector<std::int64_t> shape = tensor.specs.front().shape;
    if (!tensor.specs.front().stacked_name.empty()) shape.insert(shape.begin(), std::ssize(tensor.specs));
    writer.add_tensor(tensor.name, file_name_of(tensor.type), shape);
    result.bytes += bytes_of(tensor.type, tensor.elements());
    weights += tensor.elements();
  }
  result.bits_per_weight = 8 * static_cast<double>(result.bytes) / static_cast<double>(weights);
  const std::vector<float> factors = frequency_factors(model.arch);
  if (!factors.empty()) writer.add_tensor("rope_freqs.weight", "F32", {static_cast<std::int64_t>(factors.size())});

  std::int64_t done = 0;
  writer.write(to, [&](std::int64_t index, const GgufWriter::Sink& sink) {
    if (index == std::ssize(tensors)) return sink(std::as_bytes(std::span(factors)));
    const NewTensor& tensor = tensors[static_cast<std::size_t>(index)];
    if (options.progress) options.progress(static_cast<double>(done) / static_cast<double>(weights), tensor.name);
    for (const TensorSpec& spec : tensor.specs)
      write_rows(StoredRows(checkpoint, spec.name, spec.shape), tensor, options.threads, sink);
    done += tensor.elements();
  });
  return result;
}

}  // namespace motley
