"""What it would bring to let gradients of weights wait longer than for the stage's own input gradient (ZB-H1, arXiv 2401.10241).

    weight_lag.py --plan PLAN [--products 0.8]

Runs 1F1B event by event over the stages of a plan of one replica, with the times that `motley simulate` gives: forward F, gradients of
inputs B, gradients of weights W, the last as long as the products of F, a share `--products` of it (`motley explain` shows the share).
In three orders: B and W in one pass; W after B, whose result has been sent (`1f1b` of a plan); and as ZB-H1 (`zb-h1`), where W of stage
s, from 0, lags s micro-batches behind, so that every stage keeps as many micro-batches as the first. Hops take no time.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOTLEY = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build/release")) / "motley"


def passes(stage, stages, micro_batches, lag):
    order, forwards, weights = [], 0, 0
    for backwards in range(micro_batches):
        while forwards < micro_batches and forwards - backwards < stages - stage:
            order.append(("forward", forwards))
            forwards += 1
        order.append(("input", backwards))
        if backwards - weights >= lag:
            order.append(("weights", weights))
            weights += 1
    return order + [("weights", i) for i in range(weights, micro_batches)]


def held(order):
    """Micro-batches of which a stage keeps something, at most."""
    now = most = 0
    for kind, _ in order:
        now += {"forward": 1, "input": 0, "weights": -1}[kind]
        most = max(most, now)
    return most


def makespan(seconds, orders, together=False):
    """`seconds`: of every stage, by kind of pass. `together`: the input's gradient is there when the weights' are."""
    stages = len(orders)
    free, next_pass, ready = [0.0] * stages, [0] * stages, {}
    while any(n < len(order) for n, order in zip(next_pass, orders)):
        for s, order in enumerate(orders):
            while next_pass[s] < len(order):
                kind, i = order[next_pass[s]]
                needs = {"forward": ("forward", s - 1, i) if s > 0 else None,
                         "input": ("input", s + 1, i) if s + 1 < stages else ("forward", s, i), "weights": ("input", s, i)}[kind]
                if needs is not None and needs not in ready:
                    break
                took = seconds[s][kind] + (seconds[s]["weights"] if together and kind == "input" else 0)
                if together and kind == "weights":
                    took = 0
                free[s] = max(free[s], ready[needs] if needs is not None else 0) + took
                ready[kind, s, i] = free[s]
                next_pass[s] += 1
    return max(free)


def compare(seconds, micro_batches):
    stages = len(seconds)
    found = []
    for name, together, lag in (("together", True, lambda s: 0), ("sent first", False, lambda s: 0), ("ZB-H1", False, lambda s: s)):
        orders = [passes(s, stages, micro_batches, lag(s)) for s in range(stages)]
        found.append((name, makespan(seconds, orders, together), [held(order) for order in orders]))
    return found


def show(title, found):
    print(title)
    for name, time, kept in found:
        print(f"  {name:12} {time:8.4g}  {found[0][1] / time:.3f} x   micro-batches kept {kept}")


def stages_of(plan, share):
    """Seconds by stage, and micro-batches, as `motley simulate` runs them."""
    with tempfile.TemporaryDirectory() as folder:
        trace, file = Path(folder) / "trace.json", Path(folder) / "plan.json"
        file.write_text(json.dumps({**json.loads(Path(plan).read_text()), "schedule": "1f1b"}))
        subprocess.run([MOTLEY, "simulate", file, "-q", "--trace-out", trace], check=True, stdout=subprocess.DEVNULL)
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("ph") == "X"]
    seconds, count = [], 0
    for stage in sorted({e["tid"] for e in events if e["name"].startswith("forward")}):
        forward, backward = ([e["dur"] / 1e6 for e in events if e["tid"] == stage and e["name"].startswith(way)]
                             for way in ("forward", "backward"))
        count = len(forward)
        seconds.append({"forward": forward[0], "weights": share * forward[0], "input": backward[0] - share * forward[0]})
    return seconds, count


def compare_unlike(stages, micro_batches, draws=60):
    """Mean gains over stages that take 0.7 to 1 of the slowest's time, as planners balance them."""
    rng, gains = random.Random(1), {}
    for _ in range(draws):
        sizes = [rng.uniform(0.7, 1) for _ in range(stages)]
        found = compare([{"forward": 0.31 * c, "input": 0.44 * c, "weights": 0.25 * c} for c in sizes], micro_batches)
        for name, time, _ in found:
            gains.setdefault(name, []).append(found[0][1] / time)
    return {name: statistics.mean(of) for name, of in gains.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plan", required=True)
    parser.add_argument("--products", type=float, default=0.8)
    options = parser.parse_args()
    seconds, count = stages_of(options.plan, options.products)
    show(f"{options.plan}: {count} micro-batches, seconds", compare(seconds, count))
    for stages, micro_batches in ((3, 6), (4, 8), (4, 16)):
        alike = [{"forward": 1, "input": 1, "weights": 1}] * stages
        show(f"{stages} stages alike, {micro_batches} micro-batches, F = B = W = 1", compare(alike, micro_batches))
    print("unlike stages at random, mean gain of 60 draws")
    for stages in (2, 3, 4):
        for micro_batches in (4, 8, 16):
            gains = compare_unlike(stages, micro_batches)
            print(f"  {stages} stages, {micro_batches:2} micro-batches   sent first {gains['sent first']:.3f} x   ZB-H1 {gains['ZB-H1']:.3f} x")


if __name__ == "__main__":
    sys.exit(main())
