#!/usr/bin/env python3
"""The path of tokens from the workers to many clients: 256 streamed chats at once of the tales model, on one device.

    run.py [--program NAME=PATH]... [--rounds N] [--streams N] [--workers tales,paced,counting] [--json FILE]

Programs (default: build/release/motley) take turns, `--rounds` times over; the table holds medians, and with two
programs the median of each round's ratio of the last to the first. Three kinds of workers:

    tales       the real ones: what a user of this machine sees
    paced       the fake worker of the driver's tests, from beside the program, with steps of 20 ms: the pace of a
                faster device. The model's context is longer here, and so are the chats that join
    counting    the same without a pause: tokens wait for the driver, whose throughput this is; times between them
                mean nothing then

Each round starts the server and runs the streams alone, and, where times mean something, again with 64 long chats that
join halfway.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build" / "release"))
CLIENT = BUILD / "bench" / "streams" / "streams_client"
MODEL = ROOT / "data" / "models" / "tales"
LONG_CHATS = 64
# Tokens of an answer, messages of a long chat (of about 15 tokens each), the context that holds them, tokens of a step.
# A fake worker takes its model folder's name for its settings.
WORKERS = {
    "tales": {"tokens": 64, "messages": 20, "context": 512, "step": 384, "folder": "model"},
    "paced": {"tokens": 96, "messages": 200, "context": 16384, "step": 65536, "folder": "model;step_ms=20"},
    "counting": {"tokens": 256, "messages": None, "context": 16384, "step": 65536, "folder": "model"},
}
CLUSTER = """format = "motley.cluster/1"
name = "one device"
[[machine]]
name = "desk"
devices = ["desk core"]
[[device_type]]
name = "desk core"
vendor = "cpu"
memory = "{memory}"
memory_bandwidth = "10 GB/s"
flops = {{ fp32 = "50 GFLOP/s" }}
reserve = "0 B"
"""
WORKLOAD = """format = "motley.workload/1"
[[class]]
name = "chat"
rate = "4 /s"
prompt_tokens = 64
output_tokens = 64
"""
COLUMNS = {
    "tokens_per_s": ("tokens/s", 1, "{:,.0f}"),
    "driver_us_per_token": ("driver, us/token", 1, "{:.1f}"),
    "between_p50_s": ("between tokens, p50", 1e3, "{:.1f} ms"),
    "between_p99_s": ("p99", 1e3, "{:.1f} ms"),
    "joined_p99_s": ("p99 while 64 join", 1e3, "{:.1f} ms"),
    "first_p50_s": ("first token of those, p50", 1e3, "{:.0f} ms"),
    "first_p99_s": ("p99", 1e3, "{:.0f} ms"),
}


def output_of(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed ({result.returncode}):\n{result.stderr[-3000:]}")
    return result.stdout


class Server:
    """`motley serve` of one plan on a free port of loopback, until the end of the block."""

    def __init__(self, program, plan, model):
        command = [program, "serve", plan, "--model", model, "--local", "--port", "0"]
        self.process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"ready\s+http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(found[1])
                return
        sys.exit(f"{program} did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.stderr.read()
        self.process.wait(timeout=60)

    def processor_s(self):
        """Of the driver's process alone."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def prepare(folder, kind, programs):
    """Model, plan and programs for one kind of workers."""
    settings = WORKERS[kind]
    model = folder / settings["folder"]
    shutil.copytree(MODEL, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": settings["context"]}))
    (folder / "cluster.toml").write_text(CLUSTER.format(memory="2 GiB" if kind == "tales" else "2 TiB"))
    (folder / "workload.toml").write_text(WORKLOAD)
    placed = {}
    for name, program in programs.items():
        placed[name] = program
        if kind != "tales":  # a program takes the worker of its folder
            pair = folder / name
            pair.mkdir()
            placed[name] = shutil.copy(program, pair / "motley")
            shutil.copy(Path(program).parent / "fake-worker", pair / "motley-worker")
    output_of(next(iter(programs.values())), "plan", "serve", "--cluster", folder / "cluster.toml", "--model", model,
              "--workload", folder / "workload.toml", "--weight-type", "fp32", "--max-tokens", settings["step"],
              "--max-sequences", 320, "-q", "-o", folder / "plan.json")
    return placed, folder / "plan.json", model


def measure(program, plan, model, kind, options):
    settings = WORKERS[kind]
    with Server(program, plan, model) as server:
        def run(tokens, long_chats):
            messages = settings["messages"] or 1
            return json.loads(output_of(CLIENT, server.port, options.streams, tokens, long_chats, messages))

        run(4, 0)
        before_s = server.processor_s()
        alone = run(settings["tokens"], 0)
        driver_s = server.processor_s() - before_s
        joined = run(settings["tokens"], LONG_CHATS) if settings["messages"] else None
    figures = {"tokens_per_s": alone["tokens_per_s"], "driver_us_per_token": driver_s / alone["tokens"] * 1e6}
    if joined:
        figures |= {key: alone[key] for key in ("between_p50_s", "between_p99_s")}
        figures["joined_p99_s"] = joined["between_p99_s"]
        figures |= {key: joined[key] for key in ("first_p50_s", "first_p99_s")}
    return figures


def print_table(kind, rows):
    columns = {key: column for key, column in COLUMNS.items() if key in next(iter(rows.values()))[0]}
    print(f"\n{kind} workers\n")
    print("| | " + " | ".join(title for title, _, _ in columns.values()) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, rounds in rows.items():
        cells = [form.format(scale * statistics.median(figures[key] for figures in rounds))
                 for key, (_, scale, form) in columns.items()]
        print(f"| {name} | " + " | ".join(cells) + " |")
    if len(rows) > 1:
        first, last = list(rows.values())[0], list(rows.values())[-1]
        ratios = [statistics.median(b[key] / a[key] for a, b in zip(first, last)) for key in columns]
        print("| ratio | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", metavar="NAME=PATH")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--workers", default=",".join(WORKERS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    programs = dict(text.split("=", 1) for text in options.program or [f"motley={BUILD / 'motley'}"])
    results = {}
    for kind in options.workers.split(","):
        with tempfile.TemporaryDirectory() as name:
            placed, plan, model = prepare(Path(name), kind, programs)
            rows = results[kind] = {name: [] for name in programs}
            for turn in range(options.rounds):
                for name, program in placed.items():
                    print(f"{kind} workers, round {turn + 1} of {options.rounds}: {name}", file=sys.stderr)
                    rows[name].append(measure(program, plan, model, kind, options))
        print_table(kind, results[kind])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
