"""Turns three small tokenizers into GGUF files of a vocabulary alone, and records what llama.cpp makes of texts with them.

    PYTHONPATH=LLAMA_CPP/gguf-py .venv-reference/bin/python tests/reference/gguf_text_goldens.py PATH_TO/llama-tokenize

Writes tests/data/text/gguf/*.gguf and goldens.json. Recorded with llama.cpp of llama-cpp-python 0.3.36. With --check FILE.gguf...
it writes nothing and compares motley's tokenizer with llama.cpp's on other files, as many texts in one.
"""

import json
import random
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import gguf

from text_goldens import TEXTS

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "data" / "text" / "gguf"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _, BYTE = range(1, 7)

ALPHABETS = ["abcdefgh XYZ", "  \n\t\r", "0123456789.,", "'sStTlLdD re ve", "äöüßéèñ", "абвгд ", "αβγδ", "中文字符東京", "한국어",
             "مرحبا", "नमस्ते", "🙂🚀👍🏽", "!?()[]{}<>/\\|_-+=*&^%$#@~`\"", "\u00a0\u2003\u200b\ufeff", "\u0301\u0308", "①½²Ⅷ", "<|end|>", "</s>"]


def texts():
    """Those of text_goldens.py, and random ones of one or several alphabets."""
    chance = random.Random(11)
    mixed = ["".join(chance.choice(chance.choice(ALPHABETS)) for _ in range(chance.randrange(1, 40))) for _ in range(120)]
    alike = ["".join(chance.choice(alphabet) for _ in range(chance.randrange(1, 30))) for alphabet in ALPHABETS for _ in range(4)]
    return [text for text in TEXTS + mixed + alike if text and "\0" not in text]


def writer(name, kind):
    out = gguf.GGUFWriter(OUT / f"{name}.gguf", "llama")
    out.add_context_length(512)
    out.add_embedding_length(192)
    out.add_block_count(8)
    out.add_feed_forward_length(512)
    out.add_head_count(8)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_tokenizer_model(kind)
    return out


def close(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()


def byte_pairs(name, folder, pre):
    raw = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = {token: place for token, place in raw["model"]["vocab"].items()}
    types = {}
    for added in raw["added_tokens"]:
        tokens[added["content"]] = added["id"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    ordered = sorted(tokens, key=tokens.get)
    out = writer(name, "gpt2")
    out.add_tokenizer_pre(pre)
    out.add_token_list(ordered)
    out.add_token_types([types.get(place, NORMAL) for place in range(len(ordered))])
    out.add_token_merges([" ".join(pair) for pair in raw["model"]["merges"]])
    for key, add in (("bos_token", out.add_bos_token_id), ("eos_token", out.add_eos_token_id), ("pad_token", out.add_pad_token_id)):
        if key in config:
            add(tokens[config[key]])
    out.add_add_bos_token("bos_token" in config)
    if "chat_template" in config:
        out.add_chat_template(config["chat_template"])
    close(out)


def sentencepiece(name, folder):
    raw = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = raw["model"]["vocab"]
    ordered = sorted(vocabulary, key=vocabulary.get)
    kinds = [UNKNOWN if token == "<unk>" else CONTROL if token in ("<s>", "</s>") else BYTE if re.fullmatch("<0x..>", token) else NORMAL
             for token in ordered]
    out = writer(name, "llama")
    out.add_tokenizer_pre("default")
    out.add_token_list(ordered)
    out.add_token_scores([-float(place) if kind == NORMAL else 0.0 for place, kind in enumerate(kinds)])
    out.add_token_types(kinds)
    out.add_bos_token_id(vocabulary["<s>"])
    out.add_eos_token_id(vocabulary["</s>"])
    out.add_unk_token_id(vocabulary["<unk>"])
    out.add_add_bos_token(True)
    out.add_add_eos_token(False)
    close(out)


def tokenize(program, file, text, *options):
    with tempfile.NamedTemporaryFile("wb") as written:
        written.write(text.encode())
        written.flush()
        run = subprocess.run([program, "-m", file, "-f", written.name, "--ids", "--log-disable", "--no-escape", *options],
                             capture_output=True, text=True, check=True)
    return json.loads(run.stdout.strip().splitlines()[-1])


def record(program, name):
    file = OUT / f"{name}.gguf"
    return {"tokens": [tokenize(program, file, text, "--no-bos") for text in texts()],
            "with_special": [tokenize(program, file, text) for text in texts()[:10]]}


def rule_called(name):
    """The entry of motley's families, or of pre_tokenizer.cpp, that has the name."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "motley/model/families").glob("pre_tokenizer.*")))
    text += "\n".join(path.read_text() for path in sorted((ROOT / "motley/model/families").glob("*.cpp")))
    strings = {key: raw or json.loads(f'"{plain}"') for key, raw, plain in
               re.findall(r'string_view (\w+) =\s+(?:R"\((.*)\)"|"(.*)");', text)}
    for names, patterns, flags in re.findall(r'\{"([^"]+)",\s+\{([\w, ]+)\}([\w, ]*)\}', text):
        if name in names.split():
            whole_words_first, begins = (flags.split(", ")[1:] + ["false", "false"])[:2]
            return {"patterns": [strings[pattern] for pattern in patterns.split(", ")],
                    "whole_words_first": whole_words_first == "true", "begins": begins == "true"}
    raise SystemExit(f"no family has the pre-tokenizer {name}")


def own_codec(path):
    """motley's Python half on a file, by the keys that gguf-py reads."""
    module = types.ModuleType("codec")
    module.METHODS, module.InputError = {}, Exception  # which text_processes.cpp has
    for source in ("codec_source", "gguf_source"):
        text = (ROOT / "motley" / "text" / f"{source}.cpp").read_text()
        exec(text.split('R"py(')[1].split(')py"')[0], module.__dict__)
    keys = {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items() if key.startswith("tokenizer.")}
    if keys["tokenizer.ggml.model"] == "gpt2":
        keys["pre_tokenizer"] = rule_called(keys.get("tokenizer.ggml.pre", "default"))
    return module.open_gguf(path, keys)


def check(program, path):
    codec, different, count = own_codec(path), 0, 0
    groups = [texts()[start::12] for start in range(12)]
    for group in groups:
        text = "\n".join(group)
        count += len(group)
        own, theirs = codec.encode(text, False), tokenize(program, path, text, "--no-bos")
        if own != theirs:
            different += 1
            place = next((i for i, (a, b) in enumerate(zip(own, theirs)) if a != b), min(len(own), len(theirs)))
            print(f"  {codec.tokenizer.decode(own[max(0, place - 5):place + 5], skip_special_tokens=False)!r}:",
                  [codec.tokenizer.id_to_token(token) for token in own[place:place + 6]],
                  [codec.tokenizer.id_to_token(token) for token in theirs[place:place + 6]])
    print(f"{path}: {count} texts in {len(groups)} parts, {different} parts differ")


def main():
    program, *more = sys.argv[1:]
    if more:
        for path in more[1:]:
            check(program, path)
        return
    byte_pairs("gpt-2", ROOT / "data" / "models" / "tales", "gpt-2")
    byte_pairs("llama-bpe", OUT.parent / "byte_level", "llama-bpe")
    sentencepiece("sentencepiece", OUT.parent / "sentencepiece_like")
    goldens = {"texts": texts(), "tokenizers": {name: record(program, name) for name in ("gpt-2", "llama-bpe", "sentencepiece")}}
    (OUT / "goldens.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
