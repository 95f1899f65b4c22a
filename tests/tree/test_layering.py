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


def test_includes_follow_the_layers():
    reach = dependencies()
    assert "base" in reach and len(reach) >= 10
    wrong = []
    for path in sorted((ROOT / "motley").rglob("*.[ch]pp")):
        module = path.parent.relative_to(ROOT / "motley").as_posix()
        for included in INCLUDE.findall(path.read_text()):
            same_house = "_test." in path.name and included.split("/")[0] == module.split("/")[0]
            if included not in reach[module] and not same_house:
                wrong.append(f"{path.relative_to(ROOT)} includes motley/{included}")
    assert not wrong, wrong


def test_torch_and_boost_stay_in_their_modules():
    allowed = {"ATen/": {"engine"}, "torch/": {"engine"}, "c10/": {"engine"}, "boost/": {"server", "comm/membership"}, "pybind11/": {"text"}}
    wrong = []
    for path in sorted((ROOT / "motley").rglob("*.[ch]pp")):
        module = path.parent.relative_to(ROOT / "motley").as_posix()
        for header in re.findall(r'^#include [<"](\S+)[">]', path.read_text(), re.MULTILINE):
            for prefix, modules in allowed.items():
                if header.startswith(prefix) and module not in modules:
                    wrong.append(f"{path.relative_to(ROOT)} includes {header}")
    assert not wrong, wrong
