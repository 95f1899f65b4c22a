"""Changes what GGUF files say of their tokenizers at random, and has the Python half of TextCodec make a tokenizer of it, in one process:
each is made, or refused as what came with a model is.

    tests/fuzz/gguf_tokenizer.py COUNT [SEED]
"""

import copy
import json
import random
import re
import sys
from pathlib import Path

import gguf

ROOT = Path(__file__).resolve().parents[2]
RULES = {"patterns": [r"\p{N}{1,3}", r"[^\r\n\p{L}\p{N}]?\p{L}+|\s+"], "whole_words_first": True, "begins": True}
MOST_TOKENS = 400  # of a seed, so that one is made in a millisecond
ODD = [None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 63, 0.5, -1e300, "", "a", "\u0000", "\u2581", "<0x41>", "a b", " a", "a ", "\ud7ff", "\U0001f600",
       "</s>" * 50, [], [[]], ["a"], [0], {}, "gpt2", "llama", "gemma4"]


def python_half():
    """What the process runs, without its loop: `answer` and all that it calls."""
    sources = {}
    for name in ("process", "codec", "gguf"):
        text = (ROOT / f"motley/text/{name}_source.cpp").read_text()
        sources[name] = "".join(re.findall(r'R"py\((.*?)\)py"', text, re.DOTALL))
    scope = {}
    exec(sources["process"].split("\ntry:\n    serve(connection)")[0], scope)
    scope["load"](sources["codec"], sources["gguf"])
    return scope["answer"]


def value_of(field):
    return field.contents()


def seeds():
    for path in sorted((ROOT / "tests/data/text/gguf").glob("*.gguf")):
        fields = gguf.GGUFReader(path).fields
        keys = {name: value_of(field) for name, field in fields.items() if name.startswith("tokenizer.")}
        for name, value in keys.items():
            if isinstance(value, list):
                keys[name] = value[:MOST_TOKENS]
        known = set(keys["tokenizer.ggml.tokens"])
        if merges := keys.get("tokenizer.ggml.merges"):
            keys["tokenizer.ggml.merges"] = [merge for merge in merges
                                             if {*(parts := merge.split(" ", 1)), "".join(parts)} <= known]  # fmt: skip
        keys["pre_tokenizer"] = RULES
        yield keys
        if "tokenizer.ggml.merges" in keys:
            yield keys | {"tokenizer.ggml.model": "gemma4"}


def odd(source):
    return copy.deepcopy(source.choice(ODD))


def changed(keys, source):
    keys = {name: list(value) if isinstance(value, list) else value for name, value in keys.items()}
    for _ in range(source.choice((1, 1, 2, 5))):
        name = source.choice([name for name in keys if name != "pre_tokenizer"])
        value, kind = keys[name], source.randrange(6)
        if kind == 0:
            del keys[name]
        elif kind == 1:
            keys[name] = odd(source)
        elif isinstance(value, list) and value:
            place = source.randrange(len(value))
            if kind == 2:
                value[place] = odd(source)
            elif kind == 3:
                value[place] = source.choice(value)
            elif kind == 4:
                del value[place:source.choice((place + 1, len(value)))]
            else:
                value.insert(place, source.choice(value))
        elif isinstance(value, int):
            keys[name] = source.choice((value + 1, -value, source.randrange(-2, 2 * MOST_TOKENS)))
        elif isinstance(value, str) and value:
            place = source.randrange(len(value))
            keys[name] = value[:place] + str(odd(source)) + value[place + source.randrange(3):]
    return keys


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    answer, source, whole = python_half(), random.Random(seed), list(seeds())
    made = 0
    for keys in whole:
        assert answer(b"open_gguf", b"seed.gguf", json.dumps(keys).encode())[0] == b"", "a seed is refused"
    for _ in range(count):
        keys = json.dumps(changed(source.choice(whole), source))
        kind, *rest = answer(b"open_gguf", b"changed.gguf", keys.encode())
        if kind == b"":
            made += 1
            kind, *rest = answer(b"encode", b"a tale, 12 \xc3\xa9</s>", b"1")
            if kind == b"":
                kind, *rest = answer(b"decode", b"0", *rest)
        if kind not in (b"", b"input"):
            sys.exit(f"{kind.decode()}: {rest}\n{keys}")
    print(f"{count} sets of keys: {made} tokenizers made, {count - made} refused")


if __name__ == "__main__":
    main()
