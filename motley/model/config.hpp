// config.json, key by key: what the files of families read it with. Defaults are those of each family's configuration
// class in `transformers` 5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/model/architecture.hpp"

namespace motley {

// Caps that no model comes near and under which no product of sizes in model/ can overflow 64 bits.
constexpr double max_layers = 1 << 12;
constexpr double max_heads = 1 << 12;
constexpr double max_head_dim = 1 << 12;
constexpr double max_hidden = 1 << 18;
constexpr double max_ffn = 1 << 21;
constexpr double max_experts = 1 << 12;
constexpr double max_vocabulary = 1 << 24;

// The keys of a config.json, or of a table inside it. A null counts as absent unless a method says otherwise.
class Config {
 public:
  explicit Config(Reader root) : root_(std::move(root)) {
    if (!root_.value().is_object()) root_.expected("a table");
  }

  bool states(std::string_view key) const { return root_.value().find(key) != nullptr; }  // if only as null
  bool has(std::string_view key) const {
    const Value* value = root_.value().find(key);
    return value && !value->is_null();
  }
  // The place of a key for messages; of the table where the key is absent.
  Reader at(std::string_view key) const {
    const Value* value = root_.value().find(key);
    return value ? root_.member(key, *value) : root_;
  }
  Config table(std::string_view key) const { return Config(at(key)); }

  std::int64_t size(std::string_view key, double max) const {
    require(key);
    return binding::read_integer(at(key), {.min = 1, .max = max});
  }
  std::int64_t size(std::string_view key, double max, std::int64_t otherwise) const {
    return has(key) ? size(key, max) : otherwise;
  }
  double number(std::string_view key, const Limits& limits, double otherwise) const {
    return has(key) ? binding::read_number(at(key), limits) : otherwise;
  }
  double number(std::string_view key, const Limits& limits) const {
    require(key);
    return binding::read_number(at(key), limits);
  }
  bool flag(std::string_view key, bool otherwise) const { return has(key) ? binding::read_bool(at(key)) : otherwise; }
  std::string text(std::string_view key, std::string otherwise) const {
    return has(key) ? binding::read_string(at(key)) : otherwise;
  }

 private:
  void require(std::string_view key) const;

  Reader root_;
};

// Throws an input error.
[[noreturn]] void unsupported(const Reader& place, std::string_view what, std::string hint);
// Where it is true.
void refuse_flag(const Config& config, std::string_view key, std::string_view what);

Activation read_activation(const Config& config, std::string_view key, const std::string& otherwise);
// Both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters` (transformers 5) that holds everything.
// `theta` where none is stated. Stretches the context that is given.
Rotary read_rotary(const Config& config, std::int64_t& context, double theta);
// The same of the table `key` alone, which may be absent; for a context that its scaling does not stretch.
Rotary read_rotary_rule(const Config& config, std::string_view key, std::int64_t context, double theta);
// The part of each head that is rotated, its first dimensions: `partial_rotary_factor`, in both spellings, or
// `rotary_dim`. `otherwise`: where neither is stated; none: the family rotates whole heads, and all else is refused.
double read_rotated_share(const Config& config, std::int64_t head_dim, std::optional<double> otherwise);
// Query and key/value heads and their size; none: as many as query heads, hidden / heads. Query heads must be stated
// where there is no default.
void read_heads(const Config& config, Architecture& arch, std::optional<std::int64_t> kv_heads,
                std::optional<std::int64_t> head_dim, std::optional<std::int64_t> heads = {});
// Of which layers the list at `key`, which has one of these words for each, says the `wanted` one. Where it is of
// another length, the error says to remove it to use `otherwise`.
std::vector<bool> read_layers_of(const Config& config, std::string_view key, std::int64_t layers,
                                 const std::vector<std::string>& words, std::string_view wanted,
                                 std::string_view otherwise);
// Positions of a window; 0: a null, which means full attention.
std::int64_t read_window(const Config& config, std::int64_t otherwise);
// Which layers look back only over a window, of families that may have some: by `layer_types`, or all from
// `max_window_layers` on.
void read_windows(const Config& config, Architecture& arch);
// The same of families where all do but each `period`-th, where `layer_types` does not say otherwise. The window is
// `otherwise` where none is stated.
void read_alternate_windows(const Config& config, Architecture& arch, std::int64_t otherwise, std::int64_t period);

// Each layer is of its kind, and each kind is there once.
void set_layers(Architecture& arch, const std::vector<LayerKind>& kinds);

// An absent key has the family's default, a null none.
std::vector<std::int64_t> read_eos(const Config& config, std::int64_t vocabulary,
                                   std::optional<std::int64_t> otherwise);
std::optional<std::int64_t> read_bos(const Config& config, std::int64_t vocabulary,
                                     std::optional<std::int64_t> otherwise);
// As torch.nn.Embedding has it: a negative id counts from the end. It matters for training alone, so an id that is none
// of the tokens is not an error.
std::optional<std::int64_t> read_pad(const Config& config, std::int64_t vocabulary,
                                     std::optional<std::int64_t> otherwise);
// Ids at `eos_token_id`: one, or a list; each below `vocabulary`.
std::vector<std::int64_t> read_eos_tokens(const Reader& place, std::int64_t vocabulary);

}  // namespace motley
