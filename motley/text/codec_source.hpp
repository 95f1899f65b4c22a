// The Python half of TextCodec: class Codec over `tokenizers` and `jinja2`, class Stream, and the errors it raises.
#pragma once

namespace motley {

extern const char* const codec_source;

}  // namespace motley
