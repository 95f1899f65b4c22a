"""How pages, comments and messages are written: lines of at most 120 columns, and none of the words that make a reader stop."""

import os
import re
from pathlib import Path

import pytest

from pages import ROOT
from reflow import COLUMNS, reflowed

# Archaisms, and words for people where a process is meant.
BANNED = (
    "lest|anew|afresh|in vain|hitherto|heretofore|whosoever|thereof|therein|whereof|whence|whilst|unto|thrice|nought|naught|at hand|"
    "begun with|time is up|glad|forgive|forgives|forgiven|mend|mends|mended|mending"
)
GAP = r"\s+(?:(?://|#)\s*)?"  # a phrase may go on in the next line of a comment
WORD = re.compile(rf"(?<![\w-])(?:{BANNED.replace(' ', GAP)})(?!\w)", re.IGNORECASE)
# Data, other people's texts, this list, and sentences that a model is trained on.
EXEMPT = re.compile(r".*\.(?:csv|json|jsonl|txt|png|safetensors|gguf|npz)|LICENSE|tests/tree/test_prose\.py|examples/tales/grammar\.py")


# What is not part of the source tree, which may lie there without git: see .gitignore.
MADE = {".git", ".venv", ".venv-gpu", ".venv-reference", ".cache", ".pytest_cache", "__pycache__", "build"}


@pytest.fixture(scope="module")
def texts():
    texts = {}
    for folder, inside, files in os.walk(ROOT):
        inside[:] = [name for name in inside if name not in MADE]
        names = [str(Path(folder, name).relative_to(ROOT)) for name in files if not name.endswith(".pyc")]
        texts |= {name: (ROOT / name).read_text() for name in names if not EXEMPT.fullmatch(name)}
    return texts


def test_lines_of_pages_are_at_most_120_columns(texts):
    """A line may be longer where it cannot be wrapped: code, a table's row, one long word."""
    pages = {name: text for name, text in texts.items() if name.endswith(".md")}
    assert len(pages) > 60
    long = []
    for name, text in pages.items():
        wrapped = set(reflowed(text).split("\n"))
        long += [f"{name}: {line}" for line in text.split("\n") if len(line) > COLUMNS and line not in wrapped]
    assert not long, "./dev format wraps them"


def test_no_word_makes_a_reader_stop(texts):
    found = []
    for name, text in texts.items():
        found += [f"{name}:{text.count(chr(10), 0, word.start()) + 1}: {word[0]}" for word in WORD.finditer(text)]
    assert not found
