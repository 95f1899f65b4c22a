"""Writes talks about tales, one JSON line each, as `motley train` reads them.

    python talks.py --count 2000 -o talks.jsonl
"""

import argparse
import json
import random
from pathlib import Path

import grammar


def messages(rng, questions):
    system, turns = grammar.make_dialogue(rng, questions)
    talk = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        talk += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.assistant}]
    return talk


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--questions", type=int, nargs=2, default=[3, 6], metavar=("FEWEST", "MOST"), help="about each tale")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with options.output.open("w") as out:
        for _ in range(options.count):
            out.write(json.dumps({"messages": messages(rng, tuple(options.questions))}) + "\n")


if __name__ == "__main__":
    main()
