"""Runs of engine_check."""

import json
import os
import subprocess
from pathlib import Path

import numpy
import torch

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build" / "release"))


def check(case, folder):
    """The process, and where it writes."""
    (folder / "case.json").write_text(json.dumps(case))
    result = subprocess.run([BUILD / "engine_check", folder / "case.json", folder / "out"], capture_output=True, text=True, timeout=600)
    return result, folder / "out"


def run(case, folder):
    """[({layout, script, request, tokens}, logits [generated, vocabulary])], all requests of one length."""
    result, out = check(case, folder)
    assert result.returncode == 0, result.stderr
    runs = json.loads(out.with_suffix(".json").read_text())
    assert len(runs) == len(case["layouts"]) * len(case["scripts"]) * len(case["requests"])
    generated = case["requests"][0]["generate"]
    return list(zip(runs, numpy.fromfile(out.with_suffix(".bin"), numpy.float32).reshape(len(runs), generated, -1)))


def chain(*degrees, cuts, shares=None, experts=None, transport="shm"):
    """A layout of stages with these degrees, cut at the layers `cuts`: [0, ..., layers]; `experts`: whole ones of each rank."""
    stages = [dict(first=cuts[i], last=cuts[i + 1], degree=degree) for i, degree in enumerate(degrees)]
    for stage, share in zip(stages, shares or []):
        if share:
            stage["shares"] = share
    for stage, counts in zip(stages, experts or []):
        if counts:
            stage["expert_shares"] = counts
    return dict(name=f"{'-'.join(map(str, degrees))} at {cuts} shares {shares} experts {experts} {transport}", stages=stages,
                transport=transport)


def logits_along(model, prompt, tokens):
    """Those of `transformers` for a given continuation, in one pass."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1:].float().numpy()
