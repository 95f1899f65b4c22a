"""What `motley train --async-save` costs the steps meanwhile: one worker of one thread, held to one and a half cores (processor quotas,
control groups of version 1, root), so that half a core is left to the writer.

    saving.py [--rounds 2] [--steps 65] [--every 4] [--length 128] [--batch 8]

Steps that begin while a checkpoint is written take turns with steps that do not: the figure is the mean over all checkpoints of how much
longer the former take than the latter up to the next checkpoint, with its standard error.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import predicted
import quota


def run(model, options, *more):
    """Seconds of every step, and of every checkpoint until it was committed."""
    plan = model.plan([predicted.replica(1, 4, predicted.stage(0, predicted.LAYERS, [predicted.ONE]))], "1f1b", False)
    output = Path(tempfile.mkdtemp(dir=model.folder))
    group = quota.made(1.5)
    command = [predicted.BUILD / "motley", "train", plan, "--model", model.folder / "model", "--data", model.folder / "tokens.npy", "--output",
               output / "run", "--steps", options.steps, "--no-shuffle", "--local", *more]
    driver = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    worker = ""
    while not worker:
        listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(driver.pid)], capture_output=True, text=True).stdout
        worker = next((line.split()[0] for line in listed.splitlines() if "motley-worker" in line), "")
        time.sleep(0.01)
    quota.hold(group, worker)
    errors = driver.communicate()[1]
    group.rmdir()
    if driver.returncode:
        sys.exit(errors)
    lines = [json.loads(line) for line in (output / "run/metrics.jsonl").read_text().splitlines()]
    saved = [float(seconds) for seconds in re.findall(r"written in ([\d.]+) s", errors)]
    return [line["seconds"] for line in lines], saved


def longer(seconds, saved, every):
    """Of each checkpoint, by how much of a step the steps that begin while it is written take longer than those until the next one: the
    last of a run has none after it."""
    found = []
    for number, written in enumerate(saved[:-1], 1):
        steps, step = seconds[number * every:(number + 1) * every], 0
        while written > 0 and step < len(steps):
            written -= steps[step]
            step += 1
        with_it, without = steps[:step], steps[step:]
        if with_it and without:
            found.append(statistics.mean(with_it) / statistics.mean(without) - 1)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in [("rounds", 2), ("steps", 65), ("every", 4), ("length", 128), ("batch", 8)]:
        parser.add_argument("--" + name, type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        model = predicted.Model(options, Path(made))
        times, found, written = [], [], []
        for _ in range(options.rounds):
            seconds, saved = run(model, options, "--save-every", options.every, "--async-save")
            times += seconds[1:]
            found += longer(seconds, saved, options.every)
            written += saved[:-1]
    error = statistics.stdev(found) / len(found) ** 0.5
    print(f"{statistics.median(times):.3f} s per step; {100 * statistics.mean(found):+.1f} % (standard error {100 * error:.1f} %) while a "
          f"checkpoint is written ({len(found)} checkpoints of {statistics.median(written):.2f} s)")


if __name__ == "__main__":
    main()
