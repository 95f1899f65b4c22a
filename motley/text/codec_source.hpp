// The Python half of TextCodec. process_source talks with motley and runs first; then, in the same module, codec_source
// (class Codec over `tokenizers` and `jinja2`, and open_folder()) and gguf_source (open_gguf()).
#pragma once

namespace motley {

extern const char* const process_source;
extern const char* const codec_source;
extern const char* const gguf_source;

}  // namespace motley
