"""`motley report`: a page that is well formed, stands alone, and says what the plan says."""

import json
import re
import shlex
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANS = {
    "garage": "plan serve --cluster examples/garage/cluster.toml --model data/models/tales --workload examples/garage/workload.toml "
    "--weight-type fp32 --max-tokens 64 --max-sequences 8",
    "helix": "plan serve --cluster examples/helix/cluster.toml --model llama-2-70b --workload examples/helix/workload.toml "
    "--profile examples/helix/profile.json --objective flow --deadline '2 s'",
    "train": "plan train --cluster examples/train/lab.toml --model llama-2-13b --workload examples/train/job.toml --deadline '2 s'",
    "grid": "plan train --cluster examples/dtfm/worldwide.toml --model opt-1.3b --workload examples/dtfm/workload.toml --cost dtfm "
    "--stages 8 --replicas 8 --set dtfm.gradient_bytes=650000000 --deadline '1 s'",
    "chain": "plan train --chain examples/chain/layers.json --front",
    "collective": "plan allreduce --cluster examples/collectives/two-racks.toml --bytes '400 MB'",
    "rent": "plan rent --offers examples/renting/measured.json --budget '8 $/h'",
    "fleet": "plan rent --model llama-2-70b --workload examples/renting/workload.toml --offers examples/renting/market.toml --cheapest",
}
HOSTILE = "</title></style><script>alert(1)</script><img src=\"x\" onerror='y'>&<b>"
# Everything that a page may hold. What loads or runs something is not among it.
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "nav", "section", "article", "h1", "h2", "h3", "h4", "p", "div", "span",
    "a", "b", "i", "ul", "ol", "li", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "details", "summary",
    "svg", "defs", "pattern", "rect", "path", "line", "circle", "text", "desc",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "name", "content", "http-equiv", "class", "id", "style", "title", "href", "role", "aria-label", "aria-labelledby",
    "aria-hidden", "tabindex", "scope", "open", "viewbox", "preserveaspectratio", "width", "height", "x", "y", "x1", "x2", "y1", "y2", "rx",
    "cx", "cy", "r", "d", "patternunits", "text-anchor", "stroke-width", "fill-opacity",
}  # fmt: skip


class Page(HTMLParser):
    """Parses a page; fails on what does not nest or is not allowed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.words, self.ids, self.links, self.drawings = [], [], set(), [], 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS, tag
        names = [name for name, _ in attributes]
        assert set(names) <= ATTRIBUTES and len(set(names)) == len(names), (tag, attributes)
        values = dict(attributes)
        if "id" in values:
            assert values["id"] not in self.ids
            self.ids.add(values["id"])
        if "href" in values:
            self.links.append(values["href"])
        if "style" in values:
            assert re.fullmatch(r"(flex-grow|--depth):\d+", values["style"])
        if values.get("role") == "img":
            assert values.get("aria-label") or values.get("aria-labelledby")
            self.drawings += 1
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, self.getpos()

    def handle_data(self, text):
        if "style" not in self.open:
            self.words.append(text)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def run(motley):
    def run(*words):
        return subprocess.run([str(motley), *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture(scope="module")
def plans(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    made = {}

    def plan(name):
        if name not in made:
            made[name] = folder / f"{name}.json"
            result = run(*shlex.split(PLANS[name]), "-q", "-o", made[name])
            assert result.returncode == 0, result.stderr
        return made[name]

    return plan


def page_of(run, plan, *options):
    result = run("report", plan, *options)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) < 600_000
    assert "@import" not in result.stdout and not re.search(r"url\((?!#fill\d\))", result.stdout)
    page = Page(result.stdout)
    assert page.links and all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    return page


@pytest.mark.parametrize("name", PLANS)
def test_every_kind_of_plan_has_a_page_that_stands_alone(name, run, plans):
    page = page_of(run, plans(name))
    sections = {
        "rent": {"fleet", "classes", "alternatives", "devices"},
        "fleet": {"fleet", "classes", "alternatives", "devices", "slower", "workload"},
        "collective": {"cluster", "traffic", "cost"},
        "chain": {"choice", "memory", "cost", "front"},
    }
    wanted = sections.get(name, {"cluster", "stages", "memory", "cost", "timeline"})
    assert {"#" + part for part in wanted} <= set(page.links)
    assert page.drawings >= 3
    assert "Not simulated" not in page.text and "Not priced" not in page.text


def test_the_page_tells_the_plans_figures(run, plans):
    plan = json.loads(plans("garage").read_text())
    page = page_of(run, plans("garage"))
    assert f"output tokens {plan['predicted']['tokens_per_s']:.4g}/s" in page.text
    for stage in plan["stages"]:
        assert stage["id"] in page.text
    for memory in plan["predicted"]["memory_bytes"].values():
        assert f"weights {memory['weights'] / 2**20:#.3g} MiB" in page.text
    chain = page_of(run, plans("chain"))
    assert "time 5.30 s" in chain.text and "2 \u00d7 layer thin" in chain.text


def test_the_same_plan_gives_the_same_page_to_the_byte(run, plans, tmp_path):
    for name in ("garage", "train"):
        for file in ("a.html", "b.html"):
            assert run("report", plans(name), "-q", "-o", tmp_path / file).returncode == 0
        assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert run("report", plans("garage"), "--seed", 1).stdout != run("report", plans("garage"), "--seed", 2).stdout
    assert "30 simulated requests" in page_of(run, plans("garage"), "--requests", 30).text


def renamed(value, names):
    """The document with these strings replaced wherever they stand, as values and as keys."""
    if isinstance(value, dict):
        return {renamed(key, names): renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("name", ["garage", "train", "rent", "chain"])
def test_names_cannot_break_out_of_the_text(name, run, plans, tmp_path):
    plan = json.loads(plans(name).read_text())
    names = {}
    for stage in plan.get("stages", []):
        names[stage["id"]] = HOSTILE + stage["id"]
    for route in plan.get("routes", []):
        names[route["id"]] = HOSTILE + route["id"]
    for entry in plan.get("fleet", []):
        names[entry["configuration"]] = HOSTILE + entry["configuration"]
    for entry in plan.get("offers", {}).get("classes", []):
        names[entry["name"]] = HOSTILE + entry["name"]
    plan = renamed(plan, names)
    for key in ("model", "cluster", "chain"):
        if key in plan:
            plan[key]["name"] = HOSTILE
    plan["search"]["planner"] = HOSTILE
    for unused in plan.get("unused", []):
        unused["reason"] = HOSTILE
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps(plan))
    page = page_of(run, file)
    assert " ".join(HOSTILE.split()) in page.text


def test_it_writes_where_it_is_told(run, plans, tmp_path):
    file = tmp_path / "report.html"
    file.write_text("before")
    result = run("report", plans("chain"), "-o", file)
    assert result.returncode == 0 and result.stdout == "" and f"wrote {file}" in result.stderr
    assert file.read_text() == run("report", plans("chain")).stdout
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]

    missing = run("report", plans("chain"), "-o", tmp_path / "none" / "report.html")
    assert missing.returncode == 3 and "hint: create the folder" in missing.stderr


def test_what_is_no_sound_plan_is_refused(run, plans, tmp_path):
    plan = json.loads(plans("garage").read_text())
    plan["stages"][0]["devices"] = ["nowhere/0"]
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(plan))
    result = run("report", file, "-o", tmp_path / "report.html")
    assert result.returncode == 2 and "nowhere/0" in result.stderr and not (tmp_path / "report.html").exists()
    assert run("report", ROOT / "examples/garage/cluster.toml").returncode == 2


def test_help_teaches_with_an_example(run):
    text = run("report", "--help").stdout
    assert "motley report plan.json -o report.html" in text
