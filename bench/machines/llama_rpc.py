#!/usr/bin/env python3
"""Decoding over two machines, against llama.cpp's RPC backend on the same machines, links and model.

    llama_rpc.py [--cache FOLDER] [--type q8_0] [--rounds N] [--folder FOLDER] [--build FOLDER]

Runs with the reference environment, which makes the model and builds llama.cpp as `decode` does. Two machines with one thread each compute,
a third asks: `motley serve --agents` with the driver there, or `llama-batched-bench --rpc` against an `rpc-server` on each machine. Ports
of 1 Gbit/s join them. Runs take turns; the table holds medians of tokens/s while all sequences decode.
"""

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from deployment import ROOT, Deployment, inside, ip
from emulated import SlowLinks
from load import decoded_per_s

sys.path.insert(0, str(ROOT / "bench/decode"))
from run import HERE, build_llama_cpp, llama_cpp_program, output_of, say  # noqa: E402

PROMPT, TOKENS, BATCHES, PORT = 64, 64, (1, 16), 50052
LINK = 125e6
CLUSTER = """format = "motley.cluster/1"
name = "two machines"
machine = [{ name = "m2", devices = ["core"] }, { name = "m3", devices = ["core"] }]
network = { within_site = { latency = "0.1 ms", bandwidth = "1 Gbit/s" } }

[[device_type]]
name = "core"
vendor = "cpu"
memory = "MEMORY MiB"
memory_bandwidth = "10 GB/s"
flops = { fp32 = "100 GFLOP/s", bf16 = "100 GFLOP/s" }
reserve = "0 B"
"""


def make_plan(options):
    """For 16 sequences, on devices of which none holds all, as llama.cpp's servers share it."""
    (options.folder / "workload.toml").write_text(
        f'format = "motley.workload/1"\n[[class]]\nname = "chat"\nprompt_tokens = {PROMPT}\noutput_tokens = {TOKENS}\n')
    mib = options.model.stat().st_size / 2**20
    (options.folder / "cluster.toml").write_text(CLUSTER.replace("MEMORY", f"{1.1 * mib:.0f}"))
    file = options.folder / "plan.json"
    output_of(options.build / "motley", "plan", "serve", "--cluster", options.folder / "cluster.toml", "--model", options.model, "--workload",
              options.folder / "workload.toml", "--max-sequences", max(BATCHES), "--max-tokens", "256", "--max-batch", max(BATCHES), "--kv-type",
              "bf16", "--one-pipeline", "--all-devices", "-o", file)  # fmt: skip
    return file


def motley(options):
    machine = {"memory": f"{2 * options.model.stat().st_size // 2**20} MiB", "options": ["--device-threads", "1", "--model", str(options.model)]}
    deployment = Deployment(options.folder / "deployment", "1 MiB", [machine, machine], motley=options.build / "motley", model=options.model,
                            plan=options.folder / "plan.json", options=["--device-threads", "1"], links=SlowLinks(LINK))  # fmt: skip
    try:
        return [decoded_per_s(batch, PROMPT, TOKENS) for batch in BATCHES]
    finally:
        deployment.end()


class Namespaces:
    """Those of a deployment, without one."""

    def __init__(self):
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
        ip("link", "set", "lo", "up")
        links = SlowLinks(LINK)
        links.begin()
        for number in (2, 3):
            ip("netns", "add", f"m{number}")
            links.attach(number)


def wait_for(address):
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection((address, PORT), 1):
            return
        time.sleep(0.1)
    sys.exit(f"no rpc-server listens at {address}")


def llama_cpp(options):
    Namespaces()
    server = llama_cpp_program(options.cache, options.kernels, "ggml-rpc-server")
    for number in (2, 3):
        command = ["ip", "netns", "exec", f"m{number}", server, "-H", f"10.9.0.{number}", "-p", str(PORT), "-t", "1"]
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # ends with the namespace
        wait_for(f"10.9.0.{number}")
    servers = ",".join(f"10.9.0.{number}:{PORT}" for number in (2, 3))
    rates = []
    for batch in BATCHES:
        command = [llama_cpp_program(options.cache, options.kernels, "llama-batched-bench"), "-m", options.model, "-npp", PROMPT, "-ntg", TOKENS,
                   "-npl", batch, "-c", (PROMPT + TOKENS) * batch, "-t", 1, "-tb", 1, "-ngl", 99, "--rpc", servers, "-ctk", "bf16", "-ctv", "bf16",
                   "--output-format", "jsonl"]  # fmt: skip
        lines = [json.loads(line) for line in output_of(*command).splitlines() if line.startswith("{")]
        rates.append(lines[0]["speed_tg"])
    return rates


PROGRAMS = {"motley": motley, "llama.cpp": llama_cpp}


def measured(options, name):
    """In namespaces of its own, as another process."""
    words = ["--inside", name, "--cache", options.cache, "--type", options.type, "--folder", options.folder, "--build", options.build]
    result = subprocess.run([sys.executable, __file__, *map(str, words)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stdout + result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/motley-llama-rpc"))
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="folder with motley and motley-worker")
    parser.add_argument("--inside", choices=PROGRAMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.build = options.build.resolve()
    folder = options.cache / "llama-135m-text"
    options.model = folder / f"model-{options.type}.gguf"
    options.kernels = json.loads(output_of(ROOT / "build/release/decode_bench", "kernels"))[-1]
    if options.inside:
        inside()
        print(json.dumps(PROGRAMS[options.inside](options)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.model.exists():
        say("making the model")
        output_of(sys.executable, HERE / "make_model.py", folder, "--shape", "135m", "--tokenizer")
        output_of(options.build / "motley", "model", "quantize", folder, "--type", options.type, "-o", options.model)
    build_llama_cpp(options.cache, options.kernels, "llama-batched-bench", "ggml-rpc-server")
    make_plan(options)
    rates = {name: [] for name in PROGRAMS}
    for _ in range(options.rounds):
        for name, some in rates.items():
            some.append(measured(options, name))
            say(f"{name}: {', '.join(f'{rate:.1f}' for rate in some[-1])} tokens/s")
    print(f"{options.type}, {options.kernels}, one thread on each of two machines, {options.rounds} rounds\n")
    print("| sequences | motley tokens/s | llama.cpp | ratio |\n|---|---|---|---|")
    for i, batch in enumerate(BATCHES):
        mine, others = (statistics.median(some[i] for some in rates[name]) for name in PROGRAMS)
        print(f"| {batch} | {mine:.1f} | {others:.1f} | {mine / others:.2f} |")


if __name__ == "__main__":
    main()
