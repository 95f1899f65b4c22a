"""A model of a billion parameters in bf16 (2 GB), most of it from disk, in a memory control group of 1 GiB for the whole process tree: how much of
the disk's direct read rate one stream reaches, and tokens/s of many streams against `accelerate`'s disk offload and llama.cpp, which maps
its file. All in the same group, one after the other.

    run.py [--cache FOLDER] [--memory MIB] [--disk-rate MB/S] [--streams 1 4 16 64 128] [--skip motley llama.cpp accelerate] [--threads N]
           [--tokens N] [--results FILE]

Runs with the reference environment, as root where control groups are made (version 1 or 2); elsewhere nothing is held to the memory, and
that is said. The model stays in the cache folder; MOTLEY_SPILL_DIR names the disk (default: the cache folder's). With --results runs add
up in a file, and the table holds the medians. Placements in which only a part is on disk: placements.py.
"""

import argparse
import importlib.util
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import groups
from model import model_in

ROOT = Path(__file__).resolve().parents[2]

ACCELERATE = ["accelerate==1.15.0", "psutil==7.2.2"]

MIB = 1 << 20
PROMPT = 16
LARGEST_STEP = 512  # tokens, as llama.cpp has it
BESIDE_THE_PLAN = 128  # MiB that the driver and the worker take in addition to the plan's bytes
CLUSTER = """
format = "motley.cluster/1"
name = "little memory"

[[machine]]
name = "box"
devices = ["processor*1"]
disk = {{ capacity = "100 GB", read = "1 GB/s", write = "1 GB/s" }}

[[device_type]]
name = "processor"
vendor = "cpu"
memory = "{memory}"
memory_bandwidth = "10 GB/s"
flops = {{ bf16 = "100 GFLOP/s", fp32 = "100 GFLOP/s" }}
reserve = "0 B"
"""


def say(text):
    print(text, file=sys.stderr, flush=True)


def direct_read_rate(folder, threads, size=1024 * MIB, piece=4 * MIB):
    """Bytes/s of sequential reads past the page cache, by this many threads at once."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        block = os.urandom(piece)
        for _ in range(size // piece):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        descriptor = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        offsets = iter(range(0, size, piece))
        lock = threading.Lock()

        def read():
            buffer = mmap.mmap(-1, piece)
            while True:
                with lock:
                    offset = next(offsets, None)
                if offset is None:
                    return
                assert os.preadv(descriptor, [buffer], offset) == piece
        workers = [threading.Thread(target=read) for _ in range(threads)]
        start = time.monotonic()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds = time.monotonic() - start
        os.close(descriptor)
    return size / seconds


def counters(process):
    """(bytes read from disk, bytes written, anonymous bytes) of a process; None where it has ended."""
    try:
        io = dict(line.split(": ") for line in Path(f"/proc/{process}/io").read_text().splitlines())
        status = Path(f"/proc/{process}/status").read_text()
        anonymous = int(status.split("RssAnon:")[1].split()[0]) * 1024
        return int(io["read_bytes"]), int(io["write_bytes"]), anonymous
    except (OSError, IndexError, KeyError):
        return None


def workers_of(process):
    try:
        tasks = Path(f"/proc/{process}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
        return [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "motley-worker\n"]
    except OSError:
        return []


def make_plan(options, folder, streams):
    """One processor with room for this many sequences; as many layers as fit stay in memory, and the others stream from disk."""
    (folder / "roomy.toml").write_text(CLUSTER.format(memory="16 GiB"))
    plan_file = folder / f"plan-{streams}.json"
    subprocess.run([options.build / "motley", "plan", "serve", "--cluster", folder / "roomy.toml", "--model", options.model, "--max-tokens",
                    str(max(64, min(LARGEST_STEP, streams * PROMPT))), "--max-sequences", str(streams), "--no-roles", "-q", "-o", plan_file],
                   check=True, stdout=subprocess.DEVNULL)
    plan = json.loads(plan_file.read_text())
    stage = plan["stages"][0]
    block, layers = plan["step"]["block_tokens"], plan["model"]["config"]["num_hidden_layers"]
    stage["kv_tokens"] = streams * -(-(PROMPT + options.tokens + 1) // block) * block
    plan["cluster"]["device_type"][0]["memory"] = f"{options.memory - BESIDE_THE_PLAN} MiB"
    plan["predicted"].pop("memory_bytes", None)
    for resident in range(layers, -1, -1):
        stage["offload"] = dict(batches=1, weights=dict(device=resident / layers, host=0, disk=1 - resident / layers), kv=dict(device=1),
                                activations=dict(device=1))
        plan_file.write_text(json.dumps(plan))
        if subprocess.run([options.build / "motley", "verify", plan_file], capture_output=True).returncode == 0:
            return plan_file
    sys.exit(f"{streams} sequences do not fit {options.memory} MiB")


def run_motley(options, group, folder, streams):
    """A report of `motley generate` on this many requests at once."""
    plan = make_plan(options, folder, streams)
    source, answers = folder / "in.jsonl", folder / f"out-{streams}.jsonl"
    source.write_text("".join(json.dumps(dict(
        custom_id=str(number), method="POST", url="/v1/completions",
        body=dict(prompt=[(7 * i + 31 * number) % 31000 + 50 for i in range(PROMPT)], max_tokens=options.tokens, ignore_eos=True, temperature=0,
                  return_token_ids=True))) + "\n" for number in range(streams)))
    answers.unlink(missing_ok=True)
    command = [options.build / "motley", "generate", plan, "--model", options.model, "--input", source, "--output", answers,
               "--worker-threads", options.threads]
    process = subprocess.Popen(group.command(command), stderr=subprocess.PIPE, text=True,
                               env=os.environ | {"MOTLEY_SPILL_DIR": str(options.spill)})
    samples, ready = [], []

    def watch():
        for line in process.stderr:
            say("    " + line.rstrip())
            if "first token" in line or "ready" in line:
                ready.append(time.monotonic())
    threading.Thread(target=watch, daemon=True).start()
    peak = 0
    while process.poll() is None:
        for worker in workers_of(process.pid):
            if found := counters(worker):
                samples.append((time.monotonic(), *found))
                peak = max(peak, found[2])
        time.sleep(0.05)
    if process.returncode != 0:
        sys.exit(f"motley generate ended with {process.returncode}")
    written = max(sample[2] for sample in samples)
    steady = [sample for sample in samples if sample[2] == written]  # the weights are on disk
    begin = next(sample for sample in steady if sample[1] > steady[0][1] + 100 * MIB)
    end = next(sample for sample in samples if sample[1] == samples[-1][1])
    tokens = sum(json.loads(line)["response"]["body"]["usage"]["completion_tokens"] for line in answers.read_text().splitlines())
    return dict(streams=streams, tokens=tokens, read_bytes_per_s=(end[1] - begin[1]) / (end[0] - begin[0]),
                seconds=end[0] - steady[0][0], tokens_per_s=tokens / (end[0] - steady[0][0]), anonymous_bytes=peak,
                read_bytes=end[1] - steady[0][1])


def decode_bench():
    """bench/decode/run.py, which builds llama.cpp."""
    spec = importlib.util.spec_from_file_location("decode_run", ROOT / "bench/decode/run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forget(file):
    """Out of the page cache: what other programs have read is not counted as the group's memory, and would be read from there."""
    with open(file, "rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_llama_cpp(options, group, streams):
    """Tokens/s, prompts included; None where it ends without any."""
    decode = decode_bench()
    decode.build_llama_cpp(options.cache, options.kernels, "llama-batched-bench")
    file = options.model / "model-bf16.gguf"
    if not file.exists():
        decode.output_of(options.build / "motley", "model", "quantize", options.model, "--type", "bf16", "-o", file)
    command = [decode.llama_cpp_program(options.cache, options.kernels, "llama-batched-bench"), "-m", file, "-npp", PROMPT, "-ntg", options.tokens,
               "-npl", streams, "-c", (PROMPT + options.tokens) * streams, "-t", options.threads, "-tb", options.threads, "-ctk", "bf16", "-ctv",
               "bf16", "--output-format", "jsonl"]
    forget(file)
    result = subprocess.run(group.command(command), capture_output=True, text=True)
    for line in result.stdout.splitlines():
        if line.startswith("{"):
            report = json.loads(line)
            return streams * options.tokens / (report["t_pp"] + report["t_tg"])
    return None


def run_accelerate(options, group, streams):
    """The same by accelerate."""
    packages = options.cache / "accelerate"
    if not packages.exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", packages, *ACCELERATE], check=True)
    forget(options.model / "model.safetensors")  # which it offloads to
    with tempfile.TemporaryDirectory(dir=options.spill) as spill:
        command = [sys.executable, __file__, "--generate-with-accelerate", options.model, str(streams), str(options.threads),
                   str(options.memory // 2), spill, str(min(options.tokens, options.accelerate_tokens))]
        result = subprocess.run(group.command(command), capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(packages)})
    return float(result.stdout) if result.returncode == 0 else None


def generate_with_accelerate(folder, streams, threads, memory, spill, tokens):
    """In a process of its own: layers beyond `memory` MiB are on disk."""
    import torch
    from transformers import AutoModelForCausalLM
    streams, count = int(streams), int(tokens)
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="auto", max_memory={"cpu": f"{memory}MiB"},
                                                 offload_folder=spill).eval()
    tokens = torch.randint(50, 31000, (streams, PROMPT))
    begin = time.perf_counter()
    with torch.inference_mode():
        model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, min_new_tokens=count, max_new_tokens=count)
    print(streams * count / (time.perf_counter() - begin))


def main():
    if sys.argv[1:2] == ["--generate-with-accelerate"]:
        return generate_with_accelerate(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--memory", type=int, default=1024, help="of the whole process tree, MiB (default 1024)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 64, 128])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="that each stream generates (default 32)")
    parser.add_argument("--accelerate-tokens", type=int, default=32, help="the same with accelerate, which takes long (default 32)")
    parser.add_argument("--disk-rate", type=int, default=0, metavar="MB/S", help="hold reads, and writes, of the disk to this")
    parser.add_argument("--skip", nargs="*", default=[], choices=["motley", "llama.cpp", "accelerate"])
    parser.add_argument("--kernels", default="avx2", help="what llama.cpp is compiled for (default avx2)")
    parser.add_argument("--results", type=Path, help="file in which runs add up")
    options = parser.parse_args()
    options.model = model_in(options.cache)
    options.spill = Path(os.environ.get("MOTLEY_SPILL_DIR", options.cache))
    kept = json.loads(options.results.read_text()) if options.results and options.results.exists() else {}
    limits = [groups.memory_group(options.memory * MIB)]
    if options.disk_rate:
        limits.append(groups.disk_group(options.spill, options.disk_rate * 1_000_000))
    try:
        with tempfile.TemporaryDirectory() as folder:
            for streams in options.streams:
                for name, value in measure(options, groups.Groups(limits), Path(folder), streams):
                    kept.setdefault(str(streams), {}).setdefault(name, []).append(value)
                    if options.results:
                        options.results.write_text(json.dumps(kept, indent=1) + "\n")
    finally:
        for limit in limits:
            limit.remove()
    print_table(kept)


def measure(options, group, folder, streams):
    """(what, value) of each program that is not left out; tokens/s under its name."""
    if "motley" not in options.skip:
        direct = options.disk_rate * 1_000_000 or max(direct_read_rate(options.spill, threads) for threads in (1, 2, 4))
        report = run_motley(options, group, folder, streams)
        yield "motley", report["tokens_per_s"]
        yield "share of direct reads", report["read_bytes_per_s"] / direct
        yield "anonymous MiB", report["anonymous_bytes"] / MIB
    for name, run in (("llama.cpp", run_llama_cpp), ("accelerate", run_accelerate)):
        if name not in options.skip and (speed := run(options, group, streams)):
            yield name, speed


def print_table(kept):
    print(f"{'streams':>7} {'motley':>12} {'of direct':>9} {'anonymous':>10} {'llama.cpp':>12} {'accelerate':>12}")
    for streams, values in sorted(kept.items(), key=lambda item: int(item[0])):
        def cell(name, form, width):
            return f"{format(statistics.median(values[name]), form[0]) + form[1] if name in values else '-':>{width}}"
        print(f"{streams:>7} {cell('motley', ('.2f', ' tok/s'), 12)} {cell('share of direct reads', ('.0%', ''), 9)} "
              f"{cell('anonymous MiB', ('.0f', ' MiB'), 10)} {cell('llama.cpp', ('.2f', ' tok/s'), 12)} "
              f"{cell('accelerate', ('.2f', ' tok/s'), 12)}")


if __name__ == "__main__":
    main()
