"""What a model loses by the type of its keys and values: perplexity of a text, and the next tokens against those with fp32.

    kv_quality.py MODEL [--text FILE] [--weight-type TYPE] [--chunks N] [--told N] [--asked N]

MODEL: a GGUF file, or a folder with a tokenizer. Of each chunk of the text the engine is told the first tokens and asked for each of the
next ones, which are then told. Runs with the reference environment and takes minutes; it measures no time.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy
from transformers import AutoConfig, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/parity"))
import engine  # noqa: E402

def log_probabilities(logits):
    logits = logits.astype(numpy.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=ROOT / "docs/concepts/membership.md")
    parser.add_argument("--weight-type", default="file")
    parser.add_argument("--chunks", type=int, default=3)
    parser.add_argument("--told", type=int, default=768)
    parser.add_argument("--asked", type=int, default=256)
    return parser


def measure(options, what, variants):
    """Prints a table: a row for each of `variants`, {name: case(layers)}, held against the first."""
    place = (options.model.parent, dict(gguf_file=options.model.name)) if options.model.is_file() else (options.model, {})
    layers = AutoConfig.from_pretrained(place[0], **place[1]).num_hidden_layers
    tokens = AutoTokenizer.from_pretrained(place[0], **place[1]).encode(options.text.read_text())
    size = options.told + options.asked
    if len(tokens) < options.chunks * size:
        sys.exit(f"{options.text} has {len(tokens)} tokens, fewer than {options.chunks} chunks of {size}")
    chunks = [tokens[i * size:(i + 1) * size] for i in range(options.chunks)]
    requests = [dict(prompt=chunk[:options.told], generate=options.asked, forced=chunk[options.told:]) for chunk in chunks]
    targets = numpy.array([chunk[options.told:] for chunk in chunks])
    exact = None
    print(f"{options.chunks} x {options.asked} tokens after {options.told} each\n")
    print(f"| {what} | perplexity | mean KL to {next(iter(variants))} | 99 % of KL below | same next token |")
    print("|---|---|---|---|---|")
    for name, case in variants.items():
        case = dict(model=str(options.model), weight_type=options.weight_type, requests=requests,
                    scripts=[dict(name="chunks", chunk=256)]) | case(layers)  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            runs = sorted(engine.run(case, Path(folder)), key=lambda run: run[0]["request"])
        said = numpy.stack([log_probabilities(logits) for _, logits in runs])
        exact = said if exact is None else exact
        perplexity = numpy.exp(-numpy.take_along_axis(said, targets[..., None], -1).mean())
        divergence = (numpy.exp(exact) * (exact - said)).sum(-1)
        same = (said.argmax(-1) == exact.argmax(-1)).mean()
        print(f"| {name} | {perplexity:.4f} | {divergence.mean():.2e} | {numpy.quantile(divergence, 0.99):.2e} | {same:.2%} |", flush=True)


def main():
    types = {kv: lambda layers, kv=kv: dict(kv_type=kv, layouts=[engine.chain(1, cuts=[0, layers])]) for kv in ["fp32", "bf16", "q8_0"]}
    measure(arguments(__doc__).parse_args(), "keys and values", types)


if __name__ == "__main__":
    main()
