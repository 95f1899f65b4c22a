"""The order of modules in CMakeLists.txt is the layering: a file may include only its own module and those it depends on; a
test also the other floors of its module."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DECLARATION = re.compile(r"motley_module\((\S+)(.*?)\)\s*$", re.MULTILINE)
INCLUDE = re.compile(r'^#include [<"]motley/(.+)/[^/]+\.hpp[">]', re.MULTILINE)


def dependencies():
    """Module -> all modules it may include, in declaration order."""
    reach = {}
    for name, rest in DECLARATION.findall((ROOT / "CMakeLists.txt").read_text()):
        match = re.search(r"DEPENDS ((?:[a-z_/]+ ?)+)", rest)
        direct = match.group(1).split() if match else []
        reach.setdefault(name, {name}).update(*(reach.get(module, set()) for module in direct))
    return reach


def module_of(folder, modules):
    """A folder in a module that is none itself belongs to that one."""
    while folder not in modules and "/" in folder:
        folder = folder.rsplit("/", 1)[0]
    return folder


def test_includes_follow_the_layers():
    reach = dependencies()
    assert "base" in reach and len(reach) >= 10
    wrong = []
    for path in sorted((ROOT / "motley").rglob("*.[ch]pp")):
        module = module_of(path.parent.relative_to(ROOT / "motley").as_posix(), reach)
        for included in INCLUDE.findall(path.read_text()):
            same_house = "_test." in path.name and included.split("/")[0] == module.split("/")[0]
            if module_of(included, reach) not in reach[module] and not same_house:
                wrong.append(f"{path.relative_to(ROOT)} includes motley/{included}")
    assert not wrong, wrong


def test_torch_and_boost_stay_in_their_modules():
    torch = {"engine", *(f"engine/{floor}" for floor in ("device", "ops", "cpu", "cuda", "weights", "stage")), "trainer/step", "worker"}
    allowed = {"ATen/": torch, "torch/": torch, "c10/": torch, "boost/": {"server", "comm/membership"}}
    wrong = []
    for path in sorted((ROOT / "motley").rglob("*.[ch]pp")):
        module = module_of(path.parent.relative_to(ROOT / "motley").as_posix(), dependencies())
        for header in re.findall(r'^#include [<"](\S+)[">]', path.read_text(), re.MULTILINE):
            for prefix, modules in allowed.items():
                if header.startswith(prefix) and module not in modules:
                    wrong.append(f"{path.relative_to(ROOT)} includes {header}")
    assert not wrong, wrong


# Small circles that are left, most of them a header and the private one of its source. None may be added.
PAIRS = [
    [f"motley/{folder}/{name}" for name in names.split()]
    for folder, names in [
        ("comm", "c_api c_support"),
        ("solve", "milp milp_solvers"),
        ("solve", "strategy_chain strategy_lists"),
    ]
]


def strongly_connected(edges):
    """Sets of nodes that all reach each other, of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def test_no_units_include_each_other_in_a_circle():
    """A unit is a header with its source: where they form a circle, none can be read, tested or moved by itself."""
    edges = {}
    for path in (ROOT / "motley").rglob("*.[ch]*"):
        unit = path.relative_to(ROOT).with_suffix("").as_posix()
        included = re.findall(r'^#include "(motley/[^"]+)\.h(?:pp)?"', path.read_text(), re.MULTILINE)
        edges.setdefault(unit, set()).update(set(included) - {unit})
    assert len(edges) > 300
    assert strongly_connected({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    circles = strongly_connected({unit: others & edges.keys() for unit, others in edges.items()})
    assert [circle for circle in circles if circle not in PAIRS] == []
    assert [circle for circle in PAIRS if circle not in circles] == [], "broken: take it off the list"
