"""The engine on the stand-in device, whose memory the host cannot touch and whose streams run late (tests/vendor/apart), against the
processor: the same tokens and logits, and the same bits whenever its streams run."""

import os

import numpy
import pytest

import engine
import models

ALL = os.environ.get("MOTLEY_STANDINS") == "all"  # ./dev test standins; else a selection
FAMILIES = list(models.MODELS) if ALL else ["llama-gqa-llama3", "qwen3.5"]
SEEDS = range(1, 9) if ALL else [1, 2]
PROMPTS = [models.tokens(count, seed=count) for count in (5, 24)]
GENERATE = 2
FP32_TOLERANCE = 5e-4  # of the logits' deviation
BF16_EXCESS = 1.5  # over the processor's own error against fp32, as in test_parity.py


def layout(*backends):
    """A stage on each."""
    cuts = [models.LAYERS * i // len(backends) for i in range(len(backends) + 1)]
    stages = [dict(first=cuts[i], last=cuts[i + 1], backend=backend) for i, backend in enumerate(backends)]
    return dict(name=" then ".join(backends), stages=stages)


RANKS = dict(name="two ranks", stages=[dict(first=0, last=models.LAYERS, degree=2, backend="apart:0")])
APART = [layout("apart:0"), layout("apart:0", "apart:1"), RANKS]
if ALL:
    APART += [layout("cpu", "apart:0"), dict(layout("apart:0", "apart:1", "apart:0"), transport="tcp")]


def on_processors(of):
    """The same layout: ranks round their parts of a sum."""
    return dict(of, stages=[dict(stage, backend="cpu") for stage in of["stages"]])


@pytest.fixture
def logits_of(tmp_path, monkeypatch):
    """logits_of(folder, layouts, seed, ...): of all requests, and the tokens chosen, by layout."""
    monkeypatch.setenv("MOTLEY_TEST_DEVICES", str(engine.BUILD / "libapart_device.so"))

    def run(folder, layouts, seed=1, tokens=None, **case):
        monkeypatch.setenv("MOTLEY_APART_SEED", str(seed))
        requests = [dict(prompt=prompt, generate=GENERATE, **({"forced": forced} if tokens else {}))
                    for prompt, forced in zip(PROMPTS, tokens or PROMPTS)]
        runs = engine.run(dict(model=str(folder), layouts=layouts, requests=requests,
                               scripts=[dict(name="together", chunk=16, together=True)], **case), tmp_path)
        by_layout = [[run for run in runs if run[0]["layout"] == of["name"]] for of in layouts]
        return [(numpy.concatenate([logits for _, logits in part]), [run["tokens"] for run, _ in part]) for part in by_layout]

    return run


@pytest.mark.parametrize("name", FAMILIES)
def test_a_device_apart_says_what_the_processor_says(name, tmp_path, logits_of):
    models.make(name, tmp_path / "model")
    exact = tokens = None  # those of one processor, in fp32
    for kind in ("fp32", "bf16"):
        case = dict(weight_type=kind, kv_type=kind, tokens=tokens)
        expected = logits_of(tmp_path / "model", list(map(on_processors, APART)), **case)
        if kind == "fp32":
            exact, tokens = expected[0]
        runs = [logits_of(tmp_path / "model", APART, seed, **case) for seed in (SEEDS if kind == "fp32" or ALL else SEEDS[:1])]
        for number, of in enumerate(APART):
            for logits, chosen in (run[number] for run in runs):
                if kind == "fp32":
                    assert chosen == tokens, of["name"]
                    assert abs(logits - exact).max() <= FP32_TOLERANCE * exact.std(), of["name"]
                else:
                    error, of_processors = (numpy.square(other - exact).mean() ** 0.5 for other in (logits, expected[number][0]))
                    assert error <= BF16_EXCESS * of_processors, of["name"]
                assert (logits == runs[0][number][0]).all(), f"{of['name']} depends on when streams run"
