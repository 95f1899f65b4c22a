"""A fourth machine joins under load, each machine held to a part of a processor: tokens/s before and after, and how long streams wait
for a token meanwhile.

    bench/machines/join.py --streams 8

Prints one JSON object. The first machine runs the driver alone. Run with the reference environment, as root (control groups)."""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from deployment import ROOT, Deployment, Machine, inside, on_the_rest
from recovery import Streams

sys.path.insert(0, str(ROOT / "bench/decode"))


def rate(streams, begin, end):
    """Tokens/s."""
    return sum(begin < time <= end for times in streams.arrivals for time in times) / (end - begin)


def waits(streams, begin, end):
    """Times between two tokens of a stream that end in this time."""
    return [b - a for times in streams.arrivals for a, b in zip(times, times[1:]) if begin < b <= end]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processors", type=float, default=0.25, help="of each machine; all of them on the first processor")
    parser.add_argument("--memory", default="300 MiB", help="of each machine")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=600, help="of each answer")
    parser.add_argument("--seconds", type=float, default=15, help="before, and after")
    parser.add_argument("--build", default="build/release", help="folder with motley and motley-worker")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/motley-join"))
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    inside()
    on_the_rest()
    from make_model import make, write_tokenizer

    model = options.folder / "model"
    make("small256", model, num_hidden_layers=12, hidden_size=1536, num_attention_heads=24, num_key_value_heads=8, intermediate_size=4608)
    write_tokenizer(model)
    machine = {"memory": options.memory, "processors": options.processors, "options": ["--device-threads", "1"]}
    deployment = Deployment(options.folder / "deployment", "1 MiB", [machine] * 3, motley=Path(options.build).resolve() / "motley", model=model,
                            options=["--max-tokens", "64", "--max-sequences", str(options.streams)], patience_s=300)  # fmt: skip
    streams = Streams(deployment, options.streams, options.tokens)
    deployment.wait(lambda: all(len(times) > 30 for times in streams.arrivals), "no tokens come", 180)
    begin = time.monotonic()
    time.sleep(options.seconds)
    joins = time.monotonic()
    before = deployment.plan()
    joiner = Machine(deployment, 5, **machine)
    deployment.machines.append(joiner)
    joiner.join()
    deployment.wait(lambda: deployment.plan()["epoch"] > before["epoch"] and deployment.serving(), "it is not planned in", 120)
    serves = time.monotonic()
    time.sleep(options.seconds)
    end = time.monotonic()
    after = deployment.plan()
    streams.end()
    usual = statistics.median(waits(streams, begin, joins))
    meanwhile = waits(streams, joins, serves + 5)
    print(json.dumps({
        "processors": options.processors, "streams": options.streams, "failures": streams.failures,
        "tokens_per_s": {"before": round(rate(streams, begin, joins), 1), "after": round(rate(streams, serves + 2, end), 1)},
        "serves_after_s": round(serves - joins, 1), "median_wait_s": round(usual, 4),
        "longest_wait_s": {"before": round(max(waits(streams, begin, joins)), 3), "meanwhile": round(max(meanwhile), 3)},
        "longest_to_median": round(max(meanwhile) / usual, 2),
        "stages": [[[stage["devices"][0], stage["layers"]] for stage in plan["plan"]["stages"]] for plan in (before, after)],
        "replayed_tokens": after["replayed_tokens"], "processes_left": list(deployment.end().values())}))  # fmt: skip
    if options.verbose:
        print(deployment.text())


if __name__ == "__main__":
    main()
