"""What a loss costs where the weights are large: a worker of each stage killed in turn, then a machine removed, under load.

    bench/machines/recovery.py --cache FOLDER --shape 1b --memory "1.6 GiB"

Prints one JSON object per event: the longest pause of each stream, which processes stayed, bytes of weights that workers loaded and
those that the plan moves, and the tokens that each stage computed again. Run with the reference environment."""

import argparse
import json
import os
import signal
import statistics
import struct
import sys
import threading
import time
from pathlib import Path

from deployment import Deployment, inside

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "decode"))


def bytes_by_part(model):
    """Of a safetensors file: per layer, and of what stands before and behind the layers."""
    with (model / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    layers, ends = {}, 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        size = tensor["data_offsets"][1] - tensor["data_offsets"][0]
        if ".layers." in name:
            layer = int(name.split(".layers.")[1].split(".")[0])
            layers[layer] = layers.get(layer, 0) + size
        else:
            ends += size
    return layers, ends


def held(plan):
    """By device: its layers, and whether it has the embedding or the head (tied: the same tensor)."""
    return {device: (set(range(*stage["layers"])), stage["embedding"] or stage["head"]) for stage in plan["plan"]["stages"] for device in stage["devices"]}


def moved_bytes(before, after, restarted, layers, ends):
    """What devices of the new plan did not hold, those started again included."""
    old, total = held(before), 0
    for device, (numbers, end) in held(after).items():
        had, had_end = old.get(device, (set(), False)) if device not in restarted else (set(), False)
        total += sum(layers[number] for number in numbers - had) + (ends if end and not had_end else 0)
    return total


class Streams:
    """Each asks for one answer after the other; `arrivals` are the times of its pieces."""

    def __init__(self, deployment, count, tokens):
        self.stop, self.failures = threading.Event(), []
        self.arrivals = [[] for _ in range(count)]
        self.threads = [threading.Thread(target=self.run, args=(deployment, number, tokens), daemon=True) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, deployment, number, tokens):
        while not self.stop.is_set():
            try:
                deployment.complete("Once upon a time there was a little dog " * 4, tokens, number, self.arrivals[number])
            except Exception as failure:
                self.failures.append(repr(failure))
                return

    def longest_pauses(self, begin):
        gaps = [[b - a for a, b in zip(times, times[1:]) if b > begin] for times in self.arrivals]
        return [round(max(of_stream, default=0), 3) for of_stream in gaps]

    def usual_s(self):
        return statistics.median(b - a for times in self.arrivals for a, b in zip(times, times[1:]))

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def has_copies(plan):
    """Every worker holds the copies of layers that the plan gives its device."""
    memory = plan["plan"]["predicted"]["memory_bytes"]
    return all(worker["standby_bytes"] == memory[worker["device"]].get("standby", 0) for worker in plan["workers"])


def observe(deployment, streams, name, act, restarted, sizes, machines):
    deployment.wait(lambda: has_copies(deployment.plan()), "the copies are not loaded", 180)
    before, begin = deployment.plan(), time.monotonic()
    act()
    deployment.wait(lambda: deployment.plan()["epoch"] > before["epoch"] and deployment.serving(), "nothing serves", 180)
    serves = time.monotonic()
    deployment.wait(lambda: all(times[-1] > serves for times in streams.arrivals), "a stream stands still", 180)
    after = deployment.plan()
    processes = {worker["device"]: worker["process"] for worker in before["workers"]}
    stayed = [worker["device"] for worker in after["workers"] if processes.get(worker["device"]) == worker["process"]]
    replayed = {stage: tokens - before["replayed_tokens"].get(stage, 0) for stage, tokens in after["replayed_tokens"].items()}
    print(json.dumps({"event": name, "machines": machines, "longest_pause_s": streams.longest_pauses(begin), "serves_after_s": round(serves - begin, 2),
                      "processes_that_stayed": stayed,
                      "loaded_bytes": {worker["device"]: worker["loaded_bytes"] for worker in after["workers"]},
                      "moved_bytes": moved_bytes(before, after, restarted, *sizes), "replayed_tokens": replayed}), flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder for the model")
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--machines", type=int, default=3)
    parser.add_argument("--memory", default="1.6 GiB", help="of each machine")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--build", default="build/release", help="folder with motley and motley-worker")
    parser.add_argument("--standby", help="memory of each machine for copies of others' layers, such as \"1 GiB\" (default: none)")
    parser.add_argument("--folder", default="/tmp/motley-recovery")
    options = parser.parse_args()
    inside()
    model = options.cache / f"llama-{options.shape}"
    if not (model / "tokenizer.json").exists():
        from make_model import make, write_tokenizer

        if not (model / "config.json").exists():
            make(options.shape, model)
        write_tokenizer(model)
    words = ["--max-tokens", "64", "--max-sequences", str(options.streams), "--device-threads", "1"]
    words += ["--standby-weights", options.standby] if options.standby else []
    deployment = Deployment(options.folder, options.memory, options.machines, motley=Path(options.build).resolve() / "motley", model=model,
                            options=words, patience_s=300)  # fmt: skip
    sizes = bytes_by_part(model)
    streams = Streams(deployment, options.streams, options.tokens)
    deployment.wait(lambda: all(len(times) > 10 for times in streams.arrivals), "no tokens come", 180)
    print(json.dumps({"weights_bytes": sum(sizes[0].values()) + sizes[1], "usual_s_between_tokens": round(streams.usual_s(), 4),
                      "layers": {device: len(layers) for device, (layers, _) in held(deployment.plan()).items()}}), flush=True)  # fmt: skip
    for number in range(len(deployment.plan()["workers"])):
        worker = deployment.plan()["workers"][number]
        observe(deployment, streams, f"worker of {worker['stage']} on {worker['device']} killed", lambda: os.kill(worker["process"], signal.SIGKILL),
                {worker["device"]}, sizes, options.machines)  # fmt: skip
        time.sleep(2)
    last = deployment.machines[-1]
    observe(deployment, streams, f"{last.name} removed", last.remove, set(), sizes, options.machines - 1)
    streams.end()
    print(json.dumps({"failures": streams.failures, "processes_left": sorted(deployment.end())}))


if __name__ == "__main__":
    main()
