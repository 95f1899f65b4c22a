"""A page per module: docs/modules has one for each of CMakeLists.txt, and the files, functions and types that it names are there."""

import re
from pathlib import Path

import pytest

from test_layering import DECLARATION, ROOT

PAGES = sorted((ROOT / "docs/modules").glob("*.md"))
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:hpp|cpp|h|py|md|json|toml|css)")
NAME = re.compile(r"[A-Z]\w*[a-z]\w*(?:::\w+\(\))?|\w+\(\)")  # Type, Type::function(), function()
IDS = {"ids": lambda page: page.stem}


def page_of(module):
    """The planners share a page, and so do the floors of comm."""
    return module.split("/")[0]


def direct_dependencies():
    """Page -> pages of the modules that its modules may use; with and without the runtime."""
    pages = {}
    for name, rest in DECLARATION.findall((ROOT / "CMakeLists.txt").read_text()):
        depends = re.search(r"DEPENDS ((?:[a-z_/]+ ?)+)", rest)
        uses = {page_of(module) for module in depends[1].split()} if depends else set()
        pages.setdefault(page_of(name), set()).update(uses - {page_of(name)})
    return pages


def test_every_module_has_a_page_and_every_page_a_module():
    assert {page.stem for page in PAGES} == direct_dependencies().keys()
    for index in ("docs/README.md", "CONTRIBUTING.md"):
        listed = set(re.findall(r"modules/(\w+)\.md", (ROOT / index).read_text()))
        assert listed == direct_dependencies().keys(), index


@pytest.mark.parametrize("page", PAGES, **IDS)
def test_a_page_is_read_in_five_minutes(page):
    assert len(page.read_text().split()) <= 700  # and of 16 pages none is near it


@pytest.mark.parametrize("page", PAGES, **IDS)
def test_a_page_names_what_its_module_uses(page):
    sentence = re.search(r"^Uses (.*?)\.$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert sentence, "no sentence `Uses ...`"
    assert set(re.findall(r"\]\((\w+)\.md\)", sentence[1])) == direct_dependencies()[page.stem]


@pytest.mark.parametrize("page", PAGES, **IDS)
def test_named_files_are_there(page):
    folder = ROOT / "motley" / page.stem
    named = [name for name in CODE.findall(page.read_text()) if FILE.fullmatch(name)]
    assert len(named) >= 3
    missing = [name for name in named if not any(folder.rglob(name)) and not (ROOT / name).exists()]
    produced = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}  # of a model folder
    assert not set(missing) - produced


@pytest.mark.parametrize("page", PAGES, **IDS)
def test_named_functions_and_types_are_in_the_module(page):
    """Not in comments alone: a word that code has."""
    sources = [path.read_text() for path in sorted((ROOT / "motley" / page.stem).rglob("*.[ch]*"))]
    words = set(re.findall(r"\w+", re.sub(r"//.*", "", "\n".join(sources))))
    named = [name for name in CODE.findall(page.read_text()) if NAME.fullmatch(name)]
    missing = [name for name in named if not set(re.findall(r"\w+", name)) <= words]
    assert not missing
