#!/usr/bin/env python3
"""Serves a model of yours over the garage's six workers, whose memories grow with the model.

    examples/garage/own_model.py --model MODEL [--keep FOLDER] [OPTION OF motley plan serve]...

MODEL: a Hugging Face folder, a GGUF file, or OWNER/NAME[:FILE.gguf] on the hub. `./dev demo --model MODEL` builds the programs
first and runs this.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
MOTLEY = os.environ.get("MOTLEY", str(HERE.parents[1] / "build" / "release" / "motley"))
STEPS = ["--max-tokens", "64", "--max-sequences", "8"]
KV_TOKENS = 2048  # room for a few talks
QUESTION = "Tell me a short story about a lantern and an owl."
BEGINNING = "Once upon a time there was an owl who found a lantern."
MEMORY = re.compile(r'(?<=^memory = ")([\d.]+) MiB(?=")', re.MULTILINE)


def motley(*words, quiet=False):
    return subprocess.run([MOTLEY, *map(str, words)], text=True, stdout=subprocess.PIPE if quiet else None,
                          stderr=subprocess.PIPE if quiet else None)


def needed_bytes(model, options):
    """What one device needs for the weights, KV_TOKENS and the buffers."""
    given = [word for i, word in enumerate(options) if "--weight-type" in options[max(0, i - 1):i + 1]]
    shown = motley("model", "memory", model, "--kv-tokens", KV_TOKENS, *STEPS, *given, "--json", quiet=True)
    if shown.returncode != 0:
        sys.exit(shown.stderr.rstrip())
    rank = json.loads(shown.stdout)["ranks"][0]
    return 1.2 * rank["weights_bytes"] + rank["kv_bytes"] + 3 * rank["activations_bytes"]


def kv_room(plan):
    """Tokens that all routes have room for."""
    plan = json.loads(plan.read_text())
    kv_tokens = {stage["id"]: stage["kv_tokens"] for stage in plan["stages"]}
    return sum(min(kv_tokens[hop["stage"]] for hop in route["path"]) for route in plan["routes"])


def plan(model, options, folder):
    """The smallest of a few scales at which the model fits with room for KV_TOKENS: its pieces are not equally easy to place."""
    cluster = (HERE / "cluster.toml").read_text()
    # The devices of the file: two bench cores, the shelf's three, the laptop.
    all_bytes = sum(count * mib for count, mib in ((2, 4), (1, 3.5), (2, 2), (1, 6))) * 2**20
    scale = needed_bytes(model, options) / all_bytes
    for _ in range(12):
        scaled = MEMORY.sub(lambda found: f"{float(found[1]) * scale:.1f} MiB", cluster)
        (folder / "cluster.toml").write_text(scaled)
        tried = motley("plan", "serve", "--cluster", folder / "cluster.toml", "--model", model, "--workload", HERE / "workload.toml",
                       *STEPS, *options, "-o", folder / "plan.json", quiet=True)
        if tried.returncode > 1 or (tried.returncode == 0 and kv_room(folder / "plan.json") >= KV_TOKENS):
            break
        scale *= 1.1
    if tried.returncode != 0:
        sys.exit(tried.stderr.rstrip())
    print(f"memories scaled by {scale:.1f}: {', '.join(MEMORY.findall(scaled))} MiB (bench, shelf, shelf mini, laptop)\n{tried.stdout}")


def serve(model, plan):
    """The running server and its address."""
    server = subprocess.Popen([MOTLEY, "serve", plan, "--model", model, "--local", "--port", "0"],
                              stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        print(line, end="", file=sys.stderr)
        if found := re.search(r"http://[\d.]+:\d+(?=/v1)", line):
            return server, found[0]
    sys.exit(server.wait())


def post(url, **body):
    request = urllib.request.Request(url, json.dumps({"temperature": 0, **body}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def ask(address):
    """A question to a model that knows chats; otherwise a text to go on with."""
    start = time.monotonic()
    try:
        print(f"\n> {QUESTION}")
        answer = post(f"{address}/v1/chat/completions", messages=[{"role": "user", "content": QUESTION}], max_tokens=120)
        print(answer["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as error:
        if error.code != 400 or "no chat template" not in error.read().decode():
            raise
        print(f"(the model has no chat template)\n\n> {BEGINNING}")
        answer = post(f"{address}/v1/completions", prompt=BEGINNING, max_tokens=120)
        print(answer["choices"][0]["text"])
    tokens, seconds = answer["usage"]["completion_tokens"], time.monotonic() - start
    print(f"\n{tokens} tokens in {seconds:.1f} s over the garage, prompt included")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--keep", type=Path, help="folder for cluster.toml and plan.json (default: none is kept)")
    arguments, options = parser.parse_known_args()
    model = os.path.realpath(arguments.model) if os.path.exists(arguments.model) else arguments.model
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        plan(model, options, folder)
        server, address = serve(model, folder / "plan.json")
        try:
            ask(address)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    if arguments.keep:
        print(f"go on with it: {MOTLEY} serve {folder}/plan.json --model {arguments.model} --local")


if __name__ == "__main__":
    main()
