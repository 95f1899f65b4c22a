// The Python half of TextCodec: class Codec over `tokenizers` and `jinja2`, the errors it raises, and open_folder();
// then, run in the same module, open_gguf().
#pragma once

namespace motley {

extern const char* const codec_source;
extern const char* const gguf_source;

}  // namespace motley
