#!/usr/bin/env python3
"""What it takes that rows go from one stage to the next: two machines with a stage each, and a link between them that takes about as long
for the rows of a prompt as a stage does to compute them. Prompts in chunks, 16 at once, over that link, and the decoding of one stream
over a link that nothing holds up.

    crossing.py [--program NAME=FOLDER]... [--rate BYTES_PER_S] [--rounds N] [--folder FOLDER]

Programs (folders with motley and motley-worker) take turns, so that a change is measured in one run; the table holds medians, and the
median of each round's ratio to the first. The model has random weights.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from deployment import ROOT, Bridge, Deployment, inside
from emulated import SlowLinks
from load import at_once, decoded_per_s
from tls import CLUSTER
from unlike import chain, layers_of

PROMPTS, PROMPT, CHUNK, TOKENS = 16, 768, 128, 96
SHAPE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 12, "num_key_value_heads": 4,
         "head_dim": 64, "max_position_embeddings": 1024}  # fmt: skip


def make_model(options):
    """In the shape of the tales model, but larger."""
    shape, model = options.folder / "shape", options.folder / "model"
    if not model.exists():
        shutil.copytree(ROOT / "data/models/tales", shape, ignore=shutil.ignore_patterns("*.safetensors"))
        config = json.loads((shape / "config.json").read_text())
        (shape / "config.json").write_text(json.dumps(config | SHAPE))
        motley(options, "model", "init", shape, "--seed", 1, "-o", model)
    return model


def motley(options, *words):
    program = next(iter(options.program.values())) / "motley"
    result = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"motley {' '.join(map(str, words))}: {result.stdout}{result.stderr}")


def make_plan(options, model):
    """Two stages of equal parts."""
    cluster, file = options.folder / "cluster.toml", options.folder / "plan.json"
    cluster.write_text(CLUSTER.replace("core*2", "core"))
    motley(options, "plan", "serve", "--cluster", cluster, "--model", model, "--max-sequences", PROMPTS, "--max-tokens", CHUNK, "-o", file)
    base = json.loads(file.read_text())
    layers = layers_of(base)
    plan = chain(base, [(["m2/0"], layers // 2), (["m3/0"], layers - layers // 2)])
    for stage in plan["stages"]:
        stage["kv_tokens"] = PROMPTS * 1024
    file.write_text(json.dumps(plan))
    return file


def prompts_per_s(prompts, prompt_tokens):
    answers = at_once(prompts, prompt_tokens, 1, 8000)
    return prompts * prompt_tokens / (max(arrivals[0] for _, arrivals in answers) - min(asked for asked, _ in answers))


def serve(options):
    inside()
    program, what = options.inside.split("=", 1)
    machine = {"memory": "1 GiB", "options": ["--processor-parts", "1", "--device-threads", "1", "--model", str(options.folder / "model")]}
    deployment = Deployment(options.folder / "deployment", "1 MiB", [machine, machine], motley=Path(program) / "motley", model=options.folder / "model",
                            plan=options.folder / "plan.json", options=["--device-threads", "1"],
                            links=SlowLinks(options.rate) if what == "prompts" else Bridge())  # fmt: skip
    try:
        print(prompts_per_s(PROMPTS, PROMPT) if what == "prompts" else decoded_per_s(1, 16, TOKENS))
    finally:
        deployment.end()


def measured(options, program, what):
    """In namespaces of its own, as another process."""
    words = ["--inside", f"{program}={what}", "--rate", options.rate, "--folder", options.folder]
    result = subprocess.run([sys.executable, __file__, *map(str, words)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stdout + result.stderr)
    return float(result.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", default=[], metavar="NAME=FOLDER", help="repeatable (default: now=build/release)")
    parser.add_argument("--rate", type=float, default=2.5e6, help="bytes/s of the slow link (default 2.5e6)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/motley-crossing"))
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return serve(options)
    named = [program.split("=", 1) for program in options.program] or [["now", ROOT / "build/release"]]
    options.program = {name: Path(folder).resolve() for name, folder in named}
    options.folder.mkdir(parents=True, exist_ok=True)
    make_plan(options, make_model(options))
    rates = {(what, name): [] for what in ("prompts", "decode") for name in options.program}
    for _ in range(options.rounds):
        for what, name in rates:
            rates[what, name].append(measured(options, options.program[name], what))
            print(f"{what}, {name}: {rates[what, name][-1]:.1f} tokens/s", file=sys.stderr, flush=True)
    print("| | program | tokens/s | ratio |\n|---|---|---|---|")
    first = next(iter(options.program))
    for (what, name), some in rates.items():
        ratio = statistics.median(b / a for a, b in zip(rates[what, first], some))
        print(f"| {what} | {name} | {statistics.median(some):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
