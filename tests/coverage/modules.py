"""A table of line coverage per module, in reading order, from gcovr's summary (`./dev test --coverage`)."""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def modules():
    """Module folders in the order of CMakeLists.txt."""
    return re.findall(r"^\s*motley_module\(([\w/]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)


def counts(summary):
    """Module -> [lines, covered], of those that have any; a file that belongs to none is an error."""
    found = {module: [0, 0] for module in modules()}
    for file in summary["files"]:
        module = Path(file["filename"]).parent.relative_to("motley").as_posix()
        found[module][0] += file["line_total"]
        found[module][1] += file["line_covered"]
    return {module: lines for module, lines in found.items() if lines[0]}


def table(found):
    total = [sum(column) for column in zip(*found.values())]
    rows = [f"{'module':<20}{'lines':>8}{'covered':>9}{'%':>7}"]
    rows += [f"{module:<20}{lines:>8}{covered:>9}{100 * covered / lines:>7.1f}" for module, (lines, covered) in [*found.items(), ("all", total)]]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(counts(json.loads(Path(sys.argv[1]).read_text()))))
