"""Commands that have another name now work by the old one, which no help shows and which names the new one."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = {
    before.replace('", "', " "): now.replace('", "', " ")
    for before, now in re.findall(r'\{\{"([^{}]+)"\}, \{"([^{}]+)"\}\}', (ROOT / "motley/cli/renamed.cpp").read_text())
}
ENDS, STAYS_UP = 0, 130


@pytest.fixture(scope="module")
def arguments(motley, start_server, tmp_path_factory):
    """Of each old name: what it is run with, and the exit code of a run that went well."""
    plan = tmp_path_factory.mktemp("plan") / "plan.json"
    model = ROOT / "data/models/tales"
    subprocess.run([motley, "plan", "serve", "--cluster", ROOT / "tests/server/cluster.toml", "--model", model, "-q", "-o", plan],
                   check=True, stdout=subprocess.DEVNULL, timeout=60)
    port = ["--port", start_server(plan, "--model", model).port]
    return {
        "status": (port, ENDS),
        "plan apply": ([plan, *port], ENDS),
        "drain": (["attic", *port], 2),  # refused by a server of one machine
        "link": (port, 2),
        "coordinate": (["--listen", "127.0.0.1:0", "--store", plan.parent / "log"], STAYS_UP),
        "bench comm": (["--ranks", "2", "--from", "1 KiB", "--to", "1 KiB", "--seconds", "0.01"], ENDS),
    }


def run(motley, words, arguments, code):
    command = [str(word) for word in (motley, *words.split(), *arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        if code == STAYS_UP:
            assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == code, errors
    return errors


@pytest.mark.parametrize("before", TABLE)
def test_the_old_name_does_what_the_new_one_does(motley, arguments, before):
    note = f"`motley {before}` is called `motley {TABLE[before]}` now\n"
    assert run(motley, before, *arguments[before]).startswith(note)
    assert note not in run(motley, TABLE[before], *arguments[before])
    helps = [subprocess.run([motley, *words.split(), "--help"], capture_output=True, text=True, timeout=60).stdout for words in (before, TABLE[before])]
    assert helps[0] == helps[1] and f"Usage: motley {TABLE[before]} " in helps[0]


def test_every_line_of_the_table_is_run(arguments):
    assert TABLE.keys() == arguments.keys()


def test_no_help_shows_an_old_name():
    page = (ROOT / "docs/reference/cli.md").read_text()
    assert not [before for before in TABLE if re.search(rf"motley {before}\b", page)]
