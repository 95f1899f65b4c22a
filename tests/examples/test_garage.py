"""The example that `./dev demo` runs, as a user runs it."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARK = "MOTLEY_TEST_GARAGE"


def workers_of_this_run():
    """Ids of living processes that carry this run's environment: orphans are found too, other people's workers are not."""
    mark = f"{MARK}={os.getpid()}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass
    return found


@pytest.fixture(scope="module")
def garage(motley):
    if not (motley.parent / "motley-worker").exists():
        pytest.skip("motley-worker is not built")
    if not (ROOT / "data/models/tales/model.safetensors").exists():
        pytest.skip("the tales model is not here")
    environment = os.environ | {"MOTLEY": str(motley), MARK: str(os.getpid())}
    return subprocess.run(
        [ROOT / "examples/garage/run.sh"], cwd="/", env=environment, capture_output=True, text=True, timeout=300
    )


def test_the_garage_tells_a_tale_and_answers_about_it(garage):
    assert garage.returncode == 0, garage.stdout + garage.stderr
    talk = garage.stdout.split("> Tell me a short story about a lantern and an owl.\n")[1]
    tale = talk.split("> ")[0]
    assert "owl" in tale and "lantern" in tale and len(tale.split()) > 40
    helper = re.search(r"> Who helped the owl\?\n(\w+) ", talk)[1]
    colour = re.search(r"> What colour was the lantern\?\nThe lantern was (\w+)\.", talk)[1]
    assert helper in tale and f"{colour} lantern" in tale


def test_the_memories_force_unlike_stages(garage):
    assert "3 stages on 6 of 6 devices; tp 2 > 3 > 1" in garage.stdout
    assert "50% 25% 25%" in garage.stdout
    assert "no violations" in garage.stdout


def test_tokens_equal_those_of_one_device(garage):
    match = re.search(r"tokens equal: yes \((\d+) tokens; [\d.]+ tokens/s", garage.stdout)
    assert match and int(match[1]) > 50


def test_a_worker_is_killed_and_the_answer_ends_as_it_would_have(garage):
    act = garage.stdout.split("== a worker is killed in the middle of an answer\n")[1]
    assert re.search(r"\(killed: process \d+, shelf/0, rank 0 of stage r0/s1\)", act)
    assert act.endswith("the same answer as without the loss: yes\n") and len(act.split()) > 60


@pytest.mark.parametrize("template", [True, False])
def test_a_model_of_your_own(motley, tmp_path, template):
    """A folder with or without a chat template, over memories that grow with it; the plan is kept where it is asked for."""
    model = tmp_path / "model"
    shutil.copytree(ROOT / "data/models/tales", model)
    if not template:
        settings = json.loads((model / "tokenizer_config.json").read_text())
        del settings["chat_template"]
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
    environment = os.environ | {"MOTLEY": str(motley), MARK: str(os.getpid())}
    run = subprocess.run([ROOT / "examples/garage/run.sh", "--model", "model", "--keep", "kept", "--weight-type", "fp32"], cwd=tmp_path,
                         env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"stages on [456] of 6 devices", run.stdout)
    assert len(run.stdout.split("> ")[-1].split()) > 40
    assert re.search(r"\d+ tokens in [\d.]+ s over the garage", run.stdout)
    assert ("no chat template" in run.stdout) != template
    assert json.loads((tmp_path / "kept" / "plan.json").read_text())["kind"] == "serve"
    assert workers_of_this_run() == []


def test_no_process_remains(garage):
    assert workers_of_this_run() == []
