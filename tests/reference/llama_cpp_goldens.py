"""Records what llama.cpp makes of models in quantised types, for tests/parity/test_gguf.py. Run with the reference environment:

    python tests/reference/llama_cpp_goldens.py MOTLEY FOLDER_OF_LLAMA_CPP_PROGRAMS

MOTLEY writes the files (`model quantize`); llama.cpp's llama-perplexity reads them, with its KV cache in fp32.

tests/data/llama_cpp.npz: `tokens` of 20 chunks of a text; and per model and type, teacher-forced on them, for the positions from the
middle of each chunk on: the `best` next token, how far its logit is above the second one's (`margin`), and the log-probability of the
token that is `following`. `rows` has the log-probabilities of all tokens, times -100, for one position of each chunk.

tests/data/llama_cpp_types.json: the types that llama-quantize --pure gives to the tensors of a model whose rows are of many lengths.
"""

import json
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples/tales"), str(ROOT / "bench/decode"), str(ROOT / "tests/parity")]
import grammar  # noqa: E402
import make_model  # noqa: E402
from gguf_models import RECORDED, ROWS_OF_MANY_LENGTHS, types_by_tensor  # noqa: E402

TALES = ROOT / "data/models/tales"
CONTEXT = 128
CHUNKS = 20
ASKED = 32


def text():
    source = random.Random(20)
    return "\n".join(grammar.make_tale(source).text for _ in range(100))


def read(path):
    """Tokens [chunks, context], log-probabilities [chunks, positions, vocabulary]. They end 16 below the best one's."""
    data = Path(path).read_bytes()
    assert data[:8] == b"_logits_"
    context, vocabulary, chunks = struct.unpack_from("<Iii", data, 8)
    tokens = np.frombuffer(data, np.int32, chunks * context, 20).reshape(chunks, context)
    positions = context - 1 - context // 2
    width = 2 * ((vocabulary + 1) // 2) + 4
    rows = np.frombuffer(data, np.uint16, chunks * positions * width, 20 + tokens.nbytes).reshape(-1, width)
    heads = np.ascontiguousarray(rows[:, :4]).view(np.float32)
    return tokens, (rows[:, 4 : 4 + vocabulary] * heads[:, :1] + heads[:, 1:]).reshape(chunks, positions, vocabulary)


def record(tokens, logs):
    logs = logs[:, :ASKED]
    following = tokens[:, CONTEXT // 2 + 1 :][:, :ASKED, None]
    best = np.sort(logs, axis=2)
    chunks = np.arange(CHUNKS)
    return {"best": logs.argmax(axis=2).astype(np.int16), "margin": best[:, :, -1] - best[:, :, -2],
            "following": np.take_along_axis(logs, following, axis=2)[:, :, 0],
            "rows": np.round(-100 * logs[chunks, chunks]).astype(np.uint16)}


def outputs(motley, programs, folder):
    """The random model has the tokenizer of the tales."""
    (folder / "text").write_text(text())
    make_model.make("small256", folder / "small256")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALES / file, folder / "small256")
    arrays = {}
    for model in (TALES, folder / "small256"):
        for kind in RECORDED:
            file, logits = folder / "model.gguf", folder / "logits"
            subprocess.run([motley, "model", "quantize", model, "--type", kind, "-o", file, "-q"], check=True)
            subprocess.run([programs / "llama-perplexity", "-m", file, "-f", folder / "text", "-c", str(CONTEXT), "-b", str(CONTEXT),
                            "--chunks", str(CHUNKS), "--kl-divergence-base", logits, "-ctk", "f32", "-ctv", "f32", "-fa", "off"],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            tokens, logs = read(logits)
            assert (arrays.setdefault("tokens", tokens.astype(np.int16)) == tokens).all()
            arrays |= {f"{model.name}.{kind}.{key}": value for key, value in record(tokens, logs).items()}
    return arrays


def tensor_types(motley, programs, folder):
    make_model.make("135m", folder / "135m", **ROWS_OF_MANY_LENGTHS)
    subprocess.run([motley, "model", "quantize", folder / "135m", "--type", "f32", "-o", folder / "f32.gguf", "-q"], check=True)
    types = {}
    for kind in RECORDED:
        file = folder / "model.gguf"
        subprocess.run([programs / "llama-quantize", "--pure", folder / "f32.gguf", file, kind.upper()], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        types[kind] = types_by_tensor(file)
    return types


def main(motley, programs):
    with tempfile.TemporaryDirectory() as folder:
        np.savez_compressed(ROOT / "tests/data/llama_cpp.npz", **outputs(motley, Path(programs), Path(folder)))
        types = tensor_types(motley, Path(programs), Path(folder))
        (ROOT / "tests/data/llama_cpp_types.json").write_text(json.dumps(types, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
