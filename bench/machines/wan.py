#!/usr/bin/env python3
"""Two sites that are 25 ms apart: tokens/s of plans over both, measured and simulated, and what a single stream reaches of 1 / R.

    wan.py [--plan NUMBER]... [--rounds N] [--model FILE] [--folder FOLDER] [--build FOLDER]

R is the time of a token's way: the stages' measured times, and the delays of the links that it passes. The sites have two machines and one,
of 0.3 processors each, and 500 Mbit/s between them, where one packet in 10,000 is lost. Each round is simulated with the rates that its own
machines measured when they joined: a processor that is a guest of others is not as fast at all times.
"""

import argparse
import json
import statistics
import sys

from unlike import STREAMS, Setting, add_options, chain, found, parse, planned, run, shape, simulated, with_rates_of

DELAY_S, LOSS = 25e-3, 1e-4
SETTINGS = {"two sites": Setting((0.3, 900, 1), (0.3, 900, 1), (0.3, 900, 1), far=4, bytes_per_s=62.5e6, delay_s=DELAY_S, loss=LOSS)}
CHAINS = (
    {"m4": 10, "m3": 9, "m2": 9},
    {"m2": 14, "m4": 14},
    {"m4": 14, "m3": 14},
    {"m2": 20, "m4": 8},
    {"m2": 10, "m3": 10, "m4": 8},
    {"m2": 10, "m4": 10, "m3": 8},
)


def round_trip_s(report):
    """The driver is at the first site: every plan here crosses to the other and back, once."""
    return sum(stage["measured"]["one_token_s"] for stage in report["steps"][0]["stages"]) + 2 * DELAY_S


def both_simulated(options, plan):
    file = options.folder / "simulated.json"
    file.write_text(json.dumps(plan))
    return [simulated(options, file, streams) for streams in (1, STREAMS)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=int, action="append", help="measure this one alone, from 0; repeatable")
    add_options(parser)
    options = parse(parser, SETTINGS)
    folder, _ = found(options, "two sites")
    base = planned(options, folder, "throughput")  # of one site, where two of its machines hold the model
    plans = [chain(base, [([f"{name}/0"], layers) for name, layers in stages.items()]) for stages in CHAINS]
    kept = folder / "rounds.json"
    rounds = json.loads(kept.read_text()) if kept.exists() else {}
    numbers = options.plan or range(len(plans))
    for _ in range(0 if options.dry_run else options.rounds):
        for number in numbers:
            file = folder / f"{number}.json"
            file.write_text(json.dumps(plans[number]))
            result = run(options, "two sites", file, [1, STREAMS])
            report = result["report"]
            rates = [1 / round_trip_s(report), *result["rates"].values()]
            rounds.setdefault(str(number), []).append({"rates": rates, "members": report["members"]})
            kept.write_text(json.dumps(rounds))
            print(f"{shape(plans[number])}: {rates}, packets {result['packets']}", file=sys.stderr, flush=True)
    print(f"| layers | 1 / R | 1 stream | of 1 / R | simulated | of measured | {STREAMS} streams | simulated | of measured |\n|{'---|' * 9}")
    for number in numbers:
        if measured := rounds.get(str(number)):
            each = [(*one["rates"], *both_simulated(options, with_rates_of(plans[number], one["members"]))) for one in measured]
            most, single, many, single_simulated, many_simulated = (statistics.median(some) for some in zip(*each))
            cells = [f"{most:.2f}", f"{single:.2f}", f"{single / most:.2f}", f"{single_simulated:.2f}", f"{single_simulated / single:.2f}",
                     f"{many:.1f}", f"{many_simulated:.1f}", f"{many_simulated / many:.2f}"]  # fmt: skip
        else:
            single_simulated, many_simulated = both_simulated(options, plans[number])
            cells = ["-", "-", "-", f"{single_simulated:.2f}", "-", "-", f"{many_simulated:.1f}", "-"]
        print(f"| {shape(plans[number])} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
