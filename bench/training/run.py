"""`motley train` against torch on the same processes: the same model, tokens and global batch, one thread for each process.

    run.py [--model FOLDER] [--length 128] [--batch 8] [--steps 4] [--rounds 3] [--only CASE]...

Runs with the reference environment. Both sides take turns, `rounds` times over; a run's figure is its fastest step but the first, the
table holds medians over the rounds. Without --model the shape of 135 million parameters is made (bench/decode/make_model.py's), untied:
torch.distributed.pipelining has no tied embeddings.

Cases: `data parallel` over two processes, `pipeline` of two stages, `mixed`: four processes, for motley a replica of two stages and one
whose two ranks divide the first half of the layers unequally (tensor parallelism) and the states of the second half (zero2), and `unlike`:
three processes that may use a whole core, half of one and a quarter of one (processor quotas), where torch shares the batch alike and motley
as planned. DistributedDataParallel weighs ranks alike: its losses are those of the whole batch where the processes divide it evenly.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build/release"))
sys.path[:0] = [str(ROOT / "tests/parity")]
import quota  # noqa: E402
import training  # noqa: E402  (plans by hand)

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30,
          "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": False,
          "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2}
QUOTAS = [1.0, 0.5, 0.25]  # cores


def made_model(folder):
    (folder / "config").mkdir()
    (folder / "config/config.json").write_text(json.dumps(CONFIG))
    subprocess.run([BUILD / "motley", "model", "init", folder / "config", "-o", folder / "model", "--seed", "1"], check=True,
                   stdout=subprocess.DEVNULL)
    return folder / "model"


def stage(first, end, *devices, **rest):
    return training.stage(first, end, training.boxes(*devices), **rest)


def planned(options, folder, speeds):
    """The planner's own choice for devices of these speeds, in shares of the fastest."""
    text = 'format = "motley.cluster/1"\n[[machine]]\nname = "box"\ndevices = [' + ", ".join(f'"d{i}"' for i in range(len(speeds))) + "]\n"
    for i, speed in enumerate(speeds):
        text += (f'[[device_type]]\nname = "d{i}"\nvendor = "cpu"\nmemory = "16 GiB"\nmemory_bandwidth = "{10 * speed} GB/s"\n'
                 f'flops = {{ fp32 = "{100 * speed} GFLOP/s" }}\nreserve = "0 B"\n')
    (folder / "cluster.toml").write_text(text)
    (folder / "job.toml").write_text(f'format = "motley.workload/1"\n[training]\nsequence_length = {options.length}\n'
                                     f'global_batch = {options.batch}\nprecision = "fp32"\n')
    subprocess.run([BUILD / "motley", "plan", "train", "--cluster", folder / "cluster.toml", "--model", options.model, "--workload",
                    folder / "job.toml", "-q", "-o", folder / "planned.json"], check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "planned.json").read_text())["replicas"]


class Case:
    def __init__(self, name, peer, ranks, replicas, micro_batches, quotas=None):
        self.name, self.peer, self.ranks, self.replicas, self.micro_batches, self.quotas = name, peer, ranks, replicas, micro_batches, quotas


def cases(options, layers, folder):
    batch = options.batch
    half = batch // 2
    yield Case("data parallel", "ddp", 2,
               [{"share": 0.5, "micro_batches": half // 2, "stages": [stage(0, layers, r)]} for r in range(2)], half // 2)
    yield Case("pipeline", "pipeline", 2,
               [{"share": 1.0, "micro_batches": half, "stages": [stage(0, layers // 2, 0), stage(layers // 2, layers, 1)]}], half)
    mixed = stage(0, layers, 2, 3, shares=[0.6, 0.4])
    mixed["strategies"] = [{**mixed["strategies"][0], "layers": [0, layers // 2], "tp": 2},
                           {**mixed["strategies"][0], "layers": [layers // 2, layers], "dp": 2, "shard": "zero2"}]
    replicas = [{"share": 0.5, "micro_batches": half // 2, "stages": [stage(0, layers // 2, 0), stage(layers // 2, layers, 1)]},
                {"share": 0.5, "micro_batches": 1, "stages": [mixed]}]
    yield Case("mixed, DDP", "ddp", 4, replicas, max(1, batch // 8))
    yield Case("mixed, 1F1B", "pipeline", 4, replicas, half)
    if os.access(quota.GROUPS / "cpu.cfs_quota_us", os.W_OK):
        replicas = planned(options, folder, QUOTAS)
        yield Case("unlike, DDP", "ddp", 3, replicas, max(1, batch // 6), QUOTAS)
        yield Case("unlike, 1F1B", "pipeline", 3, replicas, half, QUOTAS)


@contextlib.contextmanager
def throttled(case, processes):
    """Holds each rank's process to its quota; `processes` says which they are, once they are there."""
    groups = [quota.made(processors) for processors in case.quotas or []]
    for group, process in zip(groups, processes() if groups else []):
        quota.hold(group, process)
    yield
    for group in groups:
        group.rmdir()


def workers_of(driver, count):
    while True:
        listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(driver)], capture_output=True, text=True).stdout.splitlines()
        workers = sorted(int(line.split()[0]) for line in listed if "motley-worker" in line)
        if len(workers) == count:
            return workers
        time.sleep(0.01)


@contextlib.contextmanager
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    yield number


def motley(options, case, tokens, folder):
    config = json.loads((options.model / "config.json").read_text())
    training.LENGTH = options.length
    plan = training.plan_of(config, case.replicas, options.batch, training={"eps": 1e-8}, memory="16 GiB")
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    driver = subprocess.Popen([BUILD / "motley", "train", folder / "plan.json", "--model", options.model, "--data", tokens, "--output",
                               folder / "run", "--steps", str(options.steps), "--no-shuffle", "--local", "-q"])
    with throttled(case, lambda: workers_of(driver.pid, case.ranks)):
        if driver.wait():
            sys.exit("motley train failed")
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(folder / "run")
    return [line["seconds"] for line in lines], [line["loss"] for line in lines]


def torch(options, case, tokens):
    with port() as number:
        command = [sys.executable, HERE / "peers.py", case.peer, options.model, tokens, "--ranks", case.ranks, "--port", number, "--length",
                   options.length, "--batch", options.batch, "--micro-batches", case.micro_batches, "--steps", options.steps]
        ranks = [subprocess.Popen(list(map(str, [*command, "--rank", r])), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for r in range(case.ranks)]
        with throttled(case, lambda: [rank.pid for rank in ranks]):
            outputs = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("\n".join(errors for _, errors in outputs))
    figures = json.loads(outputs[0][0].splitlines()[-1])
    return figures["seconds"], figures["losses"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path)
    for name, default in [("length", 128), ("batch", 8), ("steps", 4), ("rounds", 3)]:
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        options.model = options.model or made_model(folder)
        config = json.loads((options.model / "config.json").read_text())
        count = options.length * options.batch * options.steps + 1
        numpy.save(folder / "tokens.npy",
                   numpy.random.default_rng(1).integers(3, config["vocab_size"], count).astype(numpy.uint16))
        print(f"{'case':<16}{'motley':>10}{'torch':>10}{'ratio':>8}   seconds per step of {options.batch} x {options.length} tokens")
        for case in cases(options, config["num_hidden_layers"], folder):
            if options.only and case.name not in options.only:
                continue
            best, losses = {"motley": [], "torch": []}, {}
            for _ in range(options.rounds):
                for side in best:
                    seconds, losses[side] = (motley(options, case, folder / "tokens.npy", folder) if side == "motley" else
                                             torch(options, case, folder / "tokens.npy"))
                    best[side].append(min(seconds[1:]))
            ours, theirs = (statistics.median(best[side]) for side in ("motley", "torch"))
            off = max(abs(a / b - 1) for a, b in zip(losses["motley"], losses["torch"]))
            print(f"{case.name:<16}{ours:>10.2f}{theirs:>10.2f}{theirs / ours:>7.2f}x   losses within {off:.0e}", flush=True)


if __name__ == "__main__":
    main()
