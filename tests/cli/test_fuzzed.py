"""What strangers' files are read by, on files with a few things changed. `./dev fuzz` does the same under libFuzzer.
MOTLEY_FUZZ_INPUTS says how many inputs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INPUTS = os.environ.get("MOTLEY_FUZZ_INPUTS", "10000")
# Form of reasoning and end of the prompt, length of the pieces, text.
ANSWERS = [b"\x09\3<think>\nIt is < day. </think>\n\nGood day.", b"\0\5It is day.</th</think> Yes",
           b"\x0b\3<|channel>thought\nIt is < day.\n<channel|>Good day. <|channel>thought\n<channel|>", b"\x08\5It is day.<chan<channel|>Yes",
           b"\x0b\2\0<|channel>\0thought\nDay.\0<channel|>\0Yes",
           b"\4\2\0<|channel|>\0analysis\0<|message|>\0Day.\0<|end|>\0\0<|start|>\0assistant\0<|channel|>\0final\0<|message|>\0Yes"]


def made(script, folder):
    subprocess.run([sys.executable, ROOT / "tests/fuzz" / script, folder], check=True)
    return folder.iterdir()


def answers(folder):
    for place, answer in enumerate(ANSWERS):
        (folder / str(place)).write_bytes(answer)
    return folder.iterdir()


SEEDS = {
    "config": lambda folder: (ROOT / "data/models").glob("*/config.json"),
    "profile": lambda folder: [ROOT / "tests/fuzz/profile.json"],
    "gguf_model": lambda folder: made("gguf_seeds.py", folder),
    "packed": lambda folder: made("packed_seeds.py", folder),
    "reasoning": answers,
}


@pytest.mark.parametrize("name", SEEDS)
def test_no_input_breaks_a_parser(name, motley, tmp_path):
    (tmp_path / "seeds").mkdir()
    program = motley.parent / "tests/fuzz" / f"{name}_mutations"
    result = subprocess.run([program, INPUTS, *sorted(SEEDS[name](tmp_path / "seeds"))], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
