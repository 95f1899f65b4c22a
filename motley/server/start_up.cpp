#include "motley/server/start_up.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {

std::shared_ptr<TextCodec> open_codec(const ServeSettings& settings, std::int64_t vocabulary) {
  try {
    auto codec = TextCodec::open(settings.model_folder);
    if (codec->vocabulary_size() > vocabulary)
      throw input_error(fmt::format("{}: the tokenizer has {} tokens, and the model a vocabulary of {}",
                                    settings.model_folder.string(), codec->vocabulary_size(), vocabulary),
                        "use the tokenizer that came with the model");
    settings.report("text", codec->has_chat_template() ? "tokenizer and chat template" : "tokenizer; no chat template");
    return codec;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::environment) throw;
    settings.report("text", fmt::format("token ids only: {}", with_hint(error)));
    return nullptr;
  }
}

DriverOptions driver_options(const ServeSettings& settings, ServedDeployment& deployment) {
  DriverOptions options;
  options.model_folder = settings.model_folder;
  options.max_queue = settings.max_queue;
  options.prefix_cache = settings.prefix_cache;
  options.replan = deployment.replan();
  options.restart = deployment.restart();
  options.report = settings.report;
  return options;
}

}  // namespace motley
