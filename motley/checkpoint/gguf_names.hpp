// Names of tensors: llama.cpp's, as GGUF files have them, and Hugging Face's, as motley's models have them.
#pragma once

#include <string>
#include <string_view>

namespace motley {

// "blk.3.attn_q.weight" <-> "model.layers.3.self_attn.q_proj.weight"; empty where the other side has no such tensor.
std::string gguf_name(std::string_view hugging_face);
std::string hugging_face_name(std::string_view gguf);

}  // namespace motley
