"""Wraps paragraphs of Markdown at 120 columns: `python tests/tree/reflow.py FILE...` rewrites those that hold a longer line.

Code, tables, headings and generated parts stay as they are.
"""

import re
import sys
from pathlib import Path

COLUMNS = 120
FENCE = re.compile(r"\s*```")
ITEM = re.compile(r"(\s*(?:[-*+]|\d+\.) +)(.*)")
PIECE = re.compile(r"(?:`[^`]*`|\]\([^)]*\)|\S)+")  # code and the target of a link stay in one line
LEADS = re.compile(r"[-*+]|\d+[.)]|#+|>.*|\|.*")  # begins something else where it stands first in a line


def blocks(text):
    """(is prose, lines) in order: a paragraph or list item, or lines that are kept."""
    fenced = generated = in_list = False
    paragraph = []
    for line in text.split("\n"):
        fence = FENCE.match(line)
        generated = (generated or line.startswith("<!-- generated: begin")) and not line.startswith("<!-- generated: end")
        item = ITEM.match(line)
        indented_code = line.startswith("    ") and not paragraph and not in_list
        kept = fenced or fence or generated or indented_code or not line.strip() or line.lstrip().startswith(("|", "#", ">", "<"))
        if kept or item:
            if paragraph:
                yield True, paragraph
            paragraph = []
        if fence:
            fenced = not fenced
        if line.strip() and not fenced and not fence:
            in_list = bool(item) or (in_list and (line.startswith(" ") or bool(paragraph)))
        if kept:
            yield False, [line]
        else:
            paragraph.append(line)
    if paragraph:
        yield True, paragraph


def wrapped(lines):
    item = ITEM.match(lines[0])
    first = item[1] if item else re.match(r" *", lines[0])[0]
    rest = " " * len(first)
    pieces = []
    for piece in PIECE.findall(" ".join(line.strip() for line in [item[2] if item else lines[0], *lines[1:]])):
        if pieces and LEADS.fullmatch(piece):
            pieces[-1] += " " + piece
        else:
            pieces.append(piece)
    made = [first + pieces[0]]
    for piece in pieces[1:]:
        if len(made[-1]) + 1 + len(piece) > COLUMNS:
            made.append(rest + piece)
        else:
            made[-1] += " " + piece
    return made


def reflowed(text):
    made = []
    for prose, lines in blocks(text):
        long = prose and max(map(len, lines)) > COLUMNS
        made += wrapped(lines) if long else lines
    return "\n".join(made)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(reflowed(Path(name).read_text()))
