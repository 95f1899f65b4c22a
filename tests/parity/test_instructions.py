"""The instructions that docs/reference/weight-types.md names are those in the compiled kernels, set by set."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build" / "release"))
PAGE = ROOT / "docs/reference/weight-types.md"


def rows():
    """Of the page's first table, by its headings."""
    lines = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in PAGE.read_text().splitlines() if line[:1] == "|"]
    heading, *rest = lines[: next(i for i, line in enumerate(lines) if line[0] == "kernels")]
    return [dict(zip(heading, line)) for line in rest]


def instructions(text):
    return set(re.findall(r"`([vt]\w+)`", text))


SETS = [heading.strip("`") for heading in rows()[0] if heading.startswith("`")]
NAMED = set().union(*(instructions(cell) for row in rows() for cell in row.values()))


@pytest.mark.parametrize("kernels", SETS)
def test_kernels_have_the_instructions_that_the_page_names_and_no_others_of_them(kernels):
    code = BUILD / f"CMakeFiles/motley_engine_cpu.dir/motley/engine/cpu/cpu_kernels_{kernels}.cpp.o"
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", code], capture_output=True, text=True, check=True).stdout
    found = {name for name in NAMED if re.search(rf"\t{name}", listing)}
    assert found == set().union(*(instructions(row[f"`{kernels}`"]) for row in rows()))


def test_the_page_names_every_set_of_kernels():
    assert SETS == ["portable", "avx2", "avx512", "avx512vnni", "avx512bf16", "avx512amx"]
