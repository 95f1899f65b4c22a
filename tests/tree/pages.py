"""What the pages hold besides prose: commands with what they are said to print, and files to write."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")]
PAGES += [path for folder in ("docs", "examples") for path in sorted((ROOT / folder).rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"(?:motley|\./dev|bench/\S+\.py|build/\S+|python3?|torchrun|curl|sed|rm|export|for) ")
REMARK = re.compile(r"\s{2,}# (.*)$")


def name_of(page):
    return str(page.relative_to(ROOT))


class Command:
    def __init__(self, text, shown, language):
        text, *remark = REMARK.split(text)[:2]
        self.text = text
        self.shown = shown
        self.language = language
        self.code = int(remark[0].removeprefix("exit code ")) if remark and remark[0].startswith("exit code ") else 0


def console(block):
    """Lines that begin with `$ `, and what stands below each."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = command[:-1] + more
        yield Command(command, shown.splitlines(), "console")


def listed(lines, indent):
    """Lines that begin with a program, with those that go on after a backslash."""
    lines = iter(lines)
    for line in lines:
        if line.startswith(indent) and PROGRAM.match(line.strip()):
            while line.endswith("\\"):
                line = line[:-1] + next(lines).strip()
            yield Command(line.strip(), [], "sh")


def parts(page):
    """The page in order: commands, and ("python", block) or (file name, content)."""
    text = page.read_text()
    at = 0
    for fence in [*FENCE.finditer(text), None]:
        yield from listed(text[at : fence.start() if fence else len(text)].splitlines(), "    ")
        if fence:
            at = fence.end()
            language, block = fence.groups()
            if language == "console":
                yield from console(block)
            elif language in ("", "sh"):
                yield from listed(block.splitlines(), "")
            elif language == "toml" and (name := re.match(r"# (\w+\.toml)\n", block)):
                yield name[1], block
            elif language == "python":
                yield "python", block


def commands(page):
    return [part for part in parts(page) if isinstance(part, Command)]
