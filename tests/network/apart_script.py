"""A family's model over two machines that are network namespaces, on the stand-in of a GPU, with TLS between them: its tokens are the
processor's, and nothing of the host touches the device's memory. Run by test_apart_families.py in namespaces of its own."""

import http.client
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / folder) for folder in ("bench/machines", "bench/network", "tests/parity")]
from deployment import Deployment, inside  # noqa: E402

folder, build, name, every = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "all"
inside()
import engine  # noqa: E402
import models  # noqa: E402

MOTLEY, MIXTURE = build / "motley", ROOT / "tests/data/tales-mixture"  # whose tokenizer it has
PROMPTS, GENERATE = [models.tokens(count, seed=count) for count in (5, 40)], 6
# Stages by their devices: one to three, of one to three ranks.
LAYOUTS = [[["m2/0"], ["m3/0", "m3/1"]], [["m2/0", "m2/1", "m2/2"]], [["m2/0"], ["m3/0"], ["m2/1"]]]
CLUSTER = """format = "motley.cluster/1"
machine = [{ name = "m2", devices = ["core*3"] }, { name = "m3", devices = ["core*3"] }]
network = { within_machine = { latency = "20 us", bandwidth = "2 GB/s" }, within_site = { latency = "0.1 ms", bandwidth = "1 GB/s" } }

[[device_type]]
name = "core"
vendor = "cpu"
memory = "1 GiB"
memory_bandwidth = "10 GB/s"
flops = { fp32 = "100 GFLOP/s", bf16 = "100 GFLOP/s" }
reserve = "0 B"
"""


def plan_of(kind, stages):
    """In place of the plan's own stages these."""
    file = folder / "plan.json"
    result = subprocess.run([MOTLEY, "plan", "serve", "--cluster", folder / "cluster.toml", "--model", folder / "model", "--weight-type", kind, "--kv-type", kind,
                             "--max-tokens", "64", "--max-sequences", "4", "-q", "-o", file], capture_output=True, text=True)  # fmt: skip
    assert result.returncode == 0, result.stderr
    plan = {key: value for key, value in json.loads(file.read_text()).items() if key not in ("predicted", "unused", "search")}
    cuts = [models.LAYERS * number // len(stages) for number in range(len(stages) + 1)]
    plan["stages"] = [plan["stages"][0] | dict(id=f"r0/s{number}", layers=cuts[number:number + 2], devices=devices, embedding=number == 0,
                                               head=number == len(stages) - 1, kv_tokens=512) for number, devices in enumerate(stages)]  # fmt: skip
    plan["routes"] = [plan["routes"][0] | {"path": [{"stage": stage["id"], "layers": stage["layers"]} for stage in plan["stages"]]}]
    used = {device for devices in stages for device in devices}
    plan["unused"] = [{"device": device, "reason": "left out"} for device in (f"m{m}/{slot}" for m in (2, 3) for slot in range(3)) if device not in used]
    file.write_text(json.dumps(plan))
    return file


def expected(kind, stages):
    """Of one process: on processors, or in bf16 on the stand-in, which rounds otherwise (tests/parity/test_standins.py has how much)."""
    layout = engine.chain(*map(len, stages), cuts=[models.LAYERS * number // len(stages) for number in range(len(stages) + 1)])
    for stage in layout["stages"]:
        stage["backend"] = "cpu" if kind == "fp32" else "apart:0"
    case = dict(model=str(folder / "model"), weight_type=kind, kv_type=kind, layouts=[layout], scripts=[dict(name="alone", chunk=64)],
                requests=[dict(prompt=prompt, generate=GENERATE) for prompt in PROMPTS])  # fmt: skip
    return [run["tokens"] for run, _ in engine.run(case, folder)]


def ask(prompt):
    body = dict(prompt=prompt, max_tokens=GENERATE, temperature=0, ignore_eos=True, return_token_ids=True)
    connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    return json.loads(text)["choices"][0]["token_ids"]


folder.mkdir(parents=True)
(folder / "cluster.toml").write_text(CLUSTER)
models.make(name, folder / "model", vocab_size=json.loads((MIXTURE / "config.json").read_text())["vocab_size"])
os.environ["MOTLEY_TEST_DEVICES"] = str(build / "libapart_device.so")
for file in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(MIXTURE / file, folder / "model")
os.environ["MOTLEY_APART_SEED"] = str(list(models.MODELS).index(name) + 1)
cases = [(kind, stages) for stages in LAYOUTS for kind in ("fp32", "bf16")]
for number, (kind, stages) in enumerate(cases if every else cases[:1]):
    machine = {"memory": "200 MiB", "options": ["--processor-parts", "3", "--device-threads", "1", "--model", str(folder / "model")]}
    deployment = Deployment(folder / "d", "1 MiB", [machine, machine], motley=MOTLEY, model=folder / "model", plan=plan_of(kind, stages),
                            options=["--device-threads", "1"], keep=number > 0)  # fmt: skip
    before = deployment.plan()
    workers = before["workers"]
    assert {worker["device"] for worker in workers} == {device for devices in stages for device in devices}, deployment.text()
    assert {worker["kernels"] for worker in workers} == {"aten"}, workers
    answers, wanted = list(map(ask, PROMPTS)), expected(kind, stages)
    changed = deployment.plan()["epoch"] != before["epoch"]  # to a plan that pays more, of other ranks, which round otherwise
    assert answers == wanted or (changed and kind == "bf16"), f"{name} in {kind} on {stages}: {answers}, and one process: {wanted}"
    # No worker ends by itself, as after a fault.
    said = [line for log in (folder / "d").glob("*.log") for line in log.read_text().splitlines() if "] worker " in line]
    assert said and all(line.endswith(" starts") for line in said), deployment.text()
    assert deployment.end() == {}
    print(f"{kind} on {stages}: {answers}{', and another plan took effect' if changed else ''}", flush=True)
print("done")
