"""The model of the offloading benchmarks: a billion random parameters in bf16."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "decode"))
import make_model  # noqa: E402


def model_in(cache):
    """Its folder, made where it is not there."""
    folder = cache / "llama-1b"
    if not (folder / "config.json").exists():
        print("making the model", file=sys.stderr, flush=True)
        make_model.make("1b", folder)
    if not (folder / "tokenizer.json").exists():
        make_model.write_tokenizer(folder)
    return folder
