#include "motley/text/text_codec.hpp"

#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"
#include "motley/text/codec_source.hpp"
#include "motley/text/interpreter.hpp"

namespace py = pybind11;

namespace motley {
namespace {

// Chat templates come with the model and are not trusted.
constexpr std::chrono::milliseconds template_time(2000);
constexpr std::size_t template_bytes = std::size_t{512} << 20;

// The codec's Python module, compiled at the first call. Never released: the interpreter is not finalised either.
const py::object& module() {
  static const py::object* loaded = nullptr;
  if (!loaded) {
    const auto builtins = py::module_::import("builtins");
    py::object fresh = py::module_::import("types").attr("ModuleType")("motley_text_codec");
    builtins.attr("exec")(builtins.attr("compile")(codec_source, "codec_source", "exec"), fresh.attr("__dict__"));
    loaded = new py::object(std::move(fresh));
  }
  return *loaded;
}

constexpr const char* shorter =
    "send fewer or shorter messages; if it is so for all, the model folder's chat template is at fault";

// Throws the Error that a Python exception stands for.
[[noreturn]] void rethrow(const py::error_already_set& error) {
  const std::string text = py::str(error.value());
  if (error.matches(PyExc_ImportError))
    throw Error(ErrorCode::environment,
                fmt::format("a Python package is missing or unfit in {}: {}", python_environment().string(), text),
                environment_hint);
  if (error.matches(PyExc_KeyboardInterrupt))
    throw input_error(fmt::format("the chat template took longer than {} s", template_time.count() / 1000), shorter);
  if (error.matches(PyExc_MemoryError))
    throw input_error(fmt::format("the chat template asked for more than {} MiB", template_bytes >> 20), shorter);
  if (error.matches(PyExc_UnicodeError))
    throw input_error("the text is not valid UTF-8: " + text, "encode it as UTF-8 before it is sent");
  if (error.matches(module().attr("InputError"))) throw input_error(text, py::str(error.value().attr("hint")));
  throw Error(ErrorCode::internal, fmt::format("text codec: {}", error.what()));
}

py::str to_python(std::string_view text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
  if (!decoded) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

void check_token(std::int32_t token) {
  if (token < 0) throw input_error(fmt::format("{} is no token id", token), "token ids go from 0 up");
}

class PythonCodec final : public TextCodec, public std::enable_shared_from_this<PythonCodec> {
 public:
  explicit PythonCodec(const std::filesystem::path& folder) : interpreter_(Interpreter::instance()) {
    call([&] {
      py::object codec = module().attr("Codec")(folder.string());
      const PythonLimits limits(template_time, template_bytes);
      codec.attr("load_template")(folder.string());
      codec_ = std::move(codec);
    });
  }

  ~PythonCodec() override { release(std::move(codec_)); }

  // Runs `work` where Python may be touched.
  template <class Work>
  std::invoke_result_t<Work&> call(Work work) {
    return interpreter_->queue().run([&]() -> std::invoke_result_t<Work&> {
      try {
        return work();
      } catch (const py::error_already_set& error) {
        rethrow(error);
      }
    });
  }
  py::object make_stream(bool skip_special_tokens) { return module().attr("Stream")(codec_, skip_special_tokens); }
  void release(py::object object) {
    interpreter_->queue().run([&] { object.release().dec_ref(); });
  }

  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) override {
    return call(
        [&] { return codec_.attr("encode")(to_python(text), add_special_tokens).cast<std::vector<std::int32_t>>(); });
  }

  std::string decode(const std::vector<std::int32_t>& tokens, bool skip_special_tokens) override {
    for (const auto token : tokens) check_token(token);
    return call([&] { return codec_.attr("decode")(tokens, skip_special_tokens).cast<std::string>(); });
  }

  std::string token_text(std::int32_t token) override {
    check_token(token);
    return call(
        [&] { return codec_.attr("token_bytes")(token).attr("decode")("utf-8", "replace").cast<std::string>(); });
  }

  std::vector<std::uint8_t> token_bytes(std::int32_t token) override {
    check_token(token);
    const auto bytes = call([&] { return codec_.attr("token_bytes")(token).cast<std::string>(); });
    return {bytes.begin(), bytes.end()};
  }

  std::int64_t vocabulary_size() override {
    return call([&] { return codec_.attr("vocabulary_size")().cast<std::int64_t>(); });
  }

  bool has_chat_template() override {
    return call([&] { return !codec_.attr("template").is_none(); });
  }

  std::string apply_chat_template(const Value& messages, bool add_generation_prompt) override {
    if (!messages.is_array() || messages.as_array().empty())
      throw input_error("messages: expected a list of at least one",
                        R"(such as [{"role": "user", "content": "hello"}])");
    for (const auto& message : messages.as_array())
      if (!message.is_object())
        throw input_error(fmt::format("messages: expected a list of objects, found {}", message.type_name()),
                          R"(such as [{"role": "user", "content": "hello"}])");
    if (!has_chat_template())
      throw input_error("the model folder holds no chat template",
                        "put its chat_template.jinja there, or send plain text to /v1/completions");
    const std::string json = to_json(messages);
    return call([&] {
      const PythonLimits limits(template_time, template_bytes);
      return codec_.attr("render")(to_python(json), add_generation_prompt).cast<std::string>();
    });
  }

  std::unique_ptr<Stream> stream(bool skip_special_tokens) override;

 private:
  std::shared_ptr<Interpreter> interpreter_;  // one for all codecs
  py::object codec_;
};

class PythonStream final : public TextCodec::Stream {
 public:
  PythonStream(std::shared_ptr<PythonCodec> codec, bool skip_special_tokens) : codec_(std::move(codec)) {
    codec_->call([&] { stream_ = codec_->make_stream(skip_special_tokens); });
  }
  ~PythonStream() override { codec_->release(std::move(stream_)); }

  std::string push(std::int32_t token) override {
    check_token(token);
    return codec_->call([&] { return stream_.attr("push")(token).cast<std::string>(); });
  }
  std::string finish() override {
    return codec_->call([&] { return stream_.attr("finish")().cast<std::string>(); });
  }

 private:
  std::shared_ptr<PythonCodec> codec_;  // the stream decodes through it
  py::object stream_;
};

std::unique_ptr<TextCodec::Stream> PythonCodec::stream(bool skip_special_tokens) {
  return std::make_unique<PythonStream>(shared_from_this(), skip_special_tokens);
}

}  // namespace

std::shared_ptr<TextCodec> TextCodec::open(const std::filesystem::path& model_folder) {
  return std::make_shared<PythonCodec>(model_folder);
}

}  // namespace motley
