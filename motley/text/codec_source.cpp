#include "motley/text/codec_source.hpp"

namespace motley {

const char* const codec_source = R"py(
import json
import os
import re
import sys
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from tokenizers import Tokenizer

MOST_OUTPUT_CHARACTERS = 16 << 20
MOST_INTEGER_BITS = 4096
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


# How long a thread that wants the interpreter waits before a running template yields it: a part of the time between tokens.
sys.setswitchinterval(0.0005)
# Texts come one by one, and threads of the library would take processors from the workers.
os.environ["TOKENIZERS_PARALLELISM"] = "false"


class InputError(Exception):
    def __init__(self, message, hint):
        super().__init__(message)
        self.hint = hint


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


# ---- chat templates: the environment of `transformers`, with limits ----


class Environment(ImmutableSandboxedEnvironment):
    # A single operation on huge integers cannot be interrupted.
    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context, operator, left, right):
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MOST_INTEGER_BITS:
                raise SecurityError("an integer grows too large")
        return super().call_binop(context, operator, left, right)


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


def raise_exception(message):
    raise jinja2.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compile_template(text, source):
    environment = Environment(
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
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise InputError(f"{path}: chat_template: expected a string or a list of named templates", OTHER_TEMPLATE)
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
    except BaseException as error:  # a panic of the library is no Exception
        raise InputError(f"{path}: {error}", COPY_AGAIN) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = read_json(folder / "tokenizer_config.json", {})
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))
    codec = Codec(tokenizer, read_special_tokens(read_json(folder / "special_tokens_map.json", {}), config))
    codec.template_source = find_template(folder, config)
    return codec


def read_special_tokens(*sources):
    tokens = {}
    for source in sources:
        for name in SPECIAL_TOKENS:
            value = source.get(name)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                tokens[name] = value
    return tokens


class Codec:
    def __init__(self, tokenizer, special_tokens):
        self.tokenizer = tokenizer
        self.special_tokens = special_tokens
        self.template = None
        self.template_source = None, None  # text and where it stands

        decoder = self.tokenizer.decoder
        self.decoder_steps = flatten_decoder(json.loads(decoder.__getstate__()) if decoder else None)
        self.byte_level = any(step["type"] == "ByteLevel" for step in self.decoder_steps)
        self.byte_fallback = any(step["type"] == "ByteFallback" for step in self.decoder_steps)
        self.alphabet = byte_alphabet()
        self.added = {token: added.content for token, added in self.tokenizer.get_added_tokens_decoder().items()}

    def load_template(self):
        text, source = self.template_source
        if text is not None:
            self.template = compile_template(text, source)

    def encode(self, text, add_special_tokens):
        # Other than encode(), the call for batches lets other threads run meanwhile; the fast one leaves out offsets.
        return self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_placed(self, text):
        encoding = self.tokenizer.encode_batch([text], add_special_tokens=False)[0]
        return encoding.ids, [end for _, end in encoding.offsets]

    def eos_token(self):
        token = self.special_tokens.get("eos_token")
        return None if token is None else self.tokenizer.token_to_id(token)

    def decode_all(self, lists, skip_special_tokens):
        # Other than decode_batch(), this keeps the interpreter: taking it back would cost more than so short calls.
        decode = self.tokenizer.decode
        return [decode(tokens, skip_special_tokens=skip_special_tokens) for tokens in lists]

    def vocabulary_size(self):
        return self.tokenizer.get_vocab_size(with_added_tokens=False)

    def token_bytes(self, token):
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

    def render(self, messages_json, add_generation_prompt, arguments_json):
        messages = [{key: value for key, value in message.items() if value is not None}
                    for message in json.loads(messages_json)]
        pieces, size = [], 0
        try:
            for piece in self.template.generate({
                **self.special_tokens,
                **json.loads(arguments_json),
                "messages": messages,
                "tools": None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }):
                pieces.append(piece)
                size += len(piece)
                if size > MOST_OUTPUT_CHARACTERS:
                    raise InputError(f"the chat template writes more than {MOST_OUTPUT_CHARACTERS} characters",
                                     "send fewer or shorter messages")
        except jinja2.TemplateError as error:
            raise InputError(f"the chat template refuses the messages: {error}",
                             "most templates need alternating roles: optionally system, then user, assistant, user") from None
        except (InputError, MemoryError):
            raise
        except Exception as error:
            raise InputError(f"the chat template fails: {type(error).__name__}: {error}",
                             "every message needs `role` and `content`; if each has both, " + OTHER_TEMPLATE) from None
        return "".join(pieces)
)py";

}  // namespace motley
