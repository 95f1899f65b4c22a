"""Random faults of workers, agents, links and machines, under load: what becomes of the requests.

    bench/machines/faults.py --machines 4 --faults 100 --streams 32
    bench/machines/faults.py --backend apart --machines 3 --streams 4 --tokens 24    # a step takes some 0.1 s

Prints one JSON object: requests that failed, texts that differ from those without a fault, pauses (the longest of each
stream after each fault, where it is above 0.1 s), and processes that are left at the end."""

import argparse
import json
import os
import random
import signal
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deployment import Deployment, inside

PROMPTS = ["Once upon a time", "The little dog", "In a far land", "One bright night", "Anna and Ben", "A wolf", "The king said", "It was cold"]


class Load:
    """Streams that ask for one answer after the other, until they are stopped."""

    def __init__(self, deployment, streams, tokens):
        self.deployment, self.tokens = deployment, tokens
        self.expected = {}
        self.failures, self.changed, self.requests = [], [], 0
        self.gaps = []  # (stream, begin, end) of what is longer than usual
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(number,), daemon=True) for number in range(streams)]

    def learn(self):
        wanted = [(prompt, seed) for number, prompt in enumerate(PROMPTS) for seed in (2 * number, 2 * number + 1)]
        with ThreadPoolExecutor(len(self.threads)) as pool:
            texts = pool.map(lambda each: self.deployment.complete(each[0], self.tokens, each[1]), wanted)
            self.expected = dict(zip(wanted, texts))

    def run(self, number):
        draws = random.Random(number)
        while not self.stop.is_set():
            prompt, seed = draws.choice(sorted(self.expected))
            arrivals = [time.monotonic()]
            try:
                text = self.deployment.complete(prompt, self.tokens, seed, arrivals)
            except Exception as failure:
                with self.lock:
                    self.failures.append(repr(failure))
                time.sleep(0.2)
                continue
            with self.lock:
                self.requests += 1
                self.gaps += [(number, a, b) for a, b in zip(arrivals[1:], arrivals[2:]) if b - a > 0.1]
                if text != self.expected[prompt, seed]:
                    self.changed.append((prompt, seed))


def faults_of(machine):
    """What may happen to this machine, as pairs of what is done, and what is done some seconds later."""
    def kill(pids, number):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    workers, agent = machine.workers(), machine.agent_process()
    found = {}
    if workers:
        found["worker killed"] = (lambda: kill(workers, signal.SIGKILL), None)
        found["worker stopped"] = (lambda: kill(workers, signal.SIGSTOP), None)
    if agent:
        def again():
            machine.agent.wait()
            machine.join()
        found["agent killed"] = (lambda: kill([agent], signal.SIGKILL), again if machine.number > 1 else None)
        if machine.number > 1:
            found["leaves"] = (lambda: kill([agent], signal.SIGTERM), again)
        found["agent stopped"] = (lambda: kill([agent], signal.SIGSTOP), lambda: kill([agent], signal.SIGCONT))
        if machine.number > 1:
            def rebuild():
                machine.make()
                machine.join()
            found["link cut"] = (lambda: machine.link(False), lambda: machine.link(True))
            found["machine removed"] = (machine.remove, rebuild)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--memory", default="9 MiB", help="of each machine (default: two hold the tales model)")
    parser.add_argument("--backend", choices=["cpu", "apart"], default="cpu",
                        help="what workers compute on: processors, or the stand-in of a GPU (tests/vendor/apart)")  # fmt: skip
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--only", action="append", help="kind of fault; repeatable (default: all)")
    parser.add_argument("--in-order", action="store_true", help="the kinds of --only, one after the other")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=120, help="of each answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build", default="build/release", help="folder with motley and motley-worker")
    parser.add_argument("--folder", default="/tmp/motley-faults")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    inside()
    if options.backend == "apart":
        os.environ["MOTLEY_TEST_DEVICES"] = str(Path(options.build).resolve() / "libapart_device.so")
        os.environ["MOTLEY_APART_LATE_US"] = "0"  # other tests have late streams: here a step would take three times as long
    deployment = Deployment(options.folder, options.memory, options.machines, motley=Path(options.build).resolve() / "motley",
                            options=["--max-tokens", "64", "--max-sequences", "16", "--device-threads", "1"])  # fmt: skip
    load = Load(deployment, options.streams, options.tokens)
    load.learn()
    for thread in load.threads:
        thread.start()
    draws, kinds, pauses, faults = random.Random(options.seed), {}, {}, []
    for number in range(options.faults):
        time.sleep(draws.uniform(0.5, 1.5))
        possible = {(machine.name, kind): acts for machine in deployment.machines for kind, acts in faults_of(machine).items()}
        wanted = [options.only[number % len(options.only)]] if options.in_order else options.only
        possible = {key: acts for key, acts in possible.items() if wanted is None or key[1] in wanted}
        name, kind = draws.choice(sorted(possible))
        act, undo = possible[name, kind]
        begin = time.monotonic()
        act()
        kinds[kind] = kinds.get(kind, 0) + 1
        time.sleep(draws.uniform(2, 6))
        deployment.wait(lambda: deployment.serving(), f"nothing serves after: {kind} on {name}")
        if undo:
            undo()
        deployment.wait(lambda: deployment.serving(options.machines), f"not all are back after: {kind} on {name}")
        end = time.monotonic()
        faults.append((kind, begin, end))
        if options.verbose:
            print(f"{number + 1:3} {kind} on {name}: all are back after {end - begin:.1f} s, {len(load.failures)} failures", flush=True)
    load.stop.set()
    for thread in load.threads:
        thread.join()
    left = deployment.end()
    for kind, begin, end in faults:
        longest = dict.fromkeys(range(options.streams), 0.0)  # of each stream
        for stream, a, b in load.gaps:
            if begin - 0.2 < a < end:
                longest[stream] = max(longest[stream], b - a)
        pauses.setdefault(kind, []).extend(pause for pause in longest.values() if pause > 0)
    every = sorted(pause for some in pauses.values() for pause in some)
    result = {
        "machines": options.machines, "backend": options.backend, "streams": options.streams, "tokens": options.tokens, "faults": kinds, "requests": load.requests,
        "failed": len(load.failures), "failures": sorted(set(load.failures))[:5], "changed": len(load.changed),
        "longest_pause_s": {kind: round(max(some, default=0), 2) for kind, some in pauses.items()},
        "pause_median_s": round(statistics.median(every), 2) if every else 0, "pause_p99_s": round(every[int(0.99 * (len(every) - 1))], 2) if every else 0,
        "processes_left": list(left.values()), "exit_code": deployment.process.poll()}  # fmt: skip
    print(json.dumps(result))
    if options.verbose and (load.failures or load.changed or left):
        print(deployment.text())


if __name__ == "__main__":
    main()
