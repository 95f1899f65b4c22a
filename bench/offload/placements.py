"""Predicted and measured tokens/s of placements of a model of a billion parameters in bf16 (2 GB): weights, keys and values on the
device, in the host's memory and on a disk, in different shares, for 1 to 16 sequences.

    placements.py [--cache FOLDER] [--results FILE] [--only NAME ...] [--dry-run] [--disk-rate MB/S]

`motley cluster probe --disk` measures the machine before and after every few placements, each of which is run by `motley generate` and
kept in `--results`, so that runs add up. A rented machine's speed changes within seconds and within minutes: what others do on it makes passes
longer, never shorter, so the probe takes the first quartile of its times, and the table does, too, of all passes and of what the probes
around the runs predict.
Disks of rented machines are fast at first and slow later: a control group holds the probe and all runs to --disk-rate, as root.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import groups
from model import model_in

ROOT = Path(__file__).resolve().parents[2]

WORKLOAD = """format = "motley.workload/1"
[[class]]
name = "requests"
prompt_tokens = {prompt}
output_tokens = {output}
"""
# Layers of 16 whose weights, and whose keys and values, are in the host's memory and on the disk; micro-batches, sequences of each, and
# tokens of a prompt.
PLACEMENTS = {
    "all on the device": dict(batch=1),
    "all on the device, 16": dict(batch=16),
    "all on the device, 16 long": dict(batch=16, prompt=64),
    "all from disk": dict(weights=(0, 16), batch=1),
    "all from disk, 4": dict(weights=(0, 16), batch=4),
    "all from disk, 16": dict(weights=(0, 16), batch=16),
    "half from disk": dict(weights=(0, 8), batch=1),
    "a quarter from disk, 8": dict(weights=(0, 4), batch=8),
    "all from host": dict(weights=(16, 0), batch=1),
    "half from host, 16": dict(weights=(8, 0), batch=16),
    "host and disk, 4": dict(weights=(8, 4), batch=4),
    "keys on disk, 16": dict(kv=(0, 16), batch=16, prompt=64),
    "half from disk, keys on disk, 2 x 8": dict(weights=(0, 8), kv=(0, 16), batch=8, batches=2, prompt=64),
}
LAYERS, OUTPUT, BLOCK = 16, 8, 16
BETWEEN_PROBES = 3
LEAST_S, LEAST_SPANS = 20, 2
MOST_ANSWERS = 600  # more than come in LEAST_S


def typical(values):
    """The first quartile, as `motley cluster probe` has it for steps of a server."""
    return sorted(values)[len(values) // 4]


def say(text):
    print(text, file=sys.stderr, flush=True)


def motley(options, *arguments):
    result = subprocess.run(options.group.command([options.build / "motley", *arguments]), stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"motley {' '.join(map(str, arguments))} ended with {result.returncode}")
    return result.stdout


def plan_of(options, folder, cluster, placement):
    """(file of the plan, what it predicts: tokens/s, and what binds)"""
    batch, batches, prompt = placement["batch"], placement.get("batches", 1), placement.get("prompt", 16)
    workload, file = folder / "workload.toml", folder / "plan.json"
    workload.write_text(WORKLOAD.format(prompt=prompt, output=OUTPUT))
    motley(options, "plan", "offload", "--machine", cluster, "--model", options.model, "--workload", workload, "--max-batch", 1,
           "--max-batches", 1, "-q", "-o", file)
    plan = json.loads(file.read_text())
    tokens = -(-(prompt + OUTPUT) // BLOCK) * BLOCK
    plan |= dict(batch=batch, batches=batches, kv_tokens=batch * batches * tokens, prompt_chunk=max(prompt, -(-batch * prompt // OUTPUT)),
                 cpu_attention=True, activations=dict(device=1))
    for key in ("weights", "kv"):
        host, disk = placement.get(key, (0, 0))
        plan[key] = dict(device=(LAYERS - host - disk) / LAYERS, host=host / LAYERS, disk=disk / LAYERS)
    plan["predicted"].pop("memory_bytes")
    file.write_text(json.dumps(plan))
    terms = json.loads(motley(options, "explain", file, "--json"))
    # A request takes a pass for its prompt, which gives its first token, and one for every further token.
    predicted = batch * batches / terms["total_s"]
    return file, predicted, max(terms["terms"], key=lambda term: term["seconds"])["name"]


def measure(options, folder, plan, placement):
    """Seconds per token in every span in which a pass, or a few where they are needed for one, completes answers: while as many requests as
    there is room for are at work, each at another token. Those that begin are of all lengths."""
    room, prompt = placement["batch"] * placement.get("batches", 1), placement.get("prompt", 16)
    lengths = [1 + i * OUTPUT // room for i in range(room)] if room > 1 else [OUTPUT]
    lengths += [OUTPUT] * MOST_ANSWERS
    source, answers = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(dict(
        custom_id=str(number), method="POST", url="/v1/completions",
        body=dict(prompt=[(7 * i + 31 * number) % 31000 + 50 for i in range(prompt)], max_tokens=length, ignore_eos=True, temperature=0,
                  return_token_ids=True))) + "\n" for number, length in enumerate(lengths)))
    answers.write_text("")
    command = [options.build / "motley", "generate", plan, "--model", options.model, "--input", source, "--output", answers,
               "--worker-threads", options.threads, "-q"]
    process = subprocess.Popen(options.group.command(command), env=os.environ | {"MOTLEY_SPILL_DIR": str(options.spill)})
    answered = max(1, room // OUTPUT)  # in a span
    size, times, spans = 0, [], []
    while process.poll() is None and (len(spans) < LEAST_SPANS or times[-1] - times[room - 1] < LEAST_S):
        time.sleep(0.005)
        now = answers.stat().st_size  # looking costs the workers' cores little
        if now == size:
            continue
        size = now
        times += [time.monotonic()] * (answers.read_bytes().count(b"\n") - len(times))
        ends = times[room - 1::answered]
        spans = [(after - before) / (answered * OUTPUT) for before, after in zip(ends, ends[1:])]
    if process.poll() is not None:
        sys.exit(f"motley generate ended with {process.returncode}")
    process.terminate()
    process.wait()
    return spans


def probe(options, folder):
    file = folder / "probed.toml"
    motley(options, "cluster", "probe", "--model", options.model, "--weight-type", "bf16", "--seconds", 1, "--disk", options.spill, "-q", "-o",
           file)
    return file.read_text()


def ordered(rows):
    """(pairs that are predicted more than 10 % apart, how many of them were measured in that order)"""
    pairs = [(a, b) for a, b in itertools.permutations(rows, 2) if a["predicted"] > 1.1 * b["predicted"]]
    return len(pairs), sum(a["measured"] > b["measured"] for a, b in pairs)


def measure_all(options, folder, kept):
    """Adds to what is kept: cluster files, and for each placement the numbers of those around it and tokens/s."""

    def probed():
        kept["clusters"].append(probe(options, folder))
        return len(kept["clusters"]) - 1

    before = probed()
    for first in range(0, len(options.only), BETWEEN_PROBES):
        cluster = folder / "cluster.toml"
        cluster.write_text(kept["clusters"][before])
        measured = {name: measure(options, folder, plan_of(options, folder, cluster, PLACEMENTS[name])[0], PLACEMENTS[name])
                    for name in options.only[first:first + BETWEEN_PROBES]}
        after = probed()
        for name, spans in measured.items():
            expected = statistics.mean(priced(options, folder, kept, name, number)[0] for number in (before, after))
            say(f"{name}: {expected:.2f} tok/s predicted, {1 / typical(spans):.2f} measured")
            kept["runs"].setdefault(name, []).append([before, after, spans])
        options.results.write_text(json.dumps(kept, indent=1) + "\n")
        before = after


def priced(options, folder, kept, name, number):
    """(tokens/s, what binds it) with this cluster"""
    cluster = folder / "cluster.toml"
    cluster.write_text(kept["clusters"][number])
    return plan_of(options, folder, cluster, PLACEMENTS[name])[1:]


def rows_of(options, folder, kept):
    """Of each placement that was run."""
    for name, runs in kept["runs"].items():
        around = [number for run in runs for number in run[:2]]
        by_cluster = {number: priced(options, folder, kept, name, number) for number in set(around)}
        predicted = 1 / typical([1 / by_cluster[number][0] for number in around])
        measured = 1 / typical([span for run in runs for span in run[2]])
        yield dict(name=name, binding=by_cluster[around[-1]][1], predicted=predicted, measured=measured, error=predicted / measured - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--results", type=Path, default=None, help="default: placements.json in the cache folder")
    parser.add_argument("--only", nargs="*", default=list(PLACEMENTS), choices=list(PLACEMENTS), metavar="NAME")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--disk-rate", type=int, default=800, metavar="MB/S", help="reads, and writes, of the disk (default 800)")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing: price what is kept, and print it")
    options = parser.parse_args()
    options.model = model_in(options.cache)
    options.spill = Path(os.environ.get("MOTLEY_SPILL_DIR", options.cache))
    options.results = options.results or options.cache / "placements.json"
    kept = json.loads(options.results.read_text()) if options.results.exists() else dict(clusters=[], runs={})
    options.group = groups.disk_group(options.spill, options.disk_rate * 1_000_000)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            if not options.dry_run:
                measure_all(options, Path(scratch), kept)
            rows = list(rows_of(options, Path(scratch), kept))
    finally:
        options.group.remove()
    print(f"{'placement':<36} {'bound by':<12} {'predicted':>9} {'measured':>9} {'apart':>6}")
    for row in rows:
        print(f"{row['name']:<36} {row['binding']:<12} {row['predicted']:>9.2f} {row['measured']:>9.2f} {row['error']:>+6.0%}")
    if rows:
        print(f"mean error {statistics.mean(abs(row['error']) for row in rows):.1%}; of {ordered(rows)[0]} pairs that are predicted more "
              f"than 10 % apart {ordered(rows)[1]} are in that order")


if __name__ == "__main__":
    main()
