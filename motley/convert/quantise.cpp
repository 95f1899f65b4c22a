#include "motley/convert/quantise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

// A row of one of a tensor's specs.
struct RowOf {
  std::size_t spec = 0;
  std::int64_t row = 0;
};

// A tensor of the new file: one of the model's, those of all experts one behind the other, or several that such files
// hold as one.
struct NewTensor {
  std::vector<TensorSpec> specs;
  std::string name;
  DType type;
  std::vector<RowOf> rows = {};            // in the file's order; empty: as they are, spec after spec
  std::vector<std::int64_t> columns = {};  // alike
  float added = 0;                         // to each value
  bool minus_exp = false;                  // of each value is written
  std::int64_t row_count() const {
    std::int64_t count = 0;
    for (const TensorSpec& spec : specs) count += spec.shape.front();
    return count;
  }
  std::int64_t elements() const { return row_count() * specs.front().elements() / specs.front().shape.front(); }
  RowOf row_at(std::int64_t place) const {
    const std::int64_t each = specs.front().shape.front();
    return rows.empty() ? RowOf{static_cast<std::size_t>(place / each), place % each}
                        : rows[static_cast<std::size_t>(place)];
  }
  std::vector<std::int64_t> shape() const {
    std::vector<std::int64_t> shape = specs.front().shape;
    if (!specs.front().stacked_name.empty())
      shape.insert(shape.begin(), std::ssize(specs));
    else
      shape.front() = row_count();
    if (shape.front() == 1 && shape.size() == 2) shape.erase(shape.begin());
    return shape;
  }
};

std::string file_name_of(DType type) { return std::string(dtype_row(type).file_name); }

// In Hugging Face's order, the row that stands at this place of a tensor whose rotated pairs lie side by side.
std::int64_t paired_row(std::int64_t place, std::int64_t head_rows) {
  const std::int64_t inside = place % head_rows;
  return place - inside + inside % 2 * (head_rows / 2) + inside / 2;
}

// Of `size` rows or columns of a delta net's value heads, in a file where these are tiled: which stands at each place.
std::vector<std::int64_t> tiled_places(const DeltaNet& delta, std::int64_t size) {
  const std::int64_t each = size / delta.value_heads;
  std::vector<std::int64_t> places;
  for (std::int64_t place = 0; place < size; ++place) {
    const std::int64_t head = place / each;
    places.push_back((head % delta.key_heads * delta.values_of_key() + head / delta.key_heads) * each + place % each);
  }
  return places;
}

// The order of a file where it is another than that of the specs.
void set_order(const Architecture& arch, const PackedNames* packed, bool in_pairs, NewTensor& tensor) {
  const TensorSpec& first = tensor.specs.front();
  const DeltaNet& delta = arch.kinds[first.kind].delta;
  const bool tiles = family_of(arch).gguf->tiled_values && !delta.tiled && delta && delta.values_of_key() > 1;
  if (tiles && first.cut == TensorCut::delta_values_in) tensor.columns = tiled_places(delta, first.shape[1]);
  if (packed != nullptr && packed->by_key_heads) {
    for (std::int64_t head = 0; head < delta.key_heads; ++head)
      for (std::size_t spec = 0; spec < tensor.specs.size(); ++spec) {
        const std::int64_t rows = tensor.specs[spec].shape.front() / delta.key_heads;
        for (std::int64_t row = 0; row < rows; ++row) tensor.rows.push_back({spec, head * rows + row});
      }
    return;
  }
  const bool tiled = tiles && std::ranges::count(tensor.specs, TensorCut::delta_values, &TensorSpec::cut) > 0;
  if (!in_pairs && !tiled && packed == nullptr) return;
  for (std::size_t spec = 0; spec < tensor.specs.size(); ++spec) {
    const std::int64_t rows = tensor.specs[spec].shape.front();
    const std::vector<std::int64_t> places = tiled && tensor.specs[spec].cut == TensorCut::delta_values
                                                 ? tiled_places(delta, rows)
                                                 : std::vector<std::int64_t>();
    for (std::int64_t place = 0; place < rows; ++place)
      tensor.rows.push_back({spec, !places.empty() ? places[static_cast<std::size_t>(place)]
                                   : in_pairs      ? paired_row(place, arch.kinds[first.kind].head_dim)
                                                   : place});
  }
}

std::vector<NewTensor> new_tensors(const Model& model, DType type) {
  const Architecture& arch = model.arch;
  const Family& family = family_of(arch);
  std::vector<NewTensor> tensors;
  std::vector<const PackedNames*> packed;
  std::map<std::string, std::size_t> places;  // of those in `tensors`
  for (const TensorSpec& spec : part_tensors(arch, whole_model(arch))) {
    const auto place = packed_place(family.gguf->packed, spec.name, spec.shape, 0, key_head_rows(arch));
    const std::string name = place ? place->name : gguf_name(family.tensors, spec.name);
    if ((place || !spec.stacked_name.empty()) && places.contains(name)) {
      tensors[places.at(name)].specs.push_back(spec);
      continue;
    }
    places.emplace(name, tensors.size());
    packed.push_back(place ? place->packed : nullptr);
    const TensorNames* names = names_of(family.tensors, name);
    tensors.push_back({.specs = {spec},
                       .name = name,
                       .type = spec.may_be_quantised() ? fitting(type, spec.shape[1]) : DType::fp32,
                       .added = names != nullptr && names->one_more ? 1.0F : 0.0F,
                       .minus_exp = names != nullptr && names->minus_exp});
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    set_order(arch, packed[i], has_paired_rows(family.tensors, tensors[i].name), tensors[i]);
  return tensors;
}

void write_rows(const Checkpoint& checkpoint, const NewTensor& tensor, int threads, const GgufWriter::Sink& sink) {
  std::vector<StoredRows> sources;
  for (const TensorSpec& spec : tensor.specs) sources.emplace_back(checkpoint, spec.name, spec.shape);
  const std::int64_t count = tensor.row_count(), width = sources.front().width();
  const bool as_they_are = tensor.added == 0 && !tensor.minus_exp && tensor.columns.empty();
  const auto row_bytes = static_cast<std::size_t>(bytes_of(tensor.type, width));
  const std::int64_t at_once = std::max<std::int64_t>(1, values_at_once / width);
  std::vector<std::byte> made;
  for (std::int64_t first = 0; first < count; first += at_once) {
    const auto part = static_cast<std::size_t>(std::min(at_once, count - first));
    made.resize(part * row_bytes);
    const std::size_t jobs = std::min<std::size_t>(part, 64);
    in_parallel(jobs, threads, [&](std::size_t job) {
      std::vector<float> values(static_cast<std::size_t>(width)), ordered(tensor.columns.size());
      for (std::size_t i = part * job / jobs; i < part * (job + 1) / jobs; ++i) {
        const RowOf from = tensor.row_at(first + static_cast<std::int64_t>(i));
        const StoredRows& rows = sources[from.spec];
        if (rows.type() == tensor.type && as_they_are && rows.unchanged()) {
          rows.copy(from.row, 0, width, made.data() + i * row_bytes);
          continue;
        }
        rows.values(from.row, 0, width, values.data());
        for (float& value : values) value = tensor.minus_exp ? -std::exp(value) : value + tensor.added;
        for (std::size_t column = 0; column < ordered.size(); ++column)
          ordered[column] = values[static_cast<std::size_t>(tensor.columns[column])];
        quantise_row(tensor.type, (ordered.empty() ? values : ordered).data(), width, made.data() + i * row_bytes);
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
    writer.add_tensor(tensor.name, file_name_of(tensor.type), tensor.shape());
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
    write_rows(checkpoint, tensor, options.threads, sink);
    done += tensor.elements();
  });
  return result;
}

}  // namespace motley
