#include "motley/text/codec_source.hpp"

namespace motley {

// The tokenizer of a GGUF file, built with the `tokenizers` library; runs in the same module as codec_source. What the
// keys mean is as llama.cpp reads them; `pre_tokenizer` is what `tokenizer.ggml.pre` stands for.
const char* const gguf_source = R"py(
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"

# Of Gemma 4's tokens that files have as ordinary text, the one that ends an answer: a tool is to speak.
GEMMA4_END = "<|tool_response>"

CONVERT_AGAIN = "convert the model again with a current llama.cpp, or serve its Hugging Face folder"

# ---- metadata ----


class GgufKeys:
    """The keys below `tokenizer.` of one file, as the types that they must have."""

    def __init__(self, path, values):
        self.path, self.values = path, values

    def fail(self, what):
        raise InputError(f"{self.path}: {what}", CONVERT_AGAIN)

    def one(self, key, kind, default=None):
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) is not kind:
            self.fail(f"{key}: expected {kind.__name__}, found {type(value).__name__}")
        return value

    def all(self, key, kinds, length=None):
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            self.fail(f"{key}: expected an array, found {type(value).__name__}")
        for place, item in enumerate(value):
            if type(item) not in kinds:
                self.fail(f"{key}[{place}]: expected {kinds[0].__name__}, found {type(item).__name__}")
        if length is not None and len(value) != length:
            self.fail(f"{key} has {len(value)} entries for {length} tokens")
        return value

    def token(self, key, count, default=None):
        value = self.one(key, int, default)
        if value is not None and not 0 <= value < count:
            self.fail(f"{key}: there is no token {value}; the file has {count}")
        return value


# ---- the kinds of tokenizers ----


def stated_merges(keys, kind):
    merges = keys.all("tokenizer.ggml.merges", (str,))
    if merges is None:
        keys.fail(f"tokenizer.ggml.merges is missing: tokenizers of the kind {kind} need it")
    pairs = []
    for place, merge in enumerate(merges):
        cut = merge.find(" ", 1)
        if cut < 0 or cut + 1 == len(merge):
            keys.fail(f"tokenizer.ggml.merges[{place}]: expected two tokens with a space between them, found {merge!r}")
        pairs.append((merge[:cut], merge[cut + 1:]))
    return pairs


def byte_pair_tokenizer(keys, vocabulary):
    rule = keys.values["pre_tokenizer"]
    pairs = stated_merges(keys, "gpt2")
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=rule["whole_words_first"]))
    split = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule["patterns"]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule["begins"]


def merges_of(pieces, scores):
    """Pairs of pieces that make a piece, the best first: SentencePiece merges by score, `tokenizers` by rank. Pairs that
    make the same piece are ranked by their ids."""
    ids = {piece: place for place, piece in enumerate(pieces)}
    merges = []
    for piece, score in zip(pieces, scores):
        pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        pairs = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        merges += [(-score, pair) for pair in sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))]
    return [pair for _, pair in sorted(merges, key=lambda merge: merge[0])]


def sentencepiece_tokenizer(keys, vocabulary, tokens, types):
    scores = keys.all("tokenizer.ggml.scores", (float, int), len(tokens))
    if scores is None:
        keys.fail("tokenizer.ggml.scores is missing: tokenizers of the kind llama need it")
    ordinary = [place for place in vocabulary.values() if types[place] in (NORMAL, UNUSED)]
    merges = merges_of([tokens[place] for place in ordinary], [scores[place] for place in ordinary])
    unknown = keys.token("tokenizer.ggml.unknown_token_id", len(tokens), 0)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", SPACE)
    decode = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if keys.one("tokenizer.ggml.add_space_prefix", bool, True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        decode.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(decode)
    return tokenizer, True


def merged_piece_tokenizer(keys, vocabulary, tokens):
    """Gemma 4's: pieces as SentencePiece has them, merged in the order of a list. A line is one word with its spaces;
    line breaks one after another are one, too."""
    unknown = keys.token("tokenizer.ggml.unknown_token_id", len(tokens))
    tokenizer = Tokenizer(models.BPE(vocabulary, stated_merges(keys, "gemma4"), fuse_unk=True, byte_fallback=True,
                                     unk_token=None if unknown is None else tokens[unknown]))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("\\n+"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def open_gguf(path, values):
    keys = GgufKeys(path, values)
    kind = keys.one("tokenizer.ggml.model", str)
    if kind in (None, "no_vocab"):
        keys.fail(f"tokenizer.ggml.model is {kind or 'missing'}: the file has no tokenizer")
    if kind not in ("gpt2", "llama", "gemma4"):
        raise InputError(f"{path}: tokenizer.ggml.model: tokenizers of the kind {kind!r} are not supported",
                         "use a model with a tokenizer of the kind gpt2, llama or gemma4, or serve its Hugging Face folder")
    tokens = keys.all("tokenizer.ggml.tokens", (str,))
    if not tokens:
        keys.fail("tokenizer.ggml.tokens is missing or empty")
    count = len(tokens)
    tokens = [token or f"[EMPTY_{place}]" for place, token in enumerate(tokens)]
    types = keys.all("tokenizer.ggml.token_type", (int,), count) or [NORMAL] * count
    vocabulary = {}  # of a text that is there twice, the first place
    same = {place: first for place, token in enumerate(tokens) if (first := vocabulary.setdefault(token, place)) != place}
    special = {name: keys.token(f"tokenizer.ggml.{key}_token_id", count, default if kind == "llama" else None)
               for name, key, default in (("bos_token", "bos", 1), ("eos_token", "eos", 2), ("unk_token", "unknown", 0),
                                          ("pad_token", "padding", None), ("sep_token", "seperator", None))}
    try:
        if kind == "gpt2":
            tokenizer, begin = byte_pair_tokenizer(keys, vocabulary)
        elif kind == "gemma4":
            tokenizer, begin = merged_piece_tokenizer(keys, vocabulary, tokens), True
            types = [CONTROL if token == GEMMA4_END else given for token, given in zip(tokens, types)]
        else:
            tokenizer, begin = sentencepiece_tokenizer(keys, vocabulary, tokens, types)
        add_tokens(tokenizer, keys, vocabulary, types, special, same)
        begin = keys.one("tokenizer.ggml.add_bos_token", bool, begin) or kind == "gemma4"  # whose first files deny it
        add_ends(tokenizer, keys, tokens, special, begin)
    except InputError:
        raise
    except BaseException as error:  # a panic of the library is not an Exception
        keys.fail(f"the tokenizer cannot be built: {error}")
    codec = Codec(tokenizer, {name: tokens[token] for name, token in special.items() if token is not None})
    codec.same = same
    codec.template_source = keys.one("tokenizer.chat_template", str), path
    return codec


def add_tokens(tokenizer, keys, vocabulary, types, special, same):
    """Tokens that are recognised in the text before anything else is done with it."""
    ends = [keys.token(f"tokenizer.ggml.{key}_token_id", len(types)) for key in ("eot", "eom")]
    named = {same.get(place, place) for place in (*special.values(), *ends)}
    control = [token for token, place in vocabulary.items() if types[place] in (CONTROL, UNKNOWN) or place in named]
    defined = [token for token, place in vocabulary.items() if types[place] == USER_DEFINED and place not in named]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in defined])


def add_ends(tokenizer, keys, tokens, special, begin):
    first = special["bos_token"] if begin else None
    last = special["eos_token"] if keys.one("tokenizer.ggml.add_eos_token", bool, False) else None
    around = [(tokens[place], place) for place in (first, last) if place is not None]
    if not around:
        return
    name = lambda place: [] if place is None else [tokens[place]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*name(first), "$A", *name(last)], special_tokens=around)
)py";

}  // namespace motley
