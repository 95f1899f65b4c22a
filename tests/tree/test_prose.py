"""How pages, comments and messages are written: lines of at most 120 columns, sentences of at most 45 words, and none of the words
that make a reader stop."""

import os
import re
from pathlib import Path

import pytest

from pages import ROOT
from reflow import COLUMNS, blocks, reflowed

# Archaisms, and words for people where a process is meant.
BANNED = (
    "lest|anew|afresh|in vain|hitherto|heretofore|whosoever|thereof|therein|whereof|whence|whilst|unto|thrice|nought|naught|at hand|"
    "begun with|time is up|glad|forgive|forgives|forgiven|mend|mends|mended|mending"
)
GAP = r"\s+(?:(?://|#)\s*)?"  # a phrase may go on in the next line of a comment
WORD = re.compile(rf"(?<![\w-])(?:{BANNED.replace(' ', GAP)})(?!\w)", re.IGNORECASE)
# Turns of phrase that are read twice. `beside` is for what lies in the same folder; "X is no Y" is "X is not a Y".
IDIOMS = (
    r"beside\b(?! (?:the |its |their |a |each )?(?:code|program|file|folder|package)s?\b| `[^`]*\.\w+`)|"
    r"so many|nobody|somebody|whoever|(?<!there\x20)is no (?!longer|more|less|better)|likewise|in the lurch"
)
IDIOM = re.compile(rf"(?<![\w-])(?:{IDIOMS.replace(' ', GAP)})", re.IGNORECASE)
LONGEST = 45  # words of a sentence, names in `code` left out
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!\.\.\.)[)\"'*]*\s+")
GENERATED = re.compile(r"<!-- generated: begin.*?<!-- generated: end -->", re.DOTALL)
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


def found(pattern, texts):
    return [f"{name}:{text.count(chr(10), 0, word.start()) + 1}: {word[0]}" for name, text in texts.items() for word in pattern.finditer(text)]


def test_no_word_makes_a_reader_stop(texts):
    assert not found(WORD, texts)


def test_no_idiom_is_read_twice(texts):
    assert not found(IDIOM, texts)


def words(sentence):
    return len(re.sub(r"\]\([^)]*\)|`[^`]*`", "", sentence).split())


def test_sentences_of_pages_are_short(texts):
    long = []
    for name, text in texts.items():
        for prose, lines in blocks(GENERATED.sub("", text)) if name.endswith(".md") else ():
            sentences = SENTENCE_END.split(" ".join(line.strip() for line in lines)) if prose else []
            long += [f"{name}: {words(sentence)} words: {sentence}" for sentence in sentences if words(sentence) > LONGEST]
    assert not long
