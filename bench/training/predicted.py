"""Steps of `motley train`, and what `motley explain` predicts for them from a measured profile: unlike plans of one model.

    predicted.py [--rounds 12] [--steps 6] [--length 64] [--batch 8] [--only PLAN]... [--keep FILE]

All plans are for one or two workers of one thread, so that two cores are enough. In every round `motley cluster probe --workload` measures
the profile of as many workers before their plans run. What others do on a rented machine changes its speed within parts of a second and
within minutes: times of parts add up to a step's if they are means, as in the probe, and many rounds show the same of the machine to all
plans. The table has the means of all steps but the first of each run, and of what the profiles predict. The last lines: the mean of the
errors, and the pairs that are predicted more than a tenth apart and ran in the other order. With --keep rounds of several calls count
together.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build/release"))
sys.path[:0] = [str(ROOT / "tests/parity")]
import training  # noqa: E402

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 6,
          "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1408, "vocab_size": 4096, "tie_word_embeddings": False,
          "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2}
LAYERS = CONFIG["num_hidden_layers"]
ONE, OTHER = "box/0", "box/1"
BOTH = [ONE, OTHER]


def cluster_of(devices):
    return {"format": "motley.cluster/1", "machine": [{"name": "box", "devices": [f"cpu*{devices}"]}],
            "device_type": [{"name": "cpu", "vendor": "cpu", "memory": "16 GiB", "memory_bandwidth": "12 GB/s",
                             "flops": {"fp32": "100 GFLOP/s"}, "reserve": "0 B"}]}


def stage(first, end, devices, tp=1, **rest):
    return training.stage(first, end, devices, tp=tp, dp=len(devices) // tp, **rest)


def replica(share, micro_batches, *stages):
    return {"share": share, "micro_batches": micro_batches, "stages": list(stages)}


def plans():
    """By name: replicas, schedule, and whether the sums of gradients overlap with the backward passes."""
    half, most = LAYERS // 2, LAYERS - 2

    def whole(device, **strategy):
        return stage(0, LAYERS, [device], **strategy)

    def two(cut, **strategy):
        return [stage(0, cut, [ONE], **strategy), stage(cut, LAYERS, [OTHER], **strategy)]

    return {
        "one device": ([replica(1, 4, whole(ONE))], "1f1b", False),
        "one device, recomputation": ([replica(1, 8, whole(ONE, recompute=True))], "1f1b", False),
        "two replicas": ([replica(0.5, 2, whole(ONE)), replica(0.5, 2, whole(OTHER))], "1f1b", False),
        "the same, overlap, single sequences": ([replica(0.5, 4, whole(ONE)), replica(0.5, 4, whole(OTHER))], "1f1b", True),
        "unlike replicas": ([replica(0.75, 3, whole(ONE)), replica(0.25, 2, whole(OTHER, recompute=True))], "1f1b", True),
        "two stages, 1F1B": ([replica(1, 8, *two(half))], "1f1b", False),
        "two stages, few micro-batches, 1F1B": ([replica(1, 4, *two(half))], "1f1b", False),
        "the same, ZB-H1": ([replica(1, 4, *two(half))], "zb-h1", False),
        "unlike stages, GPipe": ([replica(1, 4, *two(most))], "gpipe", False),
        "unlike stages, recomputation, GPipe": ([replica(1, 2, *two(2, recompute=True))], "gpipe", False),
        "tensor parallelism": ([replica(1, 4, stage(0, LAYERS, BOTH, tp=2))], "1f1b", False),
        "the same, three quarters and one": ([replica(1, 4, stage(0, LAYERS, BOTH, tp=2, shares=[0.75, 0.25]))], "1f1b", False),
        "zero1": ([replica(1, 2, stage(0, LAYERS, BOTH, shard="zero1"))], "1f1b", False),
        "zero2": ([replica(1, 4, stage(0, LAYERS, BOTH, shard="zero2"))], "1f1b", False),
        "zero3, recomputation": ([replica(1, 2, stage(0, LAYERS, BOTH, shard="zero3", recompute=True))], "1f1b", False),
        "zero3, single sequences": ([replica(1, 4, stage(0, LAYERS, BOTH, shard="zero3"))], "1f1b", False),
    }


def devices_of(replicas):
    return len({device for replica in replicas for stage in replica["stages"] for device in stage["devices"]})


def run(*command):
    result = subprocess.run(list(map(str, [BUILD / "motley", *command])), capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    return result.stdout


class Model:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.job = {"format": "motley.workload/1",
                    "training": {"sequence_length": options.length, "global_batch": options.batch, "precision": "fp32"}}
        for name, content in [("config/config.json", CONFIG), ("job.json", self.job)]:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(content))
        run("model", "init", folder / "config", "-o", folder / "model", "--seed", 1)
        tokens = numpy.random.default_rng(1).integers(3, CONFIG["vocab_size"], options.length * options.batch * options.steps + 1)
        numpy.save(folder / "tokens.npy", tokens.astype(numpy.uint16))

    def profile(self, devices):
        (self.folder / "cluster.json").write_text(json.dumps(cluster_of(devices)))
        run("cluster", "probe", "--cluster", self.folder / "cluster.json", "--model", self.folder / "model", "--workload",
            self.folder / "job.json", "--seconds", 30 * devices, "-q", "-o", self.folder / "probed.json")
        return json.loads((self.folder / "probed.json").read_text())

    def plan(self, replicas, schedule, overlap, profile=None):
        cluster = cluster_of(devices_of(replicas))
        plan = {"format": "motley.plan/1", "kind": "train", "model": {"name": "middle", "config": CONFIG}, "cluster": cluster,
                "workload": self.job, "replicas": replicas, "schedule": schedule, "sync": {"algorithm": "ring", "overlap": overlap}}
        path = self.folder / "plan.json"
        path.write_text(json.dumps({**plan, "profile": profile} if profile else plan))
        return path

    def predicted(self, plan, profile):
        return json.loads(run("explain", self.plan(*plan, profile), "--json"))["total_s"]

    def measured(self, plan):
        run("train", self.plan(*plan), "--model", self.folder / "model", "--data", self.folder / "tokens.npy", "--output",
            self.folder / "run", "--steps", self.options.steps, "--no-shuffle", "--local", "-q")
        lines = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        shutil.rmtree(self.folder / "run")
        return [line["seconds"] for line in lines[1:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in [("rounds", 12), ("length", 64), ("batch", 8), ("steps", 6)]:
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--only", action="append")
    parser.add_argument("--keep", type=Path, help="go on with the rounds in this file, and add to it")
    options = parser.parse_args()
    chosen = {name: plan for name, plan in plans().items() if not options.only or name in options.only}
    with tempfile.TemporaryDirectory() as made:
        model = Model(options, Path(made))
        # Of a run: the number of the profile before it, and the seconds of its steps.
        profiles, runs = [], {name: [] for name in chosen}
        if options.keep and options.keep.exists():
            profiles, runs = json.loads(options.keep.read_text())
        for _ in range(options.rounds):
            for devices in (1, 2):
                names = [name for name, (replicas, *_) in chosen.items() if devices_of(replicas) == devices]
                if not names:
                    continue
                profiles.append(model.profile(devices))
                for name in names:
                    runs[name].append([len(profiles) - 1, model.measured(chosen[name])])
            if options.keep:
                options.keep.write_text(json.dumps([profiles, runs]))
        print(f"{'plan':<38}{'predicted':>10}{'measured':>10}{'error':>8}   seconds per step of {options.batch} x {options.length} tokens")
        figures = []
        for name, plan in chosen.items():
            rounds = [(model.predicted(plan, profiles[number]), seconds) for number, seconds in runs[name]]
            expected = statistics.mean(predicted for predicted, _ in rounds)
            found = statistics.mean(itertools.chain.from_iterable(seconds for _, seconds in rounds))
            figures.append((name, expected, found, expected / found - 1))
            print(f"{name:<38}{expected:>10.3f}{found:>10.3f}{100 * figures[-1][-1]:>+7.1f}%   "
                  + " ".join(f"{predicted:.3f}/{statistics.mean(seconds):.3f}" for predicted, seconds in rounds))
    pairs = [(a, b) for a, b in itertools.combinations(figures, 2) if max(a[1], b[1]) > 1.1 * min(a[1], b[1])]
    wrong = [(a, b) for a, b in pairs if (a[1] < b[1]) != (a[2] < b[2])]
    print(f"mean error {100 * statistics.mean(abs(figure[-1]) for figure in figures):.1f} %; of {len(pairs)} pairs that are predicted more "
          f"than 10 % apart, {len(wrong)} ran in the other order")
    for a, b in wrong:
        print(f"  {a[0]} and {b[0]}")


if __name__ == "__main__":
    main()
