"""The diagonal schedule against the zig-zag one of FlexGen: tokens/s of the same requests from the same server, whose weights stream from a
disk, with the same room for keys and values.

    schedules.py [--cache FOLDER] [--prompt N] [--outputs N ...] [--block N] [--blocks N] [--rounds N] [--disk-rate MB/S] [--threads N]

The room is what `--block` sequences take at their end. Zig-zag: that many requests are sent, all at once, and the next when the last
of them is answered, so that a block advances together and has room for all of its tokens from the start. Diagonal: all requests are sent at
once; sequences enter and leave at each pass, and take pages as they grow. The shape of 135 million parameters in bf16, all layers from
disk, held to --disk-rate by a control group (root). Runs with the reference environment.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import groups
from model import model_in
from local_server import listening  # in the folder of the model's maker, which `model` adds
from run import CLUSTER, ROOT

PAGE = 16  # tokens


def make_plan(options, folder, output):
    """One processor whose layers are all on disk, with room for a block of sequences at their end."""
    cluster, file = folder / "cluster.toml", folder / "plan.json"
    cluster.write_text(CLUSTER.format(memory="16 GiB"))
    requests = options.block * options.blocks
    subprocess.run([options.build / "motley", "plan", "serve", "--cluster", cluster, "--model", options.model, "--max-tokens", "1024",
                    "--max-sequences", str(requests), "--no-roles", "-q", "-o", file], check=True, stdout=subprocess.DEVNULL)
    plan = json.loads(file.read_text())
    stage = plan["stages"][0]
    stage["kv_tokens"] = options.block * -(-(options.prompt + output) // PAGE) * PAGE
    stage["offload"] = dict(batches=1, weights=dict(device=0, disk=1), kv=dict(device=1), activations=dict(device=1))
    plan["step"]["block_tokens"] = PAGE
    plan["predicted"].pop("memory_bytes", None)
    file.write_text(json.dumps(plan))
    return file


def server(options, plan):
    command = [options.build / "motley", "serve", plan, "--model", options.model, "--local", "--port", 0, "--worker-threads", options.threads]
    return listening(options.group.command(command), env=os.environ | {"MOTLEY_SPILL_DIR": str(options.spill)})


def preemptions(address):
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        return int(re.search(r"^motley_preemptions_total (\d+)", answer.read().decode(), re.MULTILINE)[1])


def answer(options, address, output, number):
    prompt = [(7 * i + 31 * number) % 31000 + 50 for i in range(options.prompt)]
    body = dict(prompt=prompt, max_tokens=output, temperature=0, ignore_eos=True, return_token_ids=True)
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["token_ids"]


def measure(options, address, output, at_once):
    """(tokens/s, tokens of each request) where this many requests are sent at once, and the next when these are answered."""
    requests = range(options.block * options.blocks)
    answers = []
    begin = time.monotonic()
    with ThreadPoolExecutor(at_once) as clients:
        for first in range(0, len(requests), at_once):
            answers += clients.map(lambda number: answer(options, address, output, number), requests[first:first + at_once])
    return len(requests) * output / (time.monotonic() - begin), answers


def compare(options, folder, output):
    """Medians of both schedules' tokens/s, and how often the diagonal one preempted a sequence."""
    rates, said, preempted = {"zig-zag": [], "diagonal": []}, [], 0
    with server(options, make_plan(options, folder, output)) as address:
        answer(options, address, 1, 0)
        for _ in range(options.rounds):
            for name, at_once in (("zig-zag", options.block), ("diagonal", options.block * options.blocks)):
                before = preemptions(address)
                rate, answers = measure(options, address, output, at_once)
                preempted = preemptions(address) - before
                rates[name].append(rate)
                said.append(answers)
                print(f"{output} tokens, {name}: {rate:.2f} tokens/s, {preempted} preemptions", file=sys.stderr, flush=True)
    if any(answers != said[0] for answers in said):
        sys.exit("the schedules gave different tokens")
    return statistics.median(rates["zig-zag"]), statistics.median(rates["diagonal"]), preempted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of each prompt (default 16)")
    parser.add_argument("--outputs", type=int, nargs="+", default=[64, 128], help="tokens of each answer (default 64 128)")
    parser.add_argument("--block", type=int, default=8, help="sequences of a zig-zag block (default 8)")
    parser.add_argument("--blocks", type=int, default=6, help="how many of them (default 6)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--disk-rate", type=int, default=800, metavar="MB/S", help="reads, and writes, of the disk (default 800)")
    options = parser.parse_args()
    options.model = model_in(options.cache, "135m")
    options.spill = Path(os.environ.get("MOTLEY_SPILL_DIR", options.cache))
    options.group = groups.disk_group(options.spill, options.disk_rate * 1_000_000)
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = [(output, *compare(options, Path(folder), output)) for output in options.outputs]
    finally:
        options.group.remove()
    print(f"{'prompt':>6} {'answer':>6} {'zig-zag':>14} {'diagonal':>14} {'ratio':>6} {'of at most':>10} {'preemptions':>11}")
    for output, zig_zag, diagonal, preempted in rows:
        most = 2 * (options.prompt + output) / (2 * options.prompt + output)  # where weights bind, with pages of one token
        print(f"{options.prompt:>6} {output:>6} {zig_zag:>8.2f} tok/s {diagonal:>8.2f} tok/s {diagonal / zig_zag:>6.2f} {most:>10.2f} "
              f"{preempted:>11}")


if __name__ == "__main__":
    main()
