"""The table of data/models names every model there, with as many parameters as were counted of it."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "data/models"


def table():
    """{name: (parameters, the last digit's worth)}; `-13b` stands for the name before with another end."""
    found = {}
    for row in re.findall(r"^\| (`.*) \|$", (MODELS / "README.md").read_text(), re.M):
        cells = row.split(" | ")
        names = re.findall("`([^`]+)`", cells[0])
        names = [names[0].rsplit("-", 1)[0] + name if name.startswith("-") else name for name in names]
        figures = re.findall(r"\d+\.\d+", cells[-1])
        assert cells[-1].endswith(" B") and len(figures) == len(names), row
        found |= {name: (float(figure) * 1e9, 1e9 / 10 ** len(figure.split(".")[1])) for name, figure in zip(names, figures)}
    return found


def test_the_table_has_the_parameters_of_every_model():
    assert set(table()) == {file.parent.name for file in MODELS.glob("*/config.json")} - {"tales"}
    counted = {record["name"]: record["parameters"] for record in json.loads((ROOT / "tests/data/parameter_counts.json").read_text())}
    for name, (parameters, digit) in table().items():
        assert abs(counted[name] - parameters) <= digit / 2 * 1.001, name
