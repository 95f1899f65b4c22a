#include "motley/model/quantisation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <system_error>
#include <vector>

namespace motley {
namespace {

// Of ModelOpt, AutoGPTQ and AutoAWQ.
constexpr std::array files_of_tools = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"};

bool is_about_quantisation(std::string_view key) {
  return key.find("quantiz") != std::string_view::npos || key == "compression_config" || key == "quant_config";
}

bool says_nothing(const Value& value) {
  return value.is_null() || value == Value(false) || value == Value(0) || value == Value("none");
}

std::string text_of(const Value& table, std::string_view key) {
  const Value* value = table.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

// As the tool calls itself. MLX and older releases of compressed-tensors leave their names out.
std::string tool_of(std::string_view key, const Value& table) {
  for (const char* name : {"quant_method", "quantization_method", "method"})
    if (const std::string text = text_of(table, name); !text.empty()) return text;
  if (const Value* producer = table.find("producer"); producer != nullptr)
    if (const std::string name = text_of(*producer, "name"); !name.empty()) return name;
  if (table.find("quant_algo") != nullptr || table.find("quantization") != nullptr) return "ModelOpt";
  if (table.find("load_in_4bit") != nullptr || table.find("load_in_8bit") != nullptr) return "bitsandbytes";
  if (key == "compression_config") return "compressed-tensors";
  if (table.find("bits") != nullptr && table.find("group_size") != nullptr) return "MLX";
  return "a method without a name";
}

// "MLX (4 bits, groups of 64)", "modelopt (NVFP4)".
std::string method_of(std::string_view key, const Value& value) {
  if (value.is_string()) return value.as_string();
  if (!value.is_object()) return fmt::format("a method without a name ({} = {})", key, to_json(value));
  const Value* inner = value.find("quantization");
  const Value& figures = inner != nullptr && inner->is_object() ? *inner : value;
  std::vector<std::string> details;
  for (const char* algorithm : {"quant_algo", "format"})
    if (std::string text = text_of(figures, algorithm); !text.empty()) details.push_back(std::move(text));
  if (const Value* bits = figures.find("bits"); bits != nullptr && bits->is_number())
    details.push_back(fmt::format("{} bits", to_json(*bits)));
  if (const Value* group = figures.find("group_size"); group != nullptr && group->is_integer())
    details.push_back(fmt::format("groups of {}", group->as_integer()));
  const std::string tool = tool_of(key, value);
  return details.empty() ? tool : fmt::format("{} ({})", tool, fmt::join(details, ", "));
}

[[noreturn]] void refuse(const Reader& place, std::string_view key, const Value& value) {
  place.fail(fmt::format("a checkpoint quantised by {} is not supported", method_of(key, value)),
             "use the model's original weights, or a GGUF file of it");
}

}  // namespace

bool has_quantised_experts(const Value& config, std::optional<DType> read) {
  const Value* stated = config.find("quantization_config");
  return read && stated != nullptr && text_of(*stated, "quant_method") == name_of(*read);
}

void refuse_quantised(const Reader& config, std::optional<DType> read) {
  const bool known = has_quantised_experts(config.value(), read);
  for (const auto& [key, value] : config.value().as_object())
    if (is_about_quantisation(key) && !says_nothing(value) && !(known && key == "quantization_config"))
      refuse(config.member(key, value), key, value);
}

void refuse_quantised_folder(const std::filesystem::path& folder) {
  for (const char* name : files_of_tools) {
    std::error_code ignored;
    const std::filesystem::path file = folder / name;
    if (!std::filesystem::is_regular_file(file, ignored)) continue;
    const Value document = read_document(file);
    const Value* figures = document.find("quantization");  // ModelOpt's names none where keys and values alone are
    const Value* algorithm = figures != nullptr ? figures->find("quant_algo") : nullptr;
    if (algorithm != nullptr && says_nothing(*algorithm)) continue;
    refuse(Reader(document, file.string()), "", document);
  }
}

}  // namespace motley
