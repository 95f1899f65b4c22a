#!/usr/bin/env python3
"""What TLS and the network stack between machines take: two machines with tensor parallelism of two inside each, the shape of 135 million
parameters, against the same plan on one machine, over shared memory alone (`motley serve --local`).

    tls.py [--model FILE] [--streams N] [--rounds N] [--folder FOLDER] [--build FOLDER]

The machines are namespaces with nothing between them that delays, so what is measured is what processors do. Runs take turns; the table
holds medians of tokens/s while all streams decode.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

from deployment import ROOT, Deployment, inside
from load import decoded_per_s
from unlike import chain, layers_of

PROMPT, TOKENS = 64, 128
CLUSTER = """format = "motley.cluster/1"
name = "two machines"
machine = [{ name = "m2", devices = ["core*2"] }, { name = "m3", devices = ["core*2"] }]
network = { within_machine = { latency = "20 us", bandwidth = "2 GB/s" }, within_site = { latency = "0.1 ms", bandwidth = "1 GB/s" } }

[[device_type]]
name = "core"
vendor = "cpu"
memory = "1 GiB"
memory_bandwidth = "10 GB/s"
flops = { fp32 = "100 GFLOP/s", bf16 = "100 GFLOP/s" }
reserve = "0 B"
"""


def make_plan(options):
    """Two stages of two ranks."""
    (options.folder / "cluster.toml").write_text(CLUSTER)
    file = options.folder / "plan.json"
    command = [options.build / "motley", "plan", "serve", "--cluster", options.folder / "cluster.toml", "--model", options.model, "--max-sequences",
               options.streams, "--max-tokens", "256", "-o", file]  # fmt: skip
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    base = json.loads(file.read_text())
    layers = layers_of(base)
    plan = chain(base, [(["m2/0", "m2/1"], layers // 2), (["m3/0", "m3/1"], layers - layers // 2)])
    for stage in plan["stages"]:
        stage["kv_tokens"] = options.streams * (PROMPT + TOKENS + 16)
    file.write_text(json.dumps(plan))
    return file


def local(options, plan):
    command = [options.build / "motley", "serve", plan, "--model", options.model, "--local", "--port", "0"]
    server = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"http://127.0.0.1:(\d+)", line):
                return decoded_per_s(options.streams, PROMPT, TOKENS, int(found[1]))
        sys.exit("motley serve ended before it listened")
    finally:
        server.terminate()
        server.communicate()


def machines(options, plan):
    """In namespaces of its own, as another process."""
    words = ["--inside", plan, "--model", options.model, "--streams", options.streams, "--folder", options.folder, "--build", options.build]
    result = subprocess.run([sys.executable, __file__, *map(str, words)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stdout + result.stderr)
    return float(result.stdout.splitlines()[-1])


def serve(options):
    inside()
    machine = {"memory": "2 GiB", "options": ["--processor-parts", "2", "--device-threads", "1", "--model", str(options.model)]}
    deployment = Deployment(options.folder / "deployment", "1 MiB", [machine, machine], motley=options.build / "motley", model=options.model,
                            plan=options.inside, options=["--device-threads", "1"])  # fmt: skip
    try:
        print(decoded_per_s(options.streams, PROMPT, TOKENS))
    finally:
        deployment.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path.home() / ".cache/motley/bench/llama-135m-text/model-q8_0.gguf")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/motley-tls"))
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="folder with motley and motley-worker")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.build = options.build.resolve()
    if options.inside:
        return serve(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    plan = make_plan(options)
    rates = {local: [], machines: []}
    for _ in range(options.rounds):
        for measure, some in rates.items():
            some.append(measure(options, plan))
        print(f"shared memory {rates[local][-1]:.1f}, two machines {rates[machines][-1]:.1f} tokens/s", file=sys.stderr, flush=True)
    ratio = statistics.median(b / a for a, b in zip(*rates.values()))
    print(f"| shared memory | two machines, TLS | ratio |\n|---|---|---|\n| {statistics.median(rates[local]):.1f} | {statistics.median(rates[machines]):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
