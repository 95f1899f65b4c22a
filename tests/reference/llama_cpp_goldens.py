"""Records what llama.cpp makes of the tales model in every quantised type, teacher-forced on one text.

    python tests/reference/llama_cpp_goldens.py MOTLEY LLAMA_PERPLEXITY tests/data/llama_cpp_tales.json

MOTLEY quantises the model (`motley model quantize`), LLAMA_PERPLEXITY is llama.cpp's program of that name. The record
has the tokens of each chunk, and per type and chunk, for the positions in its second half: the best next token, how far
its logit is above the second one's, and the log-probability of the token that follows.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/tales"))
import grammar  # noqa: E402

TYPES = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]
CONTEXT = 128
CHUNKS = 8


def tales():
    source = random.Random(20)
    return "\n".join(grammar.make_tale(source).text for _ in range(40))


def read(path):
    """Tokens [chunks, context], log-probabilities [chunks, positions, vocabulary]."""
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
    half = CONTEXT // 2
    best = np.sort(logs, axis=2)
    following = np.take_along_axis(logs, tokens[:, half + 1 :, None], axis=2)[:, :, 0]
    return {"best": logs.argmax(axis=2).tolist(),
            "margin": np.round((best[:, :, -1] - best[:, :, -2]).astype(float), 3).tolist(),
            "following": np.round(following.astype(float), 4).tolist()}


def main(motley, perplexity, out):
    result = {"context": CONTEXT, "types": {}}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tales.txt").write_text(tales())
        for kind in TYPES:
            model, logits = f"{folder}/{kind}.gguf", f"{folder}/{kind}.logits"
            subprocess.run([motley, "model", "quantize", ROOT / "data/models/tales", "--type", kind, "-o", model, "-q"],
                           check=True)
            subprocess.run([perplexity, "-m", model, "-f", f"{folder}/tales.txt", "-c", str(CONTEXT), "-b", str(CONTEXT),
                            "--chunks", str(CHUNKS), "--kl-divergence-base", logits, "-t", "2"], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            tokens, logs = read(logits)
            assert result.setdefault("tokens", tokens.tolist()) == tokens.tolist()
            result["types"][kind] = record(tokens, logs)
    Path(out).write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
