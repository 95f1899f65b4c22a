"""The models of the offloading benchmarks: random parameters in bf16."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "decode"))
import make_model  # noqa: E402


def model_in(cache, shape="1b"):
    """Its folder, made where it is not there."""
    folder = cache / f"llama-{shape}"
    if not (folder / "config.json").exists():
        print("making the model", file=sys.stderr, flush=True)
        make_model.make(shape, folder)
    if not (folder / "tokenizer.json").exists():
        make_model.write_tokenizer(folder)
    return folder
