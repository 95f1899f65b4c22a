"""Errors say what to do: those that a user's input causes carry a hint, in every module."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def arguments(text, start):
    """How many the call has whose parenthesis opens before `start`."""
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', lambda string: "s" * len(string[0]), text[start : start + 2000])
    depth, count = 1, 1
    for character in plain:
        depth += (character in "({[") - (character in ")}]")
        if depth == 0:
            return count
        count += character == "," and depth == 1
    raise AssertionError("a call without an end")


def test_input_errors_have_hints():
    seen, bare = 0, []
    for path in sorted((ROOT / "motley").rglob("*.[ch]pp")):
        if path.name.endswith("_test.cpp"):
            continue
        text = path.read_text()
        for call in re.finditer(r"\binput_error\(|(?:\br|reader|place|root_|\bat|\))\s*\.fail\(", text):
            seen += 1
            if arguments(text, call.end()) == 1:
                bare.append(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, call.start()) + 1}")
    assert seen > 300
    assert not bare
