"""Losses of `motley train` against a plain loop of torch in one process: random plans of two to six workers of a tiny model, fp32, 20 steps.

    losses.py [--plans 50] [--seed 0]

The families take turns. Runs with the reference environment. Prints the worst relative difference of any step's loss, by family and of all.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/parity")]
import engine  # noqa: E402
import models  # noqa: E402
import training  # noqa: E402

BATCH, STEPS = 12, 20


class Family:
    def __init__(self, name, folder):
        self.folder = folder
        folder.mkdir()
        model = models.make(name, folder / "model", **training.SMOOTH.get(name, {}))
        self.config = json.loads((folder / "model/config.json").read_text())
        tokens = training.random_tokens(folder / "tokens.npy", training.LENGTH * 100 + 1, 5)
        self.losses, _ = training.reference(model, tokens, BATCH, STEPS, clip=1.0)

    def worst(self, rng, number):
        replicas = training.random_replicas(rng, models.LAYERS, BATCH, rng.randrange(2, 7))
        plan = training.plan_of(self.config, replicas, BATCH, schedule=rng.choice(["1f1b", "gpipe", "zb-h1"]), overlap=rng.random() < 0.5,
                                training={"clip_norm": 1.0})
        run = self.folder / str(number) / "run"
        run.parent.mkdir()
        result = training.run(engine.BUILD / "motley", plan, self.folder / "model", self.folder / "tokens.npy", run, STEPS)
        if result.returncode:
            sys.exit(f"{result.stderr}\n{json.dumps(plan)}")
        found = training.losses(run)
        assert len(found) == STEPS
        return max(abs(ours / theirs - 1) for ours, theirs in zip(found, self.losses))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plans", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as made:
        families = {name: Family(name, Path(made) / name) for name in models.MODELS}
        worst = {name: [] for name in families}
        for number in range(options.plans):
            name = list(families)[number % len(families)]
            worst[name].append(families[name].worst(rng, number))
        for name, differences in worst.items():
            if differences:
                print(f"{name:<26}{len(differences):>3} plans   worst difference of a loss {max(differences):.1e}")
        print(f"{'all':<26}{options.plans:>3} plans   worst difference of a loss {max(max(d) for d in worst.values() if d):.1e}")


if __name__ == "__main__":
    main()
