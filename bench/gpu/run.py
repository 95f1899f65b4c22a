"""Checks motley on this machine's GPU, with an installed PyTorch, and prints a table for docs/gpu.md.

    python3 run.py [--dry-run] [--only NAME,...] [--minutes 10] [--out FOLDER] [--backend cuda:0] [--llama-cpp FOLDER]

Lies in a folder that `./dev gpu` packs, which may be copied to any machine with a GPU, PyTorch 2.11 for CUDA and `transformers`. Checks run
in the order of the list; one that fails is noted, and the next goes on. With --backend cpu they run on the processor with small
shapes, which shows that they work and measures nothing.
"""

import argparse
import datetime
import json
import sys
import time
import traceback
from pathlib import Path

import checks


def missing():
    """Why no GPU can be used, and what would help; None where one can."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch is missing: {error}", "install torch 2.11 with CUDA: `pip install torch==2.11.0`"
    if not torch.__version__.startswith("2.11."):
        return f"PyTorch is {torch.__version__}, and motley is built for 2.11", "pip install torch==2.11.0"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU", "`nvidia-smi` must list one, and `torch.version.cuda` must not be empty"
    return None


def run(selected, context, minutes):
    """[(name, seconds, error or None, rows)]: rows are of the table. Does not start what would end after `minutes`."""
    begin, results = time.monotonic(), []
    for check in selected:
        left = 60 * minutes - (time.monotonic() - begin)
        if check.limit_s > left:
            results.append((check.name, 0.0, f"not started: it may take {check.limit_s} s, and {left:.0f} s are left", []))
            continue
        print(f"{check.name}: {check.shows}", file=sys.stderr, flush=True)
        started, rows, error = time.monotonic(), [], None
        context.deadline = started + check.limit_s
        try:
            check.run(context, rows)
        except Exception as failure:
            error = str(failure) or type(failure).__name__
            (context.out / f"{check.name}.error").write_text(traceback.format_exc())
        seconds = time.monotonic() - started
        results.append((check.name, seconds, error, rows))
        print(f"{check.name}: {'failed: ' + error if error else 'passed'} ({seconds:.0f} s)", file=sys.stderr, flush=True)
        (context.out / "results.json").write_text(json.dumps(results, indent=1))
        (context.out / "table.md").write_text(table(results, context.machine))
    return results


def table(results, machine):
    lines = [f"{machine}\n", "| check | what | result | asked |", "|---|---|---|---|"]
    for name, seconds, error, rows in results:
        lines += [f"| {name} | {what} | {result} | {asked} |" for what, result, asked in rows]
        if error:
            lines.append(f"| {name} | **failed** | {' '.join(error.split())[-300:]} | |")
    return "\n".join(lines) + "\n"


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="list the checks")
    parser.add_argument("--only", help="names of checks, by commas")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--backend", default="cuda:0")
    parser.add_argument("--llama-cpp", type=Path, help="the folder of its programs, built for this card, to compare with (default: the pack's, if any)")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else [check.name for check in checks.ALL]
    unknown = set(names) - {check.name for check in checks.ALL}
    if unknown:
        parser.error(f"no check is named {', '.join(sorted(unknown))}; --dry-run lists them")
    selected = [check for check in checks.ALL if check.name in names]
    if options.dry_run:
        for check in selected:
            print(f"{check.name:10} {check.limit_s:4} s  {check.shows}")
        return 0
    if options.backend != "cpu" and (why := missing()):
        print(f"error: {why[0]}\nhint: {why[1]}", file=sys.stderr)
        return 3
    options.out.mkdir(parents=True, exist_ok=True)
    pack = Path(__file__).resolve().parent
    packed = pack / "llama.cpp" if (pack / "llama.cpp").exists() and options.backend != "cpu" else None
    context = checks.Context(pack, options.out.resolve(), options.backend, options.llama_cpp or packed)
    context.machine = f"{context.card()}, {datetime.date.today()}"
    results = run(selected, context, options.minutes)
    context.close()
    print(table(results, context.machine))
    return 1 if any(error for _, _, error, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
