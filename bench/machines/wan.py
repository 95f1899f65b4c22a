#!/usr/bin/env python3
"""Two sites that are 25 ms apart: tokens/s of plans over both, measured and simulated, and what a single stream reaches of 1 / R.

    wan.py [--plan NUMBER]... [--rounds N] [--model FILE] [--folder FOLDER] [--build FOLDER]

R is the time of a token's way: the stages' measured times, and the delays of the links that it passes. The sites have two machines and one,
of 0.3 processors each, and 500 Mbit/s between them, where one packet in 10,000 is lost.
"""

import argparse
import json
import statistics
import sys

from unlike import STREAMS, Setting, add_options, chain, found, parse, planned, run, shape, simulated

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=int, action="append", help="measure this one alone, from 0; repeatable")
    add_options(parser)
    options = parse(parser, SETTINGS)
    folder, _ = found(options, "two sites")
    base = planned(options, folder, "throughput")  # of one site, where two of its machines hold the model
    plans = [chain(base, [([f"{name}/0"], layers) for name, layers in stages.items()]) for stages in CHAINS]
    kept = folder / "rates.json"
    rates = json.loads(kept.read_text()) if kept.exists() else {}
    numbers = options.plan or range(len(plans))
    for number in numbers:
        (folder / f"{number}.json").write_text(json.dumps(plans[number]))
    for _ in range(0 if options.dry_run else options.rounds):
        for number in numbers:
            result = run(options, "two sites", folder / f"{number}.json", [1, STREAMS])
            rates.setdefault(str(number), []).append([1 / round_trip_s(result["report"]), *result["rates"].values()])
            kept.write_text(json.dumps(rates))
            print(f"{shape(plans[number])}: {rates[str(number)]}, packets {result['packets']}", file=sys.stderr, flush=True)
    print(f"| layers | 1 / R | 1 stream | of 1 / R | simulated | {STREAMS} streams | simulated | ratio |\n|---|---|---|---|---|---|---|---|")
    for number in numbers:
        one, many = (simulated(options, folder / f"{number}.json", streams) for streams in (1, STREAMS))
        if runs := rates.get(str(number)):
            most, single, all_streams = (statistics.median(each) for each in zip(*runs))
            cells = [f"{most:.2f}", f"{single:.2f}", f"{single / most:.2f}", f"{one:.2f}", f"{all_streams:.1f}", f"{many:.1f}", f"{all_streams / many:.2f}"]
        else:
            cells = ["-", "-", "-", f"{one:.2f}", "-", f"{many:.1f}", "-"]
        print(f"| {shape(plans[number])} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
