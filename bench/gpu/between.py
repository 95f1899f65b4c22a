"""Checks of what lies between devices: copies, rows of stages, sums of ranks, two machines, and a device that is lost."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from common import CLUSTER, complete, give_tokenizer, link_torch, make_model, serve_plan, serving

# Bytes per second of a lane, by the generation of PCIe.
LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


def slot_rate(context):
    """Bytes per second of the slot's generation and width, one way; None where nothing tells."""
    if not context.on_gpu:
        return None
    asked = ["nvidia-smi", "--query-gpu=pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader"]
    try:
        generation, width = subprocess.run(asked, capture_output=True, text=True).stdout.splitlines()[0].split(",")
        return LANE[int(generation)] * int(width)
    except (OSError, IndexError, KeyError, ValueError):
        return None


def gigabytes(*rates):
    return f"{' and '.join(f'{rate / 1e9:.3g}' for rate in rates)} GB/s"


def staging(context, rows):
    """Without a card the stand-in with memory of its own shows that this works."""
    device, changes = context.backend, {}
    if not context.on_gpu:
        device, changes = "apart:0", {"MOTLEY_TEST_DEVICES": str(context.pack / "lib/libapart_device.so"), "MOTLEY_APART_LATE_US": "0"}
    found, slot = json.loads(context.program("copies_check", device, 64 if context.on_gpu else 1, **changes)), slot_rate(context)
    for copy in found["copies"]:
        size = f"{copy['bytes'] >> 20} MiB" if copy["bytes"] >= 1 << 20 else f"{copy['bytes'] >> 10} KiB"
        up, down = copy["bytes"] / copy["up_s"], copy["bytes"] / copy["down_s"]
        is_largest = copy is found["copies"][-1]
        share = f", {min(up, down) / slot:.0%} of the slot's {slot / 1e9:.0f}" if slot and is_largest else ""
        rows.append((f"pinned copies of {size}, up and down", f"{gigabytes(up, down)}{share}", "85 % of the slot's" if is_largest else ""))
        rows.append((f"both at once; each alone from and to memory that is not pinned, {size}",
                     f"{gigabytes(copy['up_at_once'], copy['down_at_once'])}; {gigabytes(copy['up_pageable'], copy['down_pageable'])}", ""))
    small = found["copies"][0]
    for way in ("up", "down"):
        rows.append((f"{small['bytes'] >> 10} KiB {way}: the host goes on, and knows that it is done",
                     f"{1e6 * small[f'{way}_asked_s']:.1f} and {1e6 * small[f'{way}_s']:.1f} us", "20 us"))
    rows.append(("pinning memory that was written before", gigabytes(found["pin_bytes_per_s"]) if found["pin_bytes_per_s"] else "not done", ""))
    link_torch(context)
    quick = [] if context.on_gpu else ["--model", context.pack / "share/motley/models/tales", "--seconds", 1]
    begin = time.monotonic()
    rates = json.loads(context.program("motley", "cluster", "probe", "--rates", "--backend", device, *quick, "-q", **changes))
    rows.append(("`motley cluster probe --rates`, as agents measure: memory, bf16, copies up and down at once and their latency",
                 f"{rates['memory_bandwidth']}, {rates['flops']['bf16']}; {rates['copies']['upload']}, {rates['copies']['download']}, "
                 f"{rates['copies']['latency']}; in {time.monotonic() - begin:.0f} s", ""))


def can_have_namespaces(environment):
    links = "ip link add bridge type bridge && ip link add v2 type veth"
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", links]
    try:
        return subprocess.run(command, env=environment, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


def two(context, rows):
    """Two agents that offer the one device as two machines do, next to one process, and to two stages of one machine."""
    sys.path.append(str(context.pack / "machines"))
    import one_card
    shape, memory = ("1b", "2.4 GiB") if context.on_gpu else ("small", "6 MiB")
    load = one_card.Load(requests=100, longest=200, answer=24, prompt=2000, streams=(1, 16), tokens=96) if context.on_gpu else one_card.Load()
    model = make_model(context, shape)
    give_tokenizer(context, model)
    link_torch(context)
    environment = context.environment(PATH=f"{os.environ['PATH']}:{context.pack / 'bin'}")
    apart = can_have_namespaces(environment)
    where = "namespaces, TLS" if apart else "one namespace, no TLS"
    command = [sys.executable, context.pack / "machines/one_card.py", "--motley", context.pack / "bin/motley", "--model", model, "--memory", memory,
               "--folder", context.scratch / "two", "--load", json.dumps(asdict(load)), *([] if apart else ["--loopback"]),
               *([] if context.on_gpu else ["--threads", 1]), "--",
               "--weight-type", "bf16", "--max-tokens", 2048 if context.on_gpu else 64, "--max-sequences", max(load.streams)]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment,
                            timeout=max(5, context.deadline - time.monotonic()))
    (context.out / "two.log").write_text(result.stdout + result.stderr)
    if result.returncode != 0:
        raise RuntimeError(f"one_card.py ended with {result.returncode}: {result.stderr[-400:]}")
    found = {"two machines": json.loads(result.stdout.splitlines()[-1])}
    for name, whole in {"two local stages": False, "one process": True}.items():
        plan = context.scratch / f"{name.replace(' ', '-')}.json"
        plan.write_text(json.dumps(one_card.on_one_machine(found["two machines"]["plan"], whole)))
        with serving(context, plan, model) as (address, _):
            found[name] = one_card.measured(int(address.rpartition(":")[2]), load)
    for number, streams in enumerate(load.streams):
        rates = {name: each["tokens_per_s"][number] for name, each in found.items()}
        rows.append((f"{shape}, bf16, two stages on two machines ({where}), {streams} at once", f"{rates['two machines']:.0f} tokens/s, "
                     f"{rates['two machines'] / rates['two local stages']:.2f} of two local stages', "
                     f"{rates['two machines'] / rates['one process']:.2f} of one process's", "0.85 of local stages'"))
    prompts = {name: 1e3 * each["prompt_s"] for name, each in found.items()}
    rows.append((f"{shape}, bf16, a prompt of {load.prompt:,} tokens over HTTP: {', '.join(prompts)}",
                 ", ".join(f"{some:.1f}" for some in prompts.values()) + " ms", ""))
    predicted, measured = found["two machines"]["predicted_s"], 1 / found["two machines"]["tokens_per_s"][load.streams.index(1)]
    rows.append((f"{shape}, bf16, two machines, a token of one stream", f"{1e3 * predicted:.2f} ms predicted, {1e3 * measured:.2f} ms measured, "
                 f"{predicted / measured - 1:+.0%}", "15 %"))
    same = sum(ours == theirs for ours, theirs in zip(found["two machines"]["answers"], found["one process"]["answers"]))
    rows.append((f"{shape}, bf16, answers on two machines, against one process's", f"{same} of {load.requests} equal", "all equal"))
    if same != load.requests or found["two local stages"]["answers"] != found["one process"]["answers"]:
        raise RuntimeError("the answers differ")


ALIKE = "[network]\n" + "".join(f'{where} = {{ latency = "50 us", bandwidth = "10 GB/s" }}\n'
                                for where in ("within_machine", "within_site", "between_sites"))
TWO_MACHINES = 'name = "here"\ndevices = ["card"]\n[[machine]]\nname = "there"\ndevices = ["card"]'


def two_stages(context, model, memory):
    """A plan for two machines, both on the GPU, of this memory: less than the model takes."""
    cluster = CLUSTER.replace("8 GiB", memory if context.on_gpu else "6 MiB").replace('name = "here"\ndevices = ["card"]', TWO_MACHINES)
    cluster += ("" if context.on_gpu else 'reserve = "0 B"\n') + ALIKE  # or prompts would be cut into other chunks
    apart = serve_plan(context, model, "apart", cluster)
    # All layers but one in the first stage: a prompt then passes whole, and what is left of its time is the way between the stages.
    plan, layers = json.loads(apart.read_text()), json.loads((model / "config.json").read_text())["num_hidden_layers"]
    for number, (place, bounds) in enumerate(zip(("here/0", "there/0"), ([0, layers - 1], [layers - 1, layers]))):
        plan["stages"][number] |= dict(layers=bounds, devices=[place])
        plan["routes"][0]["path"][number]["layers"] = bounds
    plan["cluster"]["device_type"][0]["memory"] = "30 GiB"
    plan.pop("predicted", None)
    apart.write_text(json.dumps(plan))
    return apart


def what_serves(address):
    with urllib.request.urlopen(f"{address.replace('/v1', '')}/plan", timeout=20) as answer:
        return json.load(answer)


def peers(context, rows):
    """Rows of a prompt between two stages' processes on the GPU: through the host, as between machines, and from device to device."""
    import random
    shape, tokens = ("8b", 2000) if context.on_gpu else ("small", 40)
    model, answers = make_model(context, shape), {}
    apart = two_stages(context, model, "12 GiB")
    plan = json.loads(apart.read_text())
    for number, stage in enumerate(plan["stages"]):
        stage["devices"] = [f"here/{number}"]
    plan["cluster"]["machine"] = [{"name": "here", "devices": ["card*2"]}]
    together = apart.with_name("together.json")
    together.write_text(json.dumps(plan))

    def median_ms(rounds, work):
        times = []
        for _ in range(rounds):
            begin = time.monotonic()
            work()
            times.append(1e3 * (time.monotonic() - begin))
        return statistics.median(times[1:])

    for name, file in {"through the host": apart, "from GPU to GPU": together}.items():
        with serving(context, file, model) as (address, _):
            links = [worker["peer_links"] for worker in what_serves(address)["workers"]]
            source = random.Random(9)
            answers[name] = complete(address, source, tokens, 24, tell=lambda answer: answer["choices"][0]["text"])
            prompt = median_ms(12, lambda: complete(address, source, tokens, 1))
            short, long = (median_ms(5, lambda: complete(address, source, 40, count)) for count in (1, 65))
            rows.append((f"{shape}, bf16, two stages, rows {name} (GPU links of the workers: {links})",
                         f"{prompt:.1f} ms a prompt of {tokens:,} tokens over HTTP, {(long - short) / 64:.2f} ms a token", ""))
    if len(set(answers.values())) != 1:
        raise RuntimeError(f"the answers differ: {answers}")


def faults(context, rows):
    """Of two processes on the GPU one ends under load: it is killed, or a kernel breaks its context. Requests go on, and the other stays."""
    import random
    shape, count, tokens = ("1b", 32, 64) if context.on_gpu else ("small", 4, 24)
    model = make_model(context, shape)
    plan = two_stages(context, model, "3 GiB")

    def ask_all(address):
        ask = lambda number: complete(address, random.Random(number), 40, tokens, tell=lambda answer: answer["choices"][0]["text"])  # noqa: E731
        with ThreadPoolExecutor(count) as clients:
            return list(clients.map(ask, range(count)))

    def disturbed(address, disturb):
        """The texts, seconds until another plan serves, and the devices whose processes are other ones."""
        before = what_serves(address)
        with ThreadPoolExecutor(1) as other:
            texts = other.submit(ask_all, address)
            disturb({worker["device"]: worker["process"] for worker in before["workers"]})
            begin = time.monotonic()
            while (now := what_serves(address))["epoch"] == before["epoch"] or now["state"] != "serving":
                if time.monotonic() > context.deadline:
                    raise RuntimeError("no other plan serves")
                time.sleep(0.01)
            seconds = time.monotonic() - begin
            processes = {worker["device"]: worker["process"] for worker in now["workers"]}
            return texts.result(), seconds, [worker["device"] for worker in before["workers"]
                                             if processes.get(worker["device"]) != worker["process"]]  # fmt: skip

    def kill(processes):
        time.sleep(0.3)  # they compute by then
        os.kill(processes["there/0"], signal.SIGKILL)

    with serving(context, plan, model) as (address, _):
        expected = ask_all(address)
        found = {"killed": disturbed(address, kill)}
    with serving(context, plan, model, MOTLEY_TEST_DEVICES="", MOTLEY_FAULT="illegal_access@12,there/0") as (address, said):
        found["broken by an illegal access"] = disturbed(address, lambda processes: None)
        if context.on_gpu and "illegal memory access" not in said():
            raise RuntimeError("the illegal access was not named")
    for what, (texts, seconds, others) in found.items():
        same = sum(text == wanted for text, wanted in zip(texts, expected))
        rows.append((f"{shape}, bf16, {count} requests, the second stage's process {what}",
                     f"a plan serves again {seconds:.1f} s later, {same} texts as without; new processes: {', '.join(others)}",
                     f"5 s, {count}, there/0 alone"))
        if others != ["there/0"]:
            raise RuntimeError(f"{what}: other processes than before on {others}")


def nccl(context, rows):
    if not context.on_gpu:
        return
    rows.append(("NCCL by the vendor interface, one rank", context.program("nccl_check").strip(), "the plain sum"))


def sums(context, rows):
    """Two processes on the device add up as the ranks of a stage do, by kernels, in each way that needs no second card."""
    for way in ("pinned", "peers"):
        count = (500, 1000) if context.on_gpu else (40, 40)
        found = json.loads(context.program("sums_check", context.backend, way, *count))
        rows.append((f"sums of two processes by {way}: {found['sizes']} sizes, and a recorded one {found['replays']} times",
                     "the bits of the host's sums", "the same bits"))
        rows.append((f"sums by {way}: 8 KiB, both processes on the one device", f"{found['sum_us']:.0f} us", ""))
        rows.append((f"sums by {way}: the other process is killed", f"given up within {1e3 * found['give_up_s']:.0f} ms", "1 s"))
        if context.on_gpu and found["give_up_s"] > 1:
            raise RuntimeError(f"{way}: given up after {found['give_up_s']:.1f} s")
