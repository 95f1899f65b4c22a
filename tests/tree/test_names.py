"""One name, one type: two types of one name in the same namespace link without a word and destroy each other's values."""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TYPE = re.compile(r"^(?:class|struct|enum class) ([A-Za-z]\w*)(?: final)?(?: :[^:][^;]*)? \{", re.MULTILINE)
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)


def test_no_two_headers_define_a_type_of_one_name():
    files = defaultdict(set)
    for header in sorted((ROOT / "motley").rglob("*.hpp")):
        text = header.read_text()
        opened = [(found.start(), found[1]) for found in NAMESPACE.finditer(text)]
        for found in TYPE.finditer(text):
            inside = [name for place, name in opened if place < found.start()]
            # Formatted code does not indent: the namespace of the header, and the one inside it that was opened last.
            files[("::".join([*inside[:1], *inside[1:][-1:]]), found[1])].add(str(header.relative_to(ROOT)))
    assert len(files) > 100
    twice = {"::".join(key): sorted(where) for key, where in files.items() if len(where) > 1}
    assert not twice
