#include "motley/text/text_codec.hpp"

#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <mutex>
#include <type_traits>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"
#include "motley/checkpoint/gguf.hpp"
#include "motley/text/codec_source.hpp"
#include "motley/text/interpreter.hpp"

namespace py = pybind11;

namespace motley {
namespace {

// Chat templates come with the model and are not trusted.
constexpr std::chrono::milliseconds template_time(2000);
constexpr std::size_t template_bytes = std::size_t{512} << 20;

// The codec's Python module. Never released: the interpreter is not finalised either.
const py::object* codec_module = nullptr;

constexpr const char* shorter =
    "send fewer or shorter messages; if all messages fail, replace the model's chat template";

// Throws the Error that a Python exception stands for.
[[noreturn]] void rethrow(const py::error_already_set& error) {
  const std::string text = py::str(error.value());
  if (error.matches(PyExc_ImportError))
    throw Error(ErrorCode::environment,
                fmt::format("a Python package is missing or has a wrong version in {}: {}",
                            python_environment().string(), text),
                environment_hint);
  if (error.matches(PyExc_KeyboardInterrupt))
    throw input_error(fmt::format("the chat template took longer than {} s", template_time.count() / 1000), shorter);
  if (error.matches(PyExc_MemoryError))
    throw input_error(fmt::format("the chat template asked for more than {} MiB", template_bytes >> 20), shorter);
  if (error.matches(PyExc_UnicodeError))
    throw input_error("the text is not valid UTF-8: " + text, "encode it as UTF-8 before it is sent");
  if (codec_module && error.matches(codec_module->attr("InputError")))
    throw input_error(text, py::str(error.value().attr("hint")));
  throw Error(ErrorCode::internal, fmt::format("text codec: {}", error.what()));
}

// Runs `work` where Python may be used.
template <class Work>
std::invoke_result_t<Work&> in_python(Work work) {
  const PythonLock lock;
  try {
    return work();
  } catch (const py::error_already_set& error) {
    rethrow(error);
  }
}

// Under a mutex, as other threads may run during imports.
void load_module() {
  static std::mutex loading;
  const std::lock_guard lock(loading);
  if (codec_module) return;
  in_python([] {
    const auto builtins = py::module_::import("builtins");
    py::object fresh = py::module_::import("types").attr("ModuleType")("motley_text_codec");
    for (const auto& [source, name] : {std::pair(codec_source, "codec_source"), std::pair(gguf_source, "gguf_source")})
      builtins.attr("exec")(builtins.attr("compile")(source, name, "exec"), fresh.attr("__dict__"));
    codec_module = new py::object(std::move(fresh));
  });
}

py::str to_python(std::string_view text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
  if (!decoded) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

py::object python_value(const Value& value) {
  if (value.is_string()) return to_python(std::string_view(value.as_string()));
  if (value.is_bool()) return py::bool_(value.as_bool());
  if (value.is_integer()) return py::int_(value.as_integer());
  if (value.is_number()) return py::float_(value.as_number());
  if (!value.is_array()) return py::none();
  py::list list(value.as_array().size());
  std::size_t place = 0;
  for (const Value& item : value.as_array()) list[place++] = python_value(item);
  return list;
}

// Of a GGUF file's metadata.
py::dict tokenizer_keys(const Value& metadata) {
  py::dict keys;
  for (const auto& [key, value] : metadata.as_object())
    if (key.starts_with("tokenizer.")) keys[py::str(key)] = python_value(value);
  return keys;
}

void check_token(std::int32_t token) {
  if (token < 0) throw input_error(fmt::format("{} is not a token id", token), "use token ids of at least 0");
}

class PythonCodec final : public TextCodec {
 public:
  explicit PythonCodec(const std::filesystem::path& model) {
    load_module();
    const bool gguf = is_gguf(model);
    const Value metadata = gguf ? GgufFile(model).metadata() : Value();
    in_python([&] {
      py::object codec = gguf ? codec_module->attr("open_gguf")(model.string(), tokenizer_keys(metadata))
                              : codec_module->attr("open_folder")(model.string());
      const PythonLimits limits(template_time, template_bytes);
      codec.attr("load_template")();
      codec_ = std::move(codec);
    });
  }

  ~PythonCodec() override {
    const PythonLock lock;
    codec_.release().dec_ref();
  }

  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) override {
    return in_python(
        [&] { return codec_.attr("encode")(to_python(text), add_special_tokens).cast<std::vector<std::int32_t>>(); });
  }

  Placed encode_placed(std::string_view text) override {
    return in_python([&] {
      const py::tuple placed = codec_.attr("encode_placed")(to_python(text));
      return Placed{placed[0].cast<std::vector<std::int32_t>>(), placed[1].cast<std::vector<std::int64_t>>()};
    });
  }

  std::vector<std::string> decode_all(const std::vector<std::vector<std::int32_t>>& lists,
                                      bool skip_special_tokens) override {
    for (const auto& tokens : lists)
      for (const auto token : tokens) check_token(token);
    return in_python(
        [&] { return codec_.attr("decode_all")(lists, skip_special_tokens).cast<std::vector<std::string>>(); });
  }

  std::string token_text(std::int32_t token) override {
    check_token(token);
    return in_python(
        [&] { return codec_.attr("token_bytes")(token).attr("decode")("utf-8", "replace").cast<std::string>(); });
  }

  std::vector<std::uint8_t> token_bytes(std::int32_t token) override {
    check_token(token);
    const auto bytes = in_python([&] { return codec_.attr("token_bytes")(token).cast<std::string>(); });
    return {bytes.begin(), bytes.end()};
  }

  std::int64_t vocabulary_size() override {
    return in_python([&] { return codec_.attr("vocabulary_size")().cast<std::int64_t>(); });
  }

  std::optional<std::int32_t> eos_token() override {
    return in_python([&] { return codec_.attr("eos_token")().cast<std::optional<std::int32_t>>(); });
  }

  bool has_chat_template() override {
    return in_python([&] { return !codec_.attr("template").is_none(); });
  }

  std::string apply_chat_template(const Value& messages, bool add_generation_prompt, const Value& arguments) override {
    if (!messages.is_array() || messages.as_array().empty())
      throw input_error("messages: expected a list of at least one",
                        R"(such as [{"role": "user", "content": "hello"}])");
    for (const auto& message : messages.as_array())
      if (!message.is_object())
        throw input_error(fmt::format("messages: expected a list of objects, found {}", message.type_name()),
                          R"(such as [{"role": "user", "content": "hello"}])");
    if (!has_chat_template())
      throw input_error("the model has no chat template",
                        "add chat_template.jinja to its folder, or send plain text to /v1/completions");
    const std::string json = to_json(messages), arguments_json = to_json(arguments);
    return in_python([&] {
      const PythonLimits limits(template_time, template_bytes);
      return codec_.attr("render")(to_python(json), add_generation_prompt, to_python(arguments_json))
          .cast<std::string>();
    });
  }

 private:
  py::object codec_;
};

}  // namespace

std::shared_ptr<TextCodec> TextCodec::open(const std::filesystem::path& model) {
  return std::make_shared<PythonCodec>(model);
}

}  // namespace motley
