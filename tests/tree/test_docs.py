"""What the pages say is true: links lead somewhere, and planning commands print what is shown."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
WALKED = [ROOT / "README.md", ROOT / "docs/tutorial.md", ROOT / "docs/guide-cluster.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
RUN = re.compile(r"motley (plan|explain|verify|compare|simulate|report|cluster|model) |sed ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    text = FENCE.sub("", page.read_text())
    targets = [target.partition("#")[0] for target in LINK.findall(text) if "://" not in target]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert not missing


def words(text):
    """Lines without what only aligns columns."""
    return [" ".join(line.split()) for line in text.splitlines()]


def transcripts(block):
    """(command, lines shown below it) of a console block."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, [line for line in words(shown) if line not in ("", "...")]


def check_command(command, shown, folder, motley):
    environment = os.environ | {"PATH": f"{motley.parent}{os.pathsep}{os.environ['PATH']}"}
    command, _, remark = command.partition("    # ")
    code = int(remark.removeprefix("exit code ")) if remark else 0
    result = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == code, f"{command}\n{result.stdout}{result.stderr}"
    printed = words(result.stdout)
    for line in shown:
        assert line in printed, f"{command}\nis said to print\n{line}\nbut prints\n{result.stdout}"
        printed = printed[printed.index(line) + 1 :]


@pytest.mark.parametrize("page", WALKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_walk_through_prints_what_the_page_shows(page, motley, tmp_path):
    """In a folder that looks like the repository and takes the files that the commands write."""
    for name in ("examples", "data"):
        (tmp_path / name).symlink_to(ROOT / name)
    ran = 0
    for language, block in FENCE.findall(page.read_text()):
        if language == "toml" and (name := re.match(r"# (\w+\.toml)\n", block)):
            (tmp_path / name[1]).write_text(block)
        if language == "console":
            for command, shown in transcripts(block):
                if RUN.match(command):
                    check_command(command, shown, tmp_path, motley)
                    ran += 1
    assert ran >= 5
