"""Decode and prompt speed on this machine's CPU with each type of keys and values at long contexts: one sequence, random weights in q8_0.

    kv_types.py [--cache FOLDER] [--build FOLDER] [--rounds N] [--threads N] [--shape 135m|qwen3-0.6b] [--kernels avx2]

Runs with the reference environment. The types are measured in turn, `rounds` times over; the table holds medians.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import run

TYPES = ["fp32", "bf16", "q8_0"]
CASES = {"135m": 4000, "qwen3-0.6b": 2000}  # tokens of the prompt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--build", type=Path, default=run.ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shape", choices=CASES, help="measure this one alone")
    parser.add_argument("--kernels", action="append", help="motley's sets to measure (default: all that run here)")
    options = parser.parse_args()
    bench = options.build / "decode_bench"
    print("| shape | prompt | kernels | KV type | KV bytes | decode tokens/s | to fp32 | prompt tokens/s | to fp32 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for shape in [options.shape] if options.shape else CASES:
        folder = options.cache / f"llama-{shape}"
        run.output_of(sys.executable, run.HERE / "make_model.py", folder, "--shape", shape)
        for kernels in options.kernels or json.loads(run.output_of(bench, "kernels")):
            reports = {kv: [] for kv in TYPES}
            for round_number in range(options.rounds):
                for kv in TYPES:
                    command = [bench, folder, "q8_0", 1, CASES[shape], run.STEPS, options.threads, kv]
                    report = json.loads(run.output_of(*command, env={**os.environ, "MOTLEY_KERNELS": kernels}))
                    reports[kv].append(report)
                    run.say(f"round {round_number + 1}: {shape} {kernels} {kv}: decode {report['tokens_per_s']:.2f} tokens/s")
            rates = {kv: [statistics.median(report[figure] for report in reports[kv]) for figure in ("tokens_per_s", "prefill_tokens_per_s")]
                     for kv in TYPES}
            for kv in TYPES:
                decode, prompt = rates[kv]
                print(f"| {shape} | {CASES[shape]} | {kernels} | {kv} | {reports[kv][0]['kv_bytes'] / 2**20:.0f} MiB | {decode:.2f} | "
                      f"{decode / rates['fp32'][0]:.2f} | {prompt:.2f} | {prompt / rates['fp32'][1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
