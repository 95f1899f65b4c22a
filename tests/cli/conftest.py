"""How tests of the command line run the program."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def run(motley):
    """run("plan serve --seed 1", file, ...) -> CompletedProcess, in the root of the repository."""

    def run(words, *arguments):
        command = [str(motley), *words.split(), *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    return run


@pytest.fixture(scope="session")
def run_to(motley):
    """run_to("plan", "train", ..., code=2) -> CompletedProcess, which must end with that code (by default 0)."""

    def run_to(*arguments, code=0):
        command = [str(motley), *map(str, arguments)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert result.returncode == code, result.stderr
        return result

    return run_to
