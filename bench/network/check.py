#!/usr/bin/env python3
"""Asked and measured: what the test networks give to plain sockets (bench/network/networks.py). One JSON line per case."""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor

from networks import PROGRAMS, Tree, Wan, isolate

METER = str(PROGRAMS / "link_meter")
MBIT = 125e3


def measure(network, client, server, port=7000, **options):
    serving = network.start(server, [METER, "serve", str(port)])
    settings = [f"{key}={value}" for key, value in options.items()]
    result = json.loads(network.output(client, [METER, "measure", network.addresses[server], str(port), *settings], timeout_s=120))
    serving.kill()
    return result


def report(case, asked, measured):
    print(json.dumps({"case": case, "asked": asked, "measured": measured}), flush=True)


def check_star(seconds):
    rates = [(100 * MBIT, 100 * MBIT), (40 * MBIT, 40 * MBIT), (20 * MBIT, 10 * MBIT)]
    star = Tree([(None, rates)])
    for client, server in [(0, 1), (1, 0), (0, 2), (2, 0)]:
        asked = {"bytes_per_s": min(rates[client][0], rates[server][1])}
        report(f"star, rank {client} to {server}", asked, measure(star, client, server, seconds=seconds))
    # What an all-reduce wants of a port: each way also carries the acknowledgements of the other.
    with ThreadPoolExecutor(2) as both:
        ways = [both.submit(measure, star, client, 1 - client, port=7001 + client, seconds=seconds) for client in (0, 1)]
    for client, way in enumerate(ways):
        report(f"star, rank {client} to {1 - client}, both ways at once", {"bytes_per_s": rates[1][0]}, way.result())
    star.stop()


def check_tree(seconds):
    tree = Tree([((50 * MBIT,) * 2, [(100 * MBIT,) * 2] * 2), ((200 * MBIT,) * 2, [(100 * MBIT,) * 2] * 2)])
    for client, server, rate in [(0, 1, 100 * MBIT), (0, 2, 50 * MBIT), (3, 2, 100 * MBIT)]:
        report(f"tree, rank {client} to {server}", {"bytes_per_s": rate}, measure(tree, client, server, seconds=seconds))
    tree.stop()


def check_wan(seconds, datagrams, rate=500 * MBIT):
    wan = Wan(2, bytes_per_s=rate, delay_s=0.025, loss=1e-4, queue_bytes=2e6)
    asked = {"round_trip_s": 0.05, "bytes_per_s": rate, "loss": 1e-4}
    for congestion, streams in [("cubic", 1), ("cubic", 4), ("cubic", 16), ("bbr", 1), ("bbr", 4)]:
        report(f"wide area, {congestion}", asked, measure(wan, 0, 1, seconds=seconds, streams=streams, congestion=congestion))
    for loss, burst in [(0.01, 1), (0.01, 10)]:
        wan.set_link("*", "*", loss=0)
        wan.set_link(0, 1, loss=loss, loss_burst=burst)
        case = f"wide area, losses in runs of {burst}"
        report(case, {"loss": loss}, measure(wan, 0, 1, seconds=0, pings=0, datagrams=datagrams, datagrams_per_s=20000))
    report("wide area, links", {}, wan.statistics())
    wan.stop()
    wan.emulator.stdin.close()
    wan.emulator.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="per rate")
    parser.add_argument("--datagrams", type=int, default=100000, help="per loss")
    parser.add_argument("case", choices=["star", "tree", "wan"], help="a process measures one network")
    options = parser.parse_args()
    isolate()
    if options.case == "star":
        check_star(options.seconds)
    if options.case == "tree":
        check_tree(options.seconds)
    if options.case == "wan":
        check_wan(options.seconds, options.datagrams)


if __name__ == "__main__":
    main()
