#!/usr/bin/env python3
"""All-reduce of motley, Gloo and Open MPI side by side, in one run: the same sizes, counts and check (measure.hpp).

    run.py                                      ranks on this machine: shared memory, and TCP over loopback
    run.py --network "star 100mbit 100mbit 50mbit"      on rate-limited links; also "tree ..." and "wan ..."
                                                (bench/network/networks.py)

The libraries take turns, `--turns` times over. A table of medians, with ratios to the better of the peers; --json FILE has
every line of every program. What is not installed is left out, and named.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "network"))
import networks  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build" / "release")) / "bench" / "collectives"
MOTLEY = PROGRAMS.parents[1] / "motley"
PYTHON = ROOT / ".venv-reference" / "bin" / "python"
FIRST_PORT = 29400
MPI_AGENT = """#!/bin/sh
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host && $*"
"""


class Here:
    """Ranks as processes of this machine."""

    interface = "lo"

    def __init__(self, ranks):
        self.ranks = ranks
        self.addresses = ["127.0.0.1"] * ranks

    def start(self, rank, command, **options):
        return subprocess.Popen(command, **options)


def repeats(size, slow):
    """Operations in a row: about as long for every size; fewer where links are slow. Small ones are many: it takes the
    system some milliseconds to give each rank a processor of its own."""
    return max(1, min(4000, (20 << 20) // size // (20 if slow else 1)))


class Runner:
    """Starts each library's program on all ranks of a place, and takes rank 0's lines."""

    def __init__(self, place, samples, rounds, timeout_s):
        self.place, self.samples, self.rounds, self.timeout_s = place, samples, str(rounds), timeout_s
        self.port = FIRST_PORT

    def lines(self, commands):
        """Of rank 0, whose command is the first; all others must succeed too."""
        # A program that fails leaves the others waiting: all are ended when one is.
        processes = [self.place.start(rank, list(map(str, command)), stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True) for rank, command in enumerate(commands)]
        until = time.monotonic() + self.timeout_s
        while any(process.poll() is None for process in processes):
            if time.monotonic() > until or any(process.poll() for process in processes):
                for process in processes:
                    process.kill()
            time.sleep(0.02)
        text = processes[0].stdout.read()
        errors = [process.stderr.read() for process in processes]
        failed = next((rank for rank, process in enumerate(processes) if process.returncode), None)
        if failed is not None:
            print(f"note: {Path(commands[0][0]).name} failed on rank {failed}: {errors[failed].strip()[-400:]}", file=sys.stderr)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def gloo(self, algorithm):
        with tempfile.TemporaryDirectory() as store:
            return self.lines([[PROGRAMS / "gloo_cpp", rank, self.place.ranks, address, store, algorithm, self.samples, self.rounds]
                               for rank, address in enumerate(self.place.addresses)])

    def torch(self, backend):
        self.port += 1
        master = f"{self.place.addresses[0]}:{self.port}"
        environment = ["env", f"GLOO_SOCKET_IFNAME={self.place.interface}", "OMP_NUM_THREADS=1", f"PYTHONPATH={ROOT / 'python'}"]
        return self.lines([[*environment, PYTHON, Path(__file__).with_name("gloo_torch.py"), rank, self.place.ranks, master, self.samples,
                            self.rounds, backend] for rank in range(self.place.ranks)])

    def motley(self, transport):
        self.port += self.place.ranks
        members = ",".join(f"{address}:{self.port + rank}" for rank, address in enumerate(self.place.addresses))
        return self.lines([[PROGRAMS / "motley_all_reduce", rank, members, transport, self.samples, self.rounds]
                           for rank in range(self.place.ranks)])

    def planned(self, plans):
        """By the plan for each size."""
        lines = []
        for sample in self.samples.split(","):
            self.port += self.place.ranks
            members = ",".join(f"{address}:{self.port + rank}" for rank, address in enumerate(self.place.addresses))
            plan = plans[int(sample.partition("x")[0])]
            lines += self.lines([[PROGRAMS / "motley_all_reduce", rank, members, "tcp", sample, self.rounds, plan]
                                 for rank in range(self.place.ranks)])
        return lines

    def open_mpi(self, transport):
        program = [PROGRAMS / "open_mpi", self.samples, self.rounds]
        common = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", self.place.ranks]
        if isinstance(self.place, Here):
            links = "vader,self" if transport == "shm" else "tcp,self"
            return self.lines([[*common, "--oversubscribe", "--mca", "btl", links, "--mca", "btl_tcp_if_include", "lo", *program]])
        # One daemon per namespace, started through it; rank 0's namespace has mpirun.
        with tempfile.TemporaryDirectory() as folder:
            agent = Path(folder) / "agent"
            agent.write_text(MPI_AGENT)
            agent.chmod(0o755)
            hosts = ",".join(f"r{rank}" for rank in range(self.place.ranks))
            interface = self.place.interface
            options = {"plm_rsh_agent": agent, "btl": "tcp,self", "btl_tcp_if_include": interface, "oob_tcp_if_include": interface}
            words = [word for key, value in options.items() for word in ("--mca", key, value)]
            return self.lines([[*common, "--host", hosts, *words, *program]])


def ring(ranks, chunk_bytes):
    """A program per rank: a block of the chunk goes round once to be added up, and once as the sum."""
    borders = [chunk_bytes // ranks // 64 * 64 * block for block in range(ranks)] + [chunk_bytes]

    def steps(rank):
        for offset, arrival in [(0, "reduce"), (1, "recv")]:
            for step in range(ranks - 1):
                for kind, peer, block in [("send", rank + 1, rank + offset - step), (arrival, rank - 1, rank + offset - 1 - step)]:
                    block %= ranks
                    yield {"op": kind, "peer": peer % ranks, "range": borders[block:block + 2]}

    return {str(rank): list(steps(rank)) for rank in range(ranks)}


def plans_for(sizes, network, folder):
    """Per size a plan for the network and a ring of the same chunks, and the limit that no program beats."""
    (folder / "cluster.toml").write_text(networks.cluster(network))
    plans, rings, limits = {}, {}, {}
    for size in sizes:
        plans[size], rings[size] = folder / f"{size}.json", folder / f"{size}-ring.json"
        subprocess.run([MOTLEY, "plan", "allreduce", "--cluster", folder / "cluster.toml", "--bytes", f"{size} B", "-q", "-o", plans[size]],
                       check=True, stdout=subprocess.DEVNULL)
        plan = json.loads(plans[size].read_text())
        limits[size] = plan["predicted"]["limit_s"]
        program = ring(plan["ranks"], size // plan["chunks"])
        rings[size].write_text(json.dumps(plan | {"layout": "ring", "program": program}))
    return plans, rings, limits


def predicted_s(plan):
    """The program's price, whatever the file says of itself."""
    return json.loads(subprocess.run([MOTLEY, "explain", plan, "--json"], check=True, stdout=subprocess.PIPE).stdout)["total_s"]


def libraries(runner, local, plans, rings):
    """Name -> (what runs it, what it needs), in the order of the turns."""
    gloo = {f"gloo {algorithm}": (lambda algorithm=algorithm: runner.gloo(algorithm), PROGRAMS / "gloo_cpp")
            for algorithm in ("ring", "bcube", "halving")}
    gloo["gloo of PyTorch"] = (lambda: runner.torch("gloo"), PYTHON)
    ours, mpi = PROGRAMS / "motley_all_reduce", PROGRAMS / "open_mpi"
    if local:
        return {"motley shm": (lambda: runner.motley("shm"), ours), "motley tcp": (lambda: runner.motley("tcp"), ours),
                "openmpi shm": (lambda: runner.open_mpi("shm"), mpi), "openmpi tcp": (lambda: runner.open_mpi("tcp"), mpi)} | gloo
    return {"motley planned": (lambda: runner.planned(plans), ours), "motley ring": (lambda: runner.planned(rings), ours),
            "motley tcp": (lambda: runner.motley("tcp"), ours), "openmpi tcp": (lambda: runner.open_mpi("tcp"), mpi)} | gloo


def show(times, sizes, names, limits):
    """Medians in microseconds; per motley column its ratio to the best peer (of the same transport, for Open MPI)."""
    print("  ".join(["     bytes", *(f"{name:>16}" for name in names)]))
    for size in sizes:
        row = {name: statistics.median(times[name, size]) for name in names if times.get((name, size))}
        cells = [f"{row[name] * 1e6:>13.1f} us" if name in row else f"{'-':>16}" for name in names]
        remarks = []
        for name in names:
            if name.startswith("motley") and name in row:
                # Gloo has no shared memory: TCP over loopback is what it would use there.
                other = "openmpi shm" if name.endswith("tcp") else "openmpi tcp"
                peers = {peer: time_s for peer, time_s in row.items() if not peer.startswith("motley") and peer != other}
                if peers:
                    best = min(peers, key=peers.get)
                    remarks.append(f"{name}: {peers[best] / row[name]:.2f}x {best}")
                if size in limits:
                    remarks.append(f"{limits[size] / row[name]:.2f} of the limit")
        print("  ".join([f"{size:>10}", *cells, "; ".join(remarks)]), flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", help='"star RATE...", "tree SWITCH...", "wan OPTION...": see bench/network/networks.py')
    parser.add_argument("--ranks", type=int, default=4, help="on this machine")
    parser.add_argument("--bytes", type=lambda text: [int(size) for size in text.split(",")],
                        help="sizes; 1 KiB to 256 MiB by factors of 8 on this machine, 32 MiB on a network")
    parser.add_argument("--only", help="names of libraries that begin so, comma between")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="per size and turn, after one that warms up")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per program")
    parser.add_argument("--json", help="file for every line")
    return parser.parse_args()


def main():
    options = parse()
    if options.network:
        networks.isolate()
        network = networks.parse(options.network.split())[0]
        place = networks.build(network)
    else:
        place = Here(options.ranks)
    sizes = options.bytes or ([32 << 20] if options.network else [1 << shift for shift in range(10, 29, 3)])
    samples = ",".join(f"{size}x{repeats(size, bool(options.network))}" for size in sizes)
    folder = tempfile.TemporaryDirectory()
    plans, rings, limits = plans_for(sizes, network, Path(folder.name)) if options.network else ({}, {}, {})
    found = libraries(Runner(place, samples, options.rounds, options.timeout), not options.network, plans, rings)
    if options.only:
        found = {name: entry for name, entry in found.items() if name.startswith(tuple(options.only.split(",")))}
    for name in [name for name, (_, need) in found.items() if not need.exists() or ("mpi" in name and not shutil.which("mpirun"))]:
        print(f"note: {name} is left out: {found.pop(name)[1].name} is not there (packages/bench.txt, then build)", file=sys.stderr)
    times, every = {}, []
    for turn in range(options.turns):
        for name, (run, _) in found.items():
            for line in run():
                times.setdefault((name, line["bytes"]), []).append(line["time_s"])
                every.append(line | {"name": name, "turn": turn, "network": options.network})
    show(times, sizes, list(found), limits)
    for size in sizes if {"motley planned", "motley ring"} <= set(found) else []:
        planned, around = (statistics.median(times[name, size]) for name in ("motley planned", "motley ring"))
        print(f"{size} bytes: the plan is {around / planned:.2f} times as fast as a ring, "
              f"{predicted_s(rings[size]) / predicted_s(plans[size]):.2f} times by the model")
    if options.json:
        Path(options.json).write_text("".join(json.dumps(line) + "\n" for line in every))


if __name__ == "__main__":
    main()
