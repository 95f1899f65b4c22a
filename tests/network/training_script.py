"""`motley train --agents` over machines that are network namespaces; run by test_machines.py in namespaces of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / folder) for folder in ("bench/machines", "bench/network", "tests/parity")]
from deployment import Deployment, inside  # noqa: E402
import training  # noqa: E402
from training import stage  # noqa: E402

folder, build, scenario = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
inside()
MOTLEY, TALES = build / "motley", ROOT / "data/models/tales"
STEPS, LENGTH, BATCH = 6, 32, 8
MACHINES = {"m1": 2, "m2": 1, "m3": 1}  # devices


def made_plan(name, machines, replicas):
    text = 'format = "motley.cluster/1"\n' + "".join(
        f'[[machine]]\nname = "{machine}"\ndevices = ["core*{MACHINES[machine]}"]\n' for machine in machines)  # fmt: skip
    text += ('[[device_type]]\nname = "core"\nvendor = "cpu"\nmemory = "90 MiB"\nmemory_bandwidth = "10 GB/s"\n'
             'flops = { fp32 = "50 GFLOP/s" }\nreserve = "0 B"\n'
             '[network]\nwithin_machine = { latency = "20 us", bandwidth = "2 GB/s" }\n'
             'within_site = { latency = "0.2 ms", bandwidth = "1 Gbit/s" }\n')  # fmt: skip
    (work / "cluster.toml").write_text(text)
    (work / "job.toml").write_text('format = "motley.workload/1"\n[training]\nprecision = "fp32"\nclip_norm = 1.0\n'
                                   f"sequence_length = {LENGTH}\nglobal_batch = {BATCH}\n")  # fmt: skip
    plan = work / f"{name}.json"
    motley("plan", "train", "--cluster", work / "cluster.toml", "--model", TALES, "--workload", work / "job.toml", "-q", "-o", plan)
    value = json.loads(plan.read_text())
    del value["predicted"], value["search"]
    value["replicas"] = replicas
    plan.write_text(json.dumps(value))
    return plan


def motley(*words):
    result = subprocess.run([MOTLEY, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def committed(run):
    return len(training.losses(run)) if (run / "metrics.jsonl").exists() else 0


def same_states(run, other):
    for file in sorted((run / f"step-{STEPS}").glob("*.safetensors")):
        assert file.read_bytes() == (other / f"step-{STEPS}" / file.name).read_bytes(), file


def ends(deployment, code):
    assert deployment.process.wait(timeout=60) == code, deployment.text()


folder.mkdir(parents=True, exist_ok=True)
work = folder / "work"
work.mkdir(exist_ok=True)
layers = json.loads((TALES / "config.json").read_text())["num_hidden_layers"]
# Two replicas of unlike depth; tensor parallelism within a machine, and sharded states between two.
three = made_plan("three", MACHINES, [
    {"share": 0.5, "micro_batches": 2, "stages": [stage(0, 2, ["m1/0", "m1/1"], tp=2), stage(2, layers, ["m2/0"])]},
    {"share": 0.5, "micro_batches": 1, "stages": [stage(0, layers, ["m3/0"])]},
])  # fmt: skip
two = made_plan("two", ["m1", "m2"], [
    {"share": 1.0, "micro_batches": 4, "stages": [stage(0, 1, ["m1/0"]), stage(1, layers, ["m1/1", "m2/0"], dp=2, shard="zero1")]},
])  # fmt: skip
data = work / "tokens.npy"
numpy.save(data, numpy.random.default_rng(5).integers(6, 2048, LENGTH * 70 + 1).astype(numpy.uint16))
asked = ["--model", TALES, "--data", data, "--steps", STEPS]
motley("train", three, *asked, "--output", work / "local", "--local", "-q")

run = work / "run"
own = ["--processor-parts", "2", "--device-threads", "1"]  # sums differ with the number of threads
if scenario == "stored":
    etcd = ["etcd", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"]  # on loopback
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    etcd = subprocess.Popen(etcd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    own += ["--store", "etcd://127.0.0.1:2379/run"]
deployment = Deployment(folder / "machines", "200 MiB", [{"memory": "100 MiB", "options": ["--device-threads", "1"]}] * 2, motley=MOTLEY, serves=False,
                        training=[three, *asked, "--output", run, "--save-every", "2", *own])  # fmt: skip



def resume(*words):
    deployment.train(["--resume", run, *words, *own])
    deployment.start()


def killed():
    """Whichever process dies, what is resumed is the same run, and machines need no new link."""
    deployment.wait(lambda: committed(run) >= 1, "it does not train")
    os.kill(deployment.machines[1].workers()[0], signal.SIGKILL)
    ends(deployment, 5)
    assert any("the worker of m2/0 (rank 0 of stage r0/s1) was killed by signal 9" in line for line in deployment.log), deployment.text()
    resume()
    deployment.wait(lambda: committed(run) >= 3, "it is not resumed")
    deployment.process.kill()
    ends(deployment, -signal.SIGKILL)
    resume()
    ends(deployment, 0)
    assert training.losses(run) == training.losses(work / "local")
    same_states(run, work / "local")


def removed():
    """A machine is lost for good: the run goes on by a plan without it."""
    deployment.wait(lambda: committed(run) >= 3, "it does not train")
    deployment.machines[2].remove()
    ends(deployment, 5)
    assert any("the worker of m3/0" in line and "machine" in line for line in deployment.log), deployment.text()
    resume(two)
    ends(deployment, 0)
    assert numpy.allclose(training.losses(run), training.losses(work / "local"), rtol=1e-5, atol=0)


def stored():
    """Kept in etcd, the deployment needs no file of the machine where it was; and it has one driver at a time."""
    deployment.wait(lambda: committed(run) >= 1, "it does not train")
    other = subprocess.run([MOTLEY, "train", "--resume", run, *map(str, own)], capture_output=True, text=True, timeout=60)
    assert other.returncode == 5 and "etcd" in other.stderr, other.stderr
    deployment.process.kill()
    ends(deployment, -signal.SIGKILL)
    shutil.rmtree(deployment.folder / "m1" / "state")
    time.sleep(6)  # the lease runs out
    resume()
    ends(deployment, 0)
    assert training.losses(run) == training.losses(work / "local")
    etcd.kill()


def stopped():
    """Ctrl-C saves, and ends everything on all machines."""
    deployment.wait(lambda: committed(run) >= 1, "it does not train")
    deployment.process.send_signal(signal.SIGINT)
    ends(deployment, 130)
    assert (run / f"step-{committed(run)}/motley.json").exists()


{"killed": killed, "removed": removed, "stored": stored, "stopped": stopped}[scenario]()
for machine in deployment.machines[1:]:
    if machine.agent.poll() is None:
        machine.agent.wait(timeout=10)
assert not deployment.left(), deployment.left()
print("done")
