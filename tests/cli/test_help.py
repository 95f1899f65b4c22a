"""`--help` teaches: every verb has examples, those that need nothing but this machine are run, and docs/reference/cli.md is what is printed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/cli.md"
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"
GARAGE = "--cluster examples/garage/cluster.toml --model data/models/tales --workload examples/garage/workload.toml --weight-type fp32 --max-tokens 64 --max-sequences 8"

# Examples that are not run here, and why; their options are held against the verb's all the same.
NOT_RUN = {
    r"motley deployment status|motley deployment apply |motley deployment drain |motley deployment invite": "talks to a server: tests/server/test_running.py, tests/network/test_machines.py",
    r"motley up |motley join |MOTLEY_LINK=|motley serve .*--agents": "need several machines, and stay up: tests/network/test_machines.py",
    r"motley generate ": "needs a plan that offloads and requests: tests/server/test_offload.py",
    r"motley chat": "talks to a server: tests/examples/test_garage.py, tests/tree/test_docs.py",
    r"motley group serve ": "stays up: tests/cli/test_group_serve.py, tests/cli/test_group.py",
    r"motley group bench ": "measures, or needs several machines: tests/cli/test_group_bench.py, tests/cli/test_group.py",
    r"motley cluster probe |motley plan allreduce --cluster net\.toml": "measures: tests/calibration/test_probe.py, tests/network/test_probe_members.py",
    r"motley train |motley serve .*run/step-": "need a plan and data: tests/cli/test_train.py",
    r"motley report run/": "needs a run: tests/cli/test_run_report.py",
    r"curl ": "asks a server: tests/tree/test_docs.py",
}
# Where an example stays up, what shows that it would.
INSTEAD = [(re.compile(r"(motley serve .*--local)$"), r"\1 --dry-run"), (re.compile(r"serve plan.json --model DIR\b"), "serve garage.json --model data/models/tales")]


def help_of(motley, verb):
    result = subprocess.run([motley, *verb.split(), "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def pages(motley):
    """Verb ("" is the program, "plan serve") -> its help, in the order in which they are listed."""
    found = {}

    def visit(verb):
        found[verb] = help_of(motley, verb)
        for section in re.findall(r"^([A-Z][a-z ]+):\n((?:  .*\n)+)", found[verb], re.MULTILINE):
            if section[0] not in ("Options", "Positionals"):
                for name in re.findall(r"^  ([\w-]+) ", section[1], re.MULTILINE):
                    visit(f"{verb} {name}".strip())

    visit("")
    return found


def examples_of(text):
    """Commands of a help text: without the remarks next to them, with those that go on after a backslash."""
    text = re.sub(r" \\\n\s*", " ", text)
    found = re.findall(r"^(?:example:)? +((?:motley|curl) .*)$", text, re.MULTILINE)
    return [re.split(r"\s{2,}", line)[0] for line in found]


def reference(pages):
    out = ""
    for verb, text in pages.items():
        out += f"## motley {verb}".rstrip() + f"\n\n```text\n{text.strip()}\n```\n\n"
    return out


def test_the_reference_page_is_current(pages):
    """With MOTLEY_UPDATE_DOCS set (./dev docs), it is written instead."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    current = head + BEGIN + reference(pages) + END + tail
    if os.environ.get("MOTLEY_UPDATE_DOCS"):
        PAGE.write_text(current)
    assert PAGE.read_text() == current, "docs/reference/cli.md is not current: run ./dev docs"


def test_every_verb_has_an_example(pages):
    assert len(pages) > 25
    for verb, text in pages.items():
        own = [line for line in examples_of(text) if line.startswith(f"motley {verb}".strip())]
        assert own, f"motley {verb} --help has no example"


def test_texts_of_commands_and_options_are_short(pages):
    """They begin in column 31: next to the name, or below a long one."""
    texts = [(verb, line[30:]) for verb, text in pages.items() for line in text.splitlines() if re.match(r"(?:  -.{27}| {30})\S", line)]
    assert len(texts) > 200
    assert not [text for text in texts if len(text[1]) > 80]


def test_examples_use_options_that_are_there(pages):
    for text in pages.values():
        for line in examples_of(text):
            words = line.split()
            verb = max((v for v in pages if words[1 : 1 + len(v.split())] == v.split()), key=len)
            for option in re.findall(r" (--[\w-]+)", line) if words[0] == "motley" else []:
                assert re.search(rf"{option}\b", pages[verb]), f"{line}: {option}"


def run(motley, folder, line):
    environment = os.environ | {"PATH": f"{motley.parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def prepared(motley, tmp_path_factory):
    """Looks like the repository, with the plans that examples speak of."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("examples", "data"):
        (folder / name).symlink_to(ROOT / name)
    offload = "offload --machine examples/offload/small.toml --model data/models/tales --workload examples/offload/chat.toml -o offload.json"
    for plan in ("serve --cluster examples/clusters/motivating-box.toml --model llama-2-70b -o plan.json", f"serve {GARAGE} -o garage.json", offload):
        assert run(motley, folder, f"motley plan {plan}").returncode == 0
    for name in ("before.json", "after.json"):
        shutil.copy(folder / "plan.json", folder / name)
    return folder


def test_examples_run(pages, motley, prepared, tmp_path):
    """Each once as it stands, those of a verb in their order and in a folder of their own."""
    done = set()
    for verb, text in pages.items():
        folder = tmp_path / (verb.replace(" ", "-") or "motley")
        shutil.copytree(prepared, folder, symlinks=True)
        if verb in ("group issue", "group show"):
            run(motley, folder, "motley group create lab")
        for line in examples_of(text):
            if line in done or any(re.match(pattern, line) for pattern in NOT_RUN):
                continue
            done.add(line)
            command = line
            for pattern, instead in INSTEAD:
                command = pattern.sub(instead, command)
            result = run(motley, folder, command)
            assert result.returncode in ((0, 3) if line == "motley doctor" else (0,)), f"{command}\n{result.stdout}{result.stderr}"
    assert len(done) > 25


def test_what_is_not_run_is_tested_elsewhere(pages):
    lines = [line for text in pages.values() for line in examples_of(text)]
    for pattern, why in NOT_RUN.items():
        assert any(re.match(pattern, line) for line in lines), f"{pattern} is not an example any more"
        assert all((ROOT / file).exists() for file in re.findall(r"tests/[\w/]+\.py", why)), why
