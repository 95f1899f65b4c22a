"""docs/limits.md is one table that answers "can I do X, and where has it run?"."""

import re

from pages import ROOT

STATES = {"works", "built and never run", "planned only", "not there"}
LINK = re.compile(r"\[[^\]]+\]\(([^)\s#]+)(?:#[\w-]+)?\)")
LONGEST = 110  # characters of a capability: one line, read at a glance


def rows():
    lines = [line for line in (ROOT / "docs/limits.md").read_text().splitlines() if line.startswith("|")]
    assert lines[:2] == ["| capability | state | ran on | page |", "|---|---|---|---|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_capability_has_one_of_four_states_and_a_page():
    assert len(rows()) > 100
    for row in rows():
        assert len(row) == 4, row
        capability, state, ran_on, page = row
        assert state in STATES, row
        assert 0 < len(capability) <= LONGEST, row
        assert ran_on or state != "works", f"where has it run? {row}"
        assert LINK.search(page) and all((ROOT / "docs" / file).exists() for file in LINK.findall(page)), row


def test_no_capability_stands_twice():
    names = [row[0] for row in rows() if not row[0].startswith("the same")]
    assert len(names) == len(set(names))


def test_the_page_explains_its_states():
    text = (ROOT / "docs/limits.md").read_text()
    assert set(re.findall(r"^- \*\*([\w ]+)\*\*:", text, re.MULTILINE)) == STATES
