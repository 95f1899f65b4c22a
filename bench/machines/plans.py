#!/usr/bin/env python3
"""What planning is worth: tokens/s of motley's plan for unlike machines, and of the divisions that others make of the same machines, all
served by `motley serve --agents`; next to each what `motley simulate` makes of it.

    plans.py [--setting NAME]... [--plan NAME]... [--rounds N] [--model FILE] [--folder FOLDER] [--build FOLDER]

`motley up` measures processors and links first. Motley's plans are made from what it found, for one stream (`--objective latency`) and for
16 (`--objective throughput`). The other plans:

    equal      as many layers on each, in the order in which the machines are listed
    memory     layers by memory, the machine with most of it first (exo; llama.cpp divides so, too)
    computing  layers by computing power, in the order in which the machines are listed (Petals, Parallax)
    grid       two stages of two ranks with equal layers; only where there are four devices

Where a division does not fit a machine's memory, what is too much goes to the others in the same proportions.
"""

import argparse
import json
import statistics
import sys

from unlike import STREAMS, Setting, add_options, chain, found, layers_of, parse, planned, run, shape, simulated, violations

PROCESSORS, MEMORY_MIB = 0.13, 400  # of the machine with least
FAR = {"bytes_per_s": 12.5e6, "delay_s": 10e-3}


def machine(processors, memory, devices=1):
    return (processors * PROCESSORS, memory * MEMORY_MIB, devices)


SETTINGS = {
    "as given": Setting(machine(1, 1), machine(2, 2), machine(4, 3), far=2, **FAR),
    "strongest far": Setting(machine(1, 1), machine(2, 2), machine(4, 3), far=4, **FAR),
    "two devices in one": Setting(machine(1, 1), machine(2, 2), machine(4, 3, devices=2), far=2, **FAR),
    "slow with memory": Setting(machine(1, 3), machine(2, 2), machine(4, 1), far=2, **FAR),
}
PLANS = ("motley", "equal", "memory", "computing", "grid")


def divided(weights, most, layers):
    """The layers of each in proportion to the weights, none above its most; None: they do not fit."""
    if sum(most) < layers:
        return None
    exact, free = [0.0] * len(weights), set(range(len(weights)))
    while free:
        left = layers - sum(exact[i] for i in range(len(weights)) if i not in free)
        share = {i: left * weights[i] / sum(weights[j] for j in free) for i in free}
        over = {i for i in free if share[i] > most[i]}
        for i in over or free:
            exact[i] = min(share[i], most[i])
        free = free - over if over else set()
    counts = [int(some + 1e-9) for some in exact]
    for i in sorted(range(len(weights)), key=lambda i: counts[i] - exact[i]):
        counts[i] += sum(counts) < layers and counts[i] < most[i]
    return counts


def most_layers(options, base, order, place):
    """That fit on the device at this place of the chain."""
    layers, others = layers_of(base), len(order) - 1
    for count in range(layers - others, 0, -1):
        rest = [(layers - count) // others + (i < (layers - count) % others) for i in range(others)]
        counts = rest[:place] + [count] + rest[place:]
        said = violations(options, chain(base, [([device], some) for device, some in zip(order, counts)]))
        if f"{order[place]}:" not in said and f"{order[place]} " not in said:
            return count
    return 0


def other_plan(options, base, setting, name):
    devices = setting.devices
    if name == "grid":
        pairs = [list(devices)[:2], list(devices)[2:]]
        plan = chain(base, [(pair, layers_of(base) // 2) for pair in pairs]) if len(devices) == 4 else None
        return plan if plan and not violations(options, plan) else None
    order = sorted(devices, key=lambda device: -devices[device][1]) if name == "memory" else list(devices)
    weights = [{"equal": 1, "memory": devices[device][1], "computing": devices[device][0]}[name] for device in order]
    most = [most_layers(options, base, order, place) for place in range(len(order))]
    counts = divided(weights, most, layers_of(base))
    return counts and chain(base, [([device], count) for device, count in zip(order, counts)])


def make_plans(options, name):
    """By name, with their files; motley's are two."""
    folder, base = found(options, name)
    plans = {f"motley, {objective}": planned(options, folder, objective) for objective in ("latency", "throughput")}
    for other in PLANS[1:]:
        if plan := other_plan(options, plans["motley, throughput"], SETTINGS[name], other):
            plans[other] = plan
    for key, plan in plans.items():
        file = folder / f"{key.replace(', ', '-')}.json"
        file.write_text(json.dumps(plan))
        plans[key] = (plan, file)
    return plans


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="measure this one alone; repeatable")
    parser.add_argument("--plan", action="append", choices=PLANS, help="measure this one alone; repeatable")
    add_options(parser)
    options = parse(parser, SETTINGS)
    for setting in options.setting or SETTINGS:
        plans = {name: plan for name, plan in make_plans(options, setting).items() if name.split(",")[0] in (options.plan or PLANS)}
        kept = options.folder / setting.replace(" ", "-") / "rates.json"
        rates = json.loads(kept.read_text()) if kept.exists() else {}
        for _ in range(0 if options.dry_run else options.rounds):
            for name, (plan, file) in plans.items():
                streams = {"motley, latency": [1], "motley, throughput": [STREAMS]}.get(name, [1, STREAMS])
                for count, rate in run(options, setting, file, streams)["rates"].items():
                    rates.setdefault(name, {}).setdefault(count, []).append(rate)
                kept.write_text(json.dumps(rates))
                print(f"{setting}: {name}: {rates[name]}", file=sys.stderr, flush=True)
        print(f"\n{setting}\n\n| plan | layers | 1 stream | simulated | {STREAMS} streams | simulated |\n|---|---|---|---|---|---|")
        for name, (plan, file) in plans.items():
            measured = {int(count): f"{statistics.median(some):.2f}" for count, some in rates.get(name, {}).items()}
            cells = [f"{measured.get(count, '-')} | {simulated(options, file, count):.2f}" for count in (1, STREAMS)]
            print(f"| {name} | {shape(plan)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
