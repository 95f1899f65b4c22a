#!/usr/bin/env python3
"""Two sites that are 25 ms apart: seconds per step of the plan for them, predicted and measured, against a plan for the same devices that
ignores the network.

    sites.py [--plan NAME=FILE]... [--steps N] [--rounds N] [--model FOLDER] [--folder FOLDER] [--build FOLDER]

Each site has two machines, network namespaces with 0.22 of a processor for computing each, 1 Gbit/s between them and 500 Mbit/s to
each of the other site's. Threads that send, receive and add up run on the other processor, with the emulator, as they would on another
core of a machine. How fast such a machine trains the model is measured first (`motley cluster probe --workload`), and both plans
are made with that profile: one with the links as they are, one as if all were those within a site. Runs take turns; a run's figure is the
median of its steps but the first. Needs root and control groups of version 1.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/machines")]
from deployment import Deployment, Share, inside, ip, on_the_rest  # noqa: E402
from emulated import SlowLinks  # noqa: E402

PROCESSORS, DELAY_S, NEAR, FAR = 0.22, 25e-3, 125e6, 62.5e6  # bytes/s
LENGTH, BATCH = 128, 8
SHAPE = {"hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 8192}
CORE = ('[[device_type]]\nname = "core"\nvendor = "cpu"\nmemory = "3 GiB"\nmemory_bandwidth = "3 GB/s"\n'
        'flops = { fp32 = "20 GFLOP/s" }\nreserve = "0 B"\n')  # fmt: skip
WITHIN = 'within_site = { latency = "0.1 ms", bandwidth = "1 Gbit/s" }\n'
NETWORKS = {"for the sites": f'between_sites = {{ latency = "{1e3 * DELAY_S:g} ms", bandwidth = "500 Mbit/s" }}\n',
            "ignoring the network": WITHIN.replace("within_site", "between_sites")}  # fmt: skip


class TwoSites(SlowLinks):
    """What is far is one site: its machines are near each other. Packets are large, so that one processor carries them for all."""

    mtu = "9000"

    def attach(self, number):
        super().attach(number)
        if number in self.far:
            ip("-n", f"m{number}", "link", "set", "wire", "mtu", self.mtu)
        else:
            ip("-n", f"m{number}", "link", "set", "eth0", "mtu", self.mtu)
            ip("link", "set", f"v{number}", "mtu", self.mtu)

    def complete(self, machines):
        super().complete(machines)
        for device in ["bridge", *(f"far{one.number}" for one in machines if one.number not in self.far)]:
            ip("link", "set", device, "mtu", self.mtu)
        for one in self.far:
            for other in self.far:
                if one != other:
                    self.tell(f"link {one - 1} {other - 1} bytes_per_s={self.near_bytes_per_s} delay_s=0 queue_bytes=4e6")


def motley(options, *words):
    result = subprocess.run([options.build / "motley", *map(str, words)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"motley {' '.join(map(str, words))}: {result.stdout}{result.stderr}")
    return result.stdout


def made_model(options):
    if (options.folder / "model").exists():
        return options.folder / "model"
    config = options.folder / "config"
    config.mkdir(exist_ok=True)
    whole = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False, "max_position_embeddings": 2048,
             "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2, **SHAPE}  # fmt: skip
    (config / "config.json").write_text(json.dumps(whole))
    motley(options, "model", "init", config, "-o", options.folder / "model", "--seed", "1")
    return options.folder / "model"


def cluster(network):
    return 'format = "motley.cluster/1"\n' + "".join(
        f'[[machine]]\nname = "m{number}"\nsite = "{"here" if number < 4 else "there"}"\ndevices = ["core"]\n' for number in range(2, 6)
    ) + CORE + f"[network]\n{WITHIN}{network}"  # fmt: skip


def measured_profile(options):
    """Of one such machine by itself."""
    file = options.folder / "profile.json"
    if not file.exists():
        (options.folder / "one.toml").write_text(f'format = "motley.cluster/1"\n[[machine]]\nname = "m2"\ndevices = ["core"]\n{CORE}')
        share = Share("probe", PROCESSORS)
        words = ["cluster", "probe", "--cluster", options.folder / "one.toml", "--model", options.model, "--workload", options.folder / "job.toml",
                 "-q", "-o", file]  # fmt: skip
        result = subprocess.run(share.inside([options.build / "motley", *words]), capture_output=True, text=True)
        share.remove()
        if result.returncode:
            sys.exit(result.stdout + result.stderr)
    return file


def made_plans(options):
    (options.folder / "job.toml").write_text(f'format = "motley.workload/1"\n[training]\nprecision = "fp32"\nsequence_length = {LENGTH}\n'
                                             f"global_batch = {BATCH}\n")  # fmt: skip
    profile = measured_profile(options)
    plans = {}
    for name, network in NETWORKS.items():
        text, plans[name] = options.folder / "cluster.toml", options.folder / (name.replace(" ", "-") + ".json")
        if plans[name].exists():
            continue
        text.write_text(cluster(network))
        motley(options, "plan", "train", "--cluster", text, "--profile", profile, "--model", options.model, "--workload", options.folder / "job.toml",
               "--deadline", "60 s", "-q", "-o", plans[name])  # fmt: skip
    return plans | dict(given.split("=", 1) for given in options.plan)


def predicted_s(options, plan):
    """By the links as they are."""
    value = json.loads(Path(plan).read_text())
    (options.folder / "cluster.toml").write_text(cluster(NETWORKS["for the sites"]))
    value["cluster"] = json.loads(motley(options, "cluster", "show", options.folder / "cluster.toml", "--json"))
    (options.folder / "priced.json").write_text(json.dumps(value))
    return json.loads(motley(options, "explain", options.folder / "priced.json", "--cost", "motley", "--json"))["total_s"]


def run(options, plan):
    """Seconds of each step, in namespaces of their own."""
    words = [sys.executable, __file__, "--folder", options.folder, "--build", options.build, "--model", options.model, "--steps", options.steps, "--inside", plan]
    result = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stdout + result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


def keep_apart(member, worker, over):
    """Of the worker's threads the one that computes has the machine's share, the others have the rest; new ones begin where they are made.
    The first that has used a tenth of a second is the one that computes."""
    tasks, rest, computing = Path("/proc") / str(worker) / "task", os.sched_getaffinity(0), None
    while not over.wait(0.1):
        try:
            for thread in (task.name for task in tasks.iterdir()):
                words = (tasks / thread / "stat").read_text().rpartition(")")[2].split()
                if computing is None and int(words[11]) + int(words[12]) >= os.sysconf("SC_CLK_TCK") / 10:
                    computing = thread
                (member.share.folder if thread == computing else member.share.folder.parent).joinpath("tasks").write_text(thread)
                os.sched_setaffinity(int(thread), {0} if thread == computing else rest)
        except OSError:  # a thread has ended
            pass


def train(options):
    inside()
    on_the_rest()
    data, results = options.folder / "tokens.npy", options.folder / f"run-{options.inside.stem}"
    shutil.rmtree(results, ignore_errors=True)
    machine = {"memory": "3 GiB", "processors": PROCESSORS, "options": ["--device-threads", "1", "--model", str(options.model)]}
    asked = [options.inside, "--model", options.model, "--data", data, "--output", results, "--steps", options.steps]
    deployment = Deployment(options.folder / "machines", "64 MiB", [machine] * 4, motley=options.build / "motley", serves=False, training=asked,
                            links=TwoSites(NEAR, [4, 5], FAR, DELAY_S))  # fmt: skip
    for member in deployment.machines[1:]:
        deployment.wait(member.workers, f"{member.name} has no worker")
    over = threading.Event()
    keepers = [threading.Thread(target=keep_apart, args=(member, member.workers()[0], over)) for member in deployment.machines[1:]]
    for keeper in keepers:
        keeper.start()
    code = deployment.process.wait()
    over.set()
    for keeper in keepers:
        keeper.join()
    assert code == 0, deployment.text()
    for member in deployment.machines[1:]:
        member.agent.wait()
        member.share.remove()
    print(json.dumps([json.loads(line)["seconds"] for line in (results / "metrics.jsonl").read_text().splitlines()]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="append", default=[], metavar="NAME=FILE", help="measure this one too; repeatable")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", type=Path, help="folder; default: random weights of 19 million parameters")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/motley-sites"), help="keeps profile and plans, which are used again, and the last runs")
    parser.add_argument("--build", type=Path, default=Path(os.environ.get("MOTLEY_BUILD", ROOT / "build/release")))
    parser.add_argument("--inside", type=Path, help="for the script itself")
    options = parser.parse_args()
    options.build = options.build.resolve()
    if options.inside:
        return train(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    options.model = options.model or made_model(options)
    plans = made_plans(options)
    import numpy

    vocabulary = json.loads((options.model / "config.json").read_text())["vocab_size"]
    numpy.save(options.folder / "tokens.npy", numpy.random.default_rng(1).integers(0, vocabulary, LENGTH * 400 + 1).astype(numpy.uint16))
    measured = {name: [] for name in plans}
    for _ in range(options.rounds):
        for name, plan in plans.items():
            measured[name].append(statistics.median(run(options, plan)[1:]))
            print(name, measured[name], file=sys.stderr, flush=True)
    best = statistics.median(measured["for the sites"])
    print("| plan | predicted s | measured s | predicted / measured | slower than for the sites |\n|---|---|---|---|---|")
    for name, plan in plans.items():
        seconds, expected = statistics.median(measured[name]), predicted_s(options, plan)
        print(f"| {name} | {expected:.2f} | {seconds:.2f} | {expected / seconds:.2f} | {seconds / best:.2f} x |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
