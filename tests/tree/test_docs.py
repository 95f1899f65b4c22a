"""What the pages say is true: links lead somewhere, and each command was run, with the output that is shown."""

import os
import re
import subprocess
import sys

import pytest

from pages import FENCE, PAGES, ROOT, Command, commands, name_of, parts

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)

# Commands that this test does not run, and what does, or why nothing can.
ELSEWHERE = {
    r"motley up |motley join |motley deployment status$|motley chat --url ": "needs several machines: tests/network/test_machines.py, tests/server/test_running.py",
    r"\./dev |build/release/bench/": "installs and builds, or measures for minutes; the names are held against the tree below",
    r"export PATH=": "this test sets the same",
    r"motley group serve |motley group create lab && motley group serve": "stays up: tests/cli/test_group.py, tests/cli/test_group_serve.py",
    r"export MOTLEY_|python train\.py$": "a program of the reader's: tests/cli/test_group.py, tests/torch/test_torch.py",
    r"motley group bench .*--members": "started on several machines: tests/cli/test_group.py, tests/cli/test_group_bench.py",
    r"motley group bench --ranks": "measures: tests/cli/test_group_bench.py",
    r"motley cluster probe --members|motley plan allreduce --cluster probed\.toml": "started on several machines: tests/network/test_probe_members.py",
    r"motley cluster probe --(cluster|disk)": "measures for a minute: tests/calibration/test_probe.py",
    r"motley cluster probe --routing|motley plan serve .*--profile profile\.json": "runs a mixture over a text: tests/parity/test_mixture.py",
    r"bench/network/": "needs root: tests/network/test_networks.py",
    r"for rank in .*/average": "tests/examples/test_collectives.py",
    r"torchrun |export PYTHONPATH=": "tests/torch/test_torch.py",
    r"python train\.py --out": "trains for hours",
    r"motley cluster probe --backend cuda": "needs a GPU; refusals: tests/calibration/test_probe.py",
}
# Python blocks that are run; the others are parts of a reader's program (tests/torch).
RUN_PYTHON = ["docs/guides/tutorial.md"]

# What differs from run to run.
FIGURES = [
    (re.compile(r"\[ *[\d.]+s\]"), "[TIME]"),
    (re.compile(r"^(motley_\w+(?:\{.*\})?) [\d.e+-]+$"), r"\1 N"),
    (re.compile(r"sha256:[0-9a-f]{64}"), "sha256:DIGEST"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"), "DATE"),
]


def ids(page):
    return name_of(page)


def anchors(page):
    """As browsers of repositories make them of headings."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_relative_links_lead_to_files_and_headings(page):
    text = FENCE.sub("", page.read_text())
    missing = []
    for target in LINK.findall(text):
        file, _, anchor = target.partition("#")
        to = page.parent / file if file else page
        if "://" not in target and not (to.exists() and (not anchor or anchor in anchors(to))):
            missing.append(target)
    assert not missing


def test_sources_named_on_pages_are_there():
    files = [str(path.relative_to(ROOT)) for folder in ("motley", "tests", "bench", "cmake", "python", "examples") for path in (ROOT / folder).rglob("*")]
    named = {(name_of(page), name) for page in PAGES for name in re.findall(r"`([\w./-]+\.(?:hpp|cpp|h|py))`", FENCE.sub("", page.read_text()))}
    assert len(named) > 200
    named.remove(("docs/adding-a-family.md", "families/sometimes.cpp"))  # the page has the file itself
    assert not [pair for pair in sorted(named) if not any(f"/{file}".endswith(f"/{pair[1]}") for file in files)]


def test_pages_named_in_sources_are_there():
    files = [path for folder in ("motley", "tests", "bench", "cmake", "python", "examples") for path in (ROOT / folder).rglob("*")]
    sources = [path for path in files if path.suffix in (".hpp", ".cpp", ".cu", ".cuh", ".h", ".py", ".cmake", ".sh", ".toml")]
    named = {(name_of(path), page) for path in sources for page in re.findall(r"(?<![\w./])docs/[\w/.-]+\.(?:md|png)", path.read_text())}
    assert len(named) > 40
    assert not [pair for pair in sorted(named) if not (ROOT / pair[1]).exists()]


def test_the_map_names_every_page():
    """docs/README.md links every page, whatever folder it lies in."""
    index = (ROOT / "docs/README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert not [str(page) for page in pages if str(page) != "README.md" and f"]({page}" not in index]


def test_the_contents_of_a_long_page_are_its_headings():
    text = FENCE.sub("", (ROOT / "docs/benchmarks.md").read_text())
    assert re.findall(r"^ *- \[(.*)\]\(#[\w-]+\)$", text, re.MULTILINE) == HEADING.findall(text)[1:]


def test_every_format_has_a_reference_page():
    sources = [path for path in (ROOT / "motley").rglob("*.[ch]pp") if "_test." not in path.name]
    formats = {name for path in sources for name in re.findall(r'format\("(motley\.[\w-]+/\d+)"\)', path.read_text())}
    pages = "".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    assert len(formats) >= 8
    assert not [name for name in formats if f'`"{name}"`' not in pages]


def covered(command):
    return [why for pattern, why in ELSEWHERE.items() if re.match(pattern, command.text)]


def test_what_is_said_to_run_elsewhere_is_said_truly():
    every = [command for page in PAGES for command in commands(page)]
    assert len(every) > 80
    for pattern, why in ELSEWHERE.items():
        assert any(re.match(pattern, command.text) for command in every), f"{pattern} is on no page any more"
        assert all((ROOT / file).exists() for file in re.findall(r"tests/[\w/]+\.py", why)), why


def test_the_projects_own_commands_are_there():
    """`./dev NAME` and `./dev bench NAME`, wherever a page names them."""
    verbs = re.findall(r"^  (\w+)[\w |-]*\) ", (ROOT / "dev").read_text(), re.MULTILINE)
    benches = (ROOT / "bench/run.sh").read_text()
    for page in PAGES:
        for verb, name in re.findall(r"\./dev (\w+)(?: ([a-z][\w-]+))?", page.read_text()):
            assert verb in verbs, f"{page}: ./dev {verb}"
            assert verb != "bench" or not name or re.search(rf"\b{name}\b", benches), f"{page}: ./dev bench {name}"


def test_verbs_and_options_named_in_prose_are_there():
    sections = re.split(r"^## (motley.*)$", (ROOT / "docs/reference/cli.md").read_text(), flags=re.MULTILINE)[1:]
    verbs = dict(zip(sections[::2], sections[1::2]))
    assert len(verbs) > 25
    wrong = []
    for page in PAGES:
        for line in re.findall(r"`(motley [a-z][^`\n]*)`", FENCE.sub("", page.read_text())):
            line = line.split("|")[0]  # one of several verbs
            verb = max((verb for verb in verbs if f"{line} ".startswith(f"{verb} ")), key=len)
            no_verb = "Subcommands:" in verbs[verb] and re.match(" [a-z]", line[len(verb) :])
            options = set(re.findall(r" (--[\w-]+|-[a-z])\b", line))
            if no_verb or any(not re.search(rf"(?<![\w-]){option}\b", verbs[verb]) for option in options):
                wrong.append(f"{name_of(page)}: {line}")
    assert not wrong


def words(text):
    """Lines without what only aligns columns, or differs from run to run."""
    lines = []
    for line in text.splitlines():
        line = " ".join(line.split())
        for pattern, instead in FIGURES:
            line = pattern.sub(instead, line)
        lines.append(line)
    return lines


def check_shown(command, printed):
    """Every shown line is printed, in order; `...` stands for anything."""
    at, text = 0, "\n".join(words(printed))
    for line in words("\n".join(command.shown)):
        if line in ("", "..."):
            continue
        pattern = ".*?".join(re.escape(piece) for piece in line.split("..."))
        whole = pattern if line.startswith(("{", '"')) else f"^{pattern}$"  # long JSON is broken into lines on pages
        found = re.compile(whole, re.MULTILINE).search(text, at)
        assert found, f"{command.text}\nis said to print\n{line}\nbut prints\n{printed}"
        at = found.end()


class Reader:
    """Who does what a page says, in a folder that looks like the repository and takes the files that the commands write."""

    def __init__(self, folder, motley, start_server):
        for name in ("examples", "data"):
            (folder / name).symlink_to(ROOT / name)
        self.folder = folder
        self.start_server = start_server
        self.server = None
        self.environment = os.environ | {"PATH": f"{motley.parent}{os.pathsep}{os.environ['PATH']}"}

    def here(self, text):
        """What goes to the server's usual address goes to where this one listens."""
        if self.server is None:
            return text
        text = text.replace("http://127.0.0.1:8000", self.server.url)
        return re.sub(r"^motley chat ", f"motley chat --url {self.server.url} ", text)

    def run(self, command):
        if serve := re.fullmatch(r"motley serve (.*) --local", command.text):
            self.server = self.start_server(*(self.folder / word if (self.folder / word).exists() else word for word in serve[1].split()))
            return check_shown(command, self.server.text().replace(self.server.url, "http://127.0.0.1:8000"))
        result = subprocess.run(["bash", "-c", self.here(command.text)], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120)
        assert result.returncode == command.code, f"{command.text}\n{result.stdout}{result.stderr}"
        check_shown(command, result.stdout)

    def run_python(self, block):
        program = block.replace("http://127.0.0.1:8000", self.server.url) if self.server else block
        result = subprocess.run([sys.executable, "-c", program], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0 and result.stdout.strip(), result.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if any(not covered(command) for command in commands(page))], ids=ids)
def test_the_walk_through_prints_what_the_page_shows(page, motley, start_server, tmp_path):
    reader = Reader(tmp_path, motley, start_server)
    for part in parts(page):
        if isinstance(part, Command):
            if not covered(part):
                reader.run(part)
        elif part[0] == "python":
            if name_of(page) in RUN_PYTHON:
                reader.run_python(part[1])
        else:
            (tmp_path / part[0]).write_text(part[1])
    if reader.server is not None:
        assert reader.server.stop() == 0


def test_walks_pass_what_is_there_and_turn_back_twice_at_most():
    walks = re.split(r"^## ", (ROOT / "docs/walks.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(walks) == 6
    for walk in walks:
        steps = re.findall(r"^    (\S+\.cpp|\S+\.hpp) +(.*)$", walk, re.MULTILINE)
        assert 10 <= len(steps) <= 30, walk
        assert len(re.findall(r"\bup: ", walk)) <= 2, walk
        for file, what in steps:
            source = (ROOT / "motley" / file).read_text()
            missing = [name for name in re.findall(r"(\w+)\(", what) if name not in source]
            assert not missing, (file, missing)
