#include "motley/text/codec_source.hpp"

namespace motley {

const char* const codec_source = R"py(
import array
import json
import os
import re
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from tokenizers import AddedToken, Tokenizer

MOST_OUTPUT_CHARACTERS = 16 << 20

# Texts come one by one, and threads of the library would take processors from the workers.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

COPY_AGAIN = "copy the file again from where the model came from"
OTHER_TEMPLATE = "take the model's newest chat template, as chat_template.jinja in its folder"


if tuple(int(part) for part in jinja2.__version__.split(".")[:3]) < (3, 1, 6):
    raise ImportError(f"jinja2 {jinja2.__version__} has known holes in its sandbox; 3.1.6 is needed")


def read_json(path, default):
    if not path.exists():
        return default
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}", COPY_AGAIN) from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected an object", COPY_AGAIN)
    return value


# ---- chat templates: the environment of `transformers` ----


class Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks a model's own words for training; here it only wraps them."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("wrap"), [], [], body).set_lineno(line)

    def wrap(self, caller):
        return caller()


class Dict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace may not hold {name!r}")


class Refusal(Exception):
    """A template's own words about messages that it does not take."""


def raise_exception(message):
    raise Refusal(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compile_template(text, source):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["dict"] = Dict()
    environment.globals["namespace"] = Namespace
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{source}: chat template, line {error.lineno}: {error.message}", OTHER_TEMPLATE) from None
    except Exception as error:
        raise InputError(f"{source}: chat template: {error}", OTHER_TEMPLATE) from None


def find_template(folder, config):
    """Text and source of the template, or (None, None). The file of its own beats the configuration."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8"), path
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: {error}", COPY_AGAIN) from None
    path = folder / "tokenizer_config.json"
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    if template is not None and not isinstance(template, str):
        raise InputError(f"{path}: chat_template: expected a string, or named templates of which `default` is one",
                         OTHER_TEMPLATE)
    return template, path


# ---- the codec ----


def byte_alphabet():
    """The printable character that stands for each byte in byte-level vocabularies: printable Latin-1 stands for itself,
    the other bytes, in order, for the characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + i): byte for i, byte in enumerate(others)}}


def flatten_decoder(decoder):
    """The steps of tokenizer.json's decoder in a list."""
    if not decoder:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in flatten_decoder(part)]
    return [decoder]


def open_folder(folder):
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file", "put the model's tokenizer.json into the folder of config.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except BaseException as error:  # a panic of the library is not an Exception
        raise InputError(f"{path}: {error}", COPY_AGAIN) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = read_json(folder / "tokenizer_config.json", {})
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))
    special_tokens, others = read_special_tokens(read_json(folder / "special_tokens_map.json", {}), config)
    make_special(tokenizer, {*special_tokens.values(), *others} - {None})
    codec = Codec(tokenizer, special_tokens)
    codec.template_source = find_template(folder, config)
    return codec


def token_text(value):
    """Of a token as configurations have it; None where it is none."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def read_special_tokens(*sources):
    """The tokens that have names, which templates know, and a list of others. As in `transformers`, a model may give
    names of its own: any key on `_token`, and those of an object `extra_special_tokens`."""
    named, others = {}, []
    for source in sources:
        extra = source.get("extra_special_tokens") or source.get("additional_special_tokens")
        own = [(name, value) for name, value in source.items() if name.endswith("_token")]
        own += extra.items() if isinstance(extra, dict) else []
        named.update((name, token_text(value)) for name, value in own if token_text(value) is not None)
        others += [token_text(value) for value in (extra if isinstance(extra, list) else [])]
    return named, others


def make_special(tokenizer, texts):
    """Those of the vocabulary, so that answers can leave them out, even where tokenizer.json does not say so."""
    added = tokenizer.get_added_tokens_decoder()
    special = {token.content for token in added.values() if token.special}
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in sorted(texts - special)
                                  if text and tokenizer.token_to_id(text) is not None])


class Codec:
    def __init__(self, tokenizer, special_tokens):
        self.tokenizer = tokenizer
        self.special_tokens = special_tokens
        self.template = None
        self.template_source = None, None  # text and where it stands
        self.same = {}  # ids of texts that the vocabulary has twice, and the first ones

        decoder = self.tokenizer.decoder
        self.decoder_steps = flatten_decoder(json.loads(decoder.__getstate__()) if decoder else None)
        self.byte_level = any(step["type"] == "ByteLevel" for step in self.decoder_steps)
        self.byte_fallback = any(step["type"] == "ByteFallback" for step in self.decoder_steps)
        self.alphabet = byte_alphabet()
        self.added = {token: added.content for token, added in self.tokenizer.get_added_tokens_decoder().items()}

    def load_template(self):
        if self.template is None:
            self.template = compile_template(*self.template_source)

    def encode(self, text, add_special_tokens):
        # Other than encode(), this leaves out offsets.
        return self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_placed(self, text):
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [end for _, end in encoding.offsets]

    def facts(self):
        eos = self.special_tokens.get("eos_token")
        return {"vocabulary": self.tokenizer.get_vocab_size(with_added_tokens=False) + len(self.same),
                "eos": None if eos is None else self.tokenizer.token_to_id(eos),
                "template": self.template_source[0] is not None}

    def decode(self, tokens, skip_special_tokens):
        if self.same:
            tokens = [self.same.get(token, token) for token in tokens]
        return self.tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token):
        token = self.same.get(token, token)
        piece = self.tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if token in self.added:
            return self.added[token].encode()
        if self.byte_level:
            if all(character in self.alphabet for character in piece):
                return bytes(self.alphabet[character] for character in piece)
            return piece.encode()
        if self.byte_fallback and (byte := re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece)):
            return bytes([int(byte[1], 16)])
        for step in self.decoder_steps:
            if step["type"] == "Replace" and "String" in step["pattern"]:
                piece = piece.replace(step["pattern"]["String"], step["content"])
            elif step["type"] == "Metaspace":
                piece = piece.replace(step["replacement"], " ")
        return piece.encode()

    def render(self, messages, add_generation_prompt, arguments):
        self.load_template()
        pieces, size = [], 0
        try:
            for piece in self.template.generate({
                **self.special_tokens,
                **arguments,
                "messages": [message_of(message) for message in messages],
                "tools": None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }):
                pieces.append(piece)
                size += len(piece)
                if size > MOST_OUTPUT_CHARACTERS:
                    raise InputError(f"the chat template writes more than {MOST_OUTPUT_CHARACTERS} characters",
                                     "send fewer or shorter messages")
        except Refusal as error:
            raise InputError(f"the chat template refuses the messages: {error}",
                             "most templates need alternating roles: optionally system, then user, assistant, user") from None
        except (InputError, MemoryError):
            raise
        except Exception as error:
            raise InputError(f"the chat template fails: {type(error).__name__}: {error}",
                             "every message needs `role` and `content`; if each has both, " + OTHER_TEMPLATE) from None
        return "".join(pieces)


def message_of(message):
    """As `transformers` gives it to templates: without nulls, and its reasoning by the names that templates know."""
    message = {key: value for key, value in message.items() if value is not None}
    names = [name for name in ("reasoning_content", "thinking", "reasoning") if name in message]
    if not names:
        return message
    reasoning = message[names[0]]
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


# ---- what motley asks ----

codec = None  # of this process


def opened(new):
    global codec
    codec = new
    return [json.dumps(codec.facts()).encode()]


def load_template():
    if codec.template_source[0] is not None:
        codec.load_template()
    return []


def packed(kind, numbers):
    return array.array(kind, numbers).tobytes()


def unpacked(numbers):
    return array.array("i", numbers).tolist()


def encode_placed(text):
    tokens, ends = codec.encode_placed(text.decode())
    return [packed("i", tokens), packed("q", ends)]


METHODS |= {
    b"open_folder": lambda folder: opened(open_folder(os.fsdecode(folder))),
    b"open_gguf": lambda path, keys: opened(open_gguf(os.fsdecode(path), json.loads(keys))),
    b"load_template": load_template,
    b"encode": lambda text, special: [packed("i", codec.encode(text.decode(), special == b"1"))],
    b"encode_placed": encode_placed,
    b"decode": lambda skip, *lists: [codec.decode(unpacked(tokens), skip == b"1").encode() for tokens in lists],
    b"token_bytes": lambda token: [codec.token_bytes(*unpacked(token))],
    b"token_text": lambda token: [codec.token_bytes(*unpacked(token)).decode(errors="replace").encode()],
    b"render": lambda messages, prompt, arguments:
        [codec.render(json.loads(messages), prompt == b"1", json.loads(arguments)).encode()],
}
)py";

}  // namespace motley
