"""Machines of unlike speed, memory and distance: what `motley up` finds of them, and tokens/s of any plan for them, measured and simulated.

Machines are namespaces, each with a part of one processor for its workers (control groups of version 1, root), joined by emulated links.
The first runs the driver alone. A script that uses this calls run(), which starts it again with --inside, in namespaces of its own."""

import json
import subprocess
import sys
from pathlib import Path

from deployment import ROOT, Deployment, inside, on_the_rest
from emulated import SlowLinks
from load import tokens_per_s

DRIVER, DRIVER_MEMORY = "m1/0", "1 MiB"
PROMPT, TOKENS, STREAMS = 16, 32, 16
KV_TOKENS = STREAMS * 64
STEP = ["--max-tokens", "64", "--max-sequences", str(STREAMS)]
SEARCH = ["--max-batch", str(STREAMS), "--kv-type", "bf16"]
NEAR = 125e6  # bytes/s


def workload(tokens):
    return f'format = "motley.workload/1"\n[[class]]\nname = "chat"\nprompt_tokens = {PROMPT}\noutput_tokens = {tokens}\n'


class Setting:
    """Machines from the second on, as (processors, MiB, devices), and the links to the one that is far: bytes/s, one way in seconds, and
    the part of the packets that is lost."""

    def __init__(self, *machines, far, bytes_per_s, delay_s, loss=0):
        self.machines, self.links = machines, (NEAR, [far], bytes_per_s, delay_s, loss)
        self.devices = {f"m{number}/{slot}": (processors / devices, mib / devices)
                        for number, (processors, mib, devices) in enumerate(machines, 2) for slot in range(devices)}  # fmt: skip

    def started(self, model):
        return [{"memory": f"{mib:g} MiB", "processors": processors,
                 "options": ["--processor-parts", str(devices), "--device-threads", "1", "--model", str(model)]}
                for processors, mib, devices in self.machines]  # fmt: skip


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", type=Path, default=Path.home() / ".cache/motley/bench/llama-qwen3-0.6b-text/model-q8_0.gguf")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/motley-unlike"), help="keeps what was measured, and the plans; medians are of all that it has")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="folder with motley and motley-worker")
    parser.add_argument("--dry-run", action="store_true", help="show the plans and what is simulated")
    parser.add_argument("--inside", help="for the script itself")


def parse(parser, settings):
    """The options; within run() it serves instead, and ends."""
    options = parser.parse_args()
    options.build = options.build.resolve()
    if options.inside:
        serve(options, settings)
        sys.exit()
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "workload.toml").write_text(workload(TOKENS))
    if not options.model.exists():
        make_model(options)
    return options


def make_model(options):
    """Random weights in the shape of Qwen3-0.6B. Needs the reference environment."""
    python, folder = ROOT / ".venv-reference/bin/python", options.model.parent
    subprocess.run([python, ROOT / "bench/decode/make_model.py", folder, "--shape", "qwen3-0.6b", "--tokenizer"], check=True)
    motley(options, "model", "quantize", folder, "--type", "q8_0", "-o", options.model)


def motley(options, *words):
    result = subprocess.run([options.build / "motley", *map(str, words)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"motley {' '.join(map(str, words))}: {result.stdout}{result.stderr}")
    return result.stdout


def violations(options, plan):
    file = options.folder / "tried.json"
    file.write_text(json.dumps(plan))
    result = subprocess.run([options.build / "motley", "verify", file], capture_output=True, text=True)
    return result.stdout + result.stderr if result.returncode else ""


def layers_of(plan):
    return max(stage["layers"][1] for stage in plan["stages"])


def chain(base, stages):
    """The plan `base` with one route through these stages, (devices, layers) each, in place of its own."""
    plan = {key: value for key, value in base.items() if key not in ("predicted", "unused")}
    first, plan["stages"] = 0, []
    for number, (devices, count) in enumerate(stages):
        plan["stages"].append({"id": f"r0/s{number}", "role": "any", "layers": [first, first + count], "devices": devices,
                               "embedding": first == 0, "head": first + count == layers_of(base), "kv_tokens": KV_TOKENS,
                               "weight_type": base["stages"][0]["weight_type"], "kv_type": base["stages"][0]["kv_type"]})  # fmt: skip
        first += count
    path = [{"stage": stage["id"], "layers": stage["layers"]} for stage in plan["stages"]]
    plan["routes"] = [{"id": "r0", "path": path, "weight": 1.0, "batch": STREAMS}]
    used = {device for devices, _ in stages for device in devices}
    all_devices = [f"{machine['name']}/{slot}" for machine in base["cluster"]["machine"] for slot in range(len(machine["devices"]))]
    plan["unused"] = [{"device": device, "reason": "left out"} for device in all_devices if device not in used]
    return plan


def shape(plan):
    stages = {stage["id"]: f"{stage['layers'][1] - stage['layers'][0]} on {'+'.join(d.removesuffix('/0') for d in stage['devices'])}"
              for stage in plan["stages"]}  # fmt: skip
    return ", and ".join(" > ".join(stages[hop["stage"]] for hop in route["path"]) for route in plan["routes"])


def found(options, name):
    """The plan that `motley up` makes of the machines, which has what it measured of them."""
    folder = options.folder / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "found.json"
    if not file.exists():
        file.write_text(json.dumps(run(options, name, None, [])["report"]["plan"]))
    base = json.loads(file.read_text())
    (folder / "cluster.json").write_text(json.dumps(base["cluster"]))
    return folder, base


def planned(options, folder, objective):
    """A single pipeline, since requests that come at once end with the slowest; planned for answers of this many tokens that the room for
    keys and values, which is for the mean of requests at different tokens, holds all of them whole."""
    file, asked = folder / f"motley-{objective}.json", folder / "planned.toml"
    at_once = STREAMS if objective == "throughput" else 1
    for tokens in range(TOKENS, 4 * TOKENS):
        asked.write_text(workload(tokens))
        motley(options, "plan", "serve", "--cluster", folder / "cluster.json", "--model", options.model, "--workload", asked, *STEP, *SEARCH,
               "--objective", objective, "--one-pipeline", "--without", DRIVER, "-o", file)  # fmt: skip
        plan = json.loads(file.read_text())
        if min(stage["kv_tokens"] for stage in plan["stages"]) >= at_once * (PROMPT + TOKENS):
            return plan
    sys.exit(f"no plan has room for {at_once} requests")


def simulated(options, file, streams):
    words = ["--workload", options.folder / "workload.toml", "--requests", streams, "--rate", "1000000 /s", "--json"]
    return json.loads(motley(options, "simulate", file, *words))["tokens_per_s"]


def with_rates_of(plan, members):
    """The plan with what its machines measured of themselves when they joined a deployment: these are the members in its `GET /plan`."""
    cluster = dict(plan["cluster"])
    found = {device["device"]: device for member in members for device in member["devices"]}
    types = {name: found[f"{machine['name']}/{slot}"] for machine in cluster["machine"] for slot, name in enumerate(machine["devices"])}
    cluster["device_type"] = [kind | {"memory_bandwidth": f"{types[kind['name']]['bytes_per_s']} B/s",
                                      "flops": dict.fromkeys(kind["flops"], f"{types[kind['name']]['flop_per_s']} FLOP/s")}
                              for kind in cluster["device_type"]]  # fmt: skip
    return plan | {"cluster": cluster}


def run(options, setting, plan, streams):
    """`GET /plan` after the first of `streams`, tokens/s of each, and packets on the far links. Without a plan: of what `motley up` plans."""
    words = ["--inside", json.dumps({"setting": setting, "plan": plan and str(plan), "streams": streams})]
    words += ["--model", options.model, "--build", options.build, "--folder", options.folder]
    result = subprocess.run([sys.executable, sys.argv[0], *map(str, words)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


def serve(options, settings):
    inside()
    on_the_rest()
    asked = json.loads(options.inside)
    setting = settings[asked["setting"]]
    words = [] if asked["plan"] else [*STEP, *SEARCH, "--without", DRIVER]
    deployment = Deployment(options.folder / "deployment", DRIVER_MEMORY, setting.started(options.model), motley=options.build / "motley",
                            model=options.model, plan=asked["plan"], options=[*words, "--device-threads", "1"], links=SlowLinks(*setting.links))  # fmt: skip
    try:
        rates, report = {}, deployment.plan()
        first = report["epoch"]
        for streams in asked["streams"]:
            rates[streams] = tokens_per_s(streams, PROMPT, TOKENS)
            if len(rates) == 1:
                report = deployment.plan()
        assert deployment.plan()["epoch"] == first, "the workers were started again\n" + deployment.text()
        print(json.dumps({"report": report, "rates": rates, "packets": deployment.links.packets()}))
    finally:
        deployment.end()
