"""docs/reference/what-runs.md is what tests have shown: a cell says yes where a test runs over the family, and no other does.

With MOTLEY_UPDATE_DOCS set (./dev docs), the page is written instead."""

import os
import re
import sys

import engine
import models
import test_gguf
import test_parity
import test_plans
import test_training_losses
import training

ROOT = engine.ROOT
PAGE = ROOT / "docs/reference/what-runs.md"
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->"


def entries():
    """Each family's name, and whether it has a form in GGUF, as its own file says."""
    texts = [path.read_text() for path in sorted((ROOT / "motley/model/families").glob("*.cpp"))]
    return {name: ".gguf = {}," not in rest for text in texts for name, rest in re.findall(r'const Family \w+ = \{\s+\.name = "(\w+)",(.*?)\n\};', text, re.S)}


FAMILIES = entries()


def families_of(names):
    return {models.MODELS[name]()[1].model_type for name in names}


def file_families():
    shapes = {name: test_gguf.make_model.SHAPES[name]["model_type"] for name, _ in test_gguf.CASES if name in test_gguf.make_model.SHAPES}
    return {"llama", *shapes.values(), *test_gguf.MIXTURES, *families_of(test_gguf.OTHERS)}  # the tales are a llama


# What a column says, the test behind its cells, and over which families that runs.
COLUMNS = {
    "planned, folder": ([test_plans.test_folders_are_planned], families_of(models.MODELS)),
    "planned, GGUF": ([test_plans.test_gguf_files_are_planned],
                      {family for family in FAMILIES if family.removesuffix("_text") in test_plans.FILES}),
    "served, folder": ([test_parity.test_fp32_equals_transformers_in_every_layout], families_of(models.MODELS)),
    "served, GGUF": ([test_gguf.test_with_fp32_activations_logits_are_those_of_transformers,
                      test_gguf.test_quantised_experts_are_those_of_transformers,
                      test_gguf.test_files_of_small_rows_are_those_of_transformers], file_families()),
    "quantised": ([test_gguf.test_with_fp32_activations_logits_are_those_of_transformers,
                   test_gguf.test_quantised_experts_are_those_of_transformers,
                   test_gguf.test_files_of_small_rows_are_those_of_transformers], file_families()),
    "trained": ([test_training_losses.test_losses_and_weights_are_those_of_one_process],
                families_of(name for name, _ in test_training_losses.PLANS)),
    # The models that `./dev gpu` compared on an H100; those after them have not met a card yet.
    "served, CUDA": ([], {"llama", "mistral", "qwen2", "qwen3", "opt"}),
}


def name_of(test):
    return f"`{test.__module__}.py::{test.__name__}`"


def table():
    lines = ["| `model_type` | " + " | ".join(COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for family in sorted(FAMILIES):
        lines.append(f"| `{family}` | " + " | ".join("yes" if family in shown else "no" for _, shown in COLUMNS.values()) + " |")
    lines += ["", "| column | shown by, in `tests/parity/` |", "|---|---|"]
    lines += [f"| {column} | {', '.join(map(name_of, tests)) or '`./dev gpu`, check `parity`, on an H100'} |"
              for column, (tests, _) in COLUMNS.items()]
    return "\n" + "\n".join(lines) + "\n\n"


def test_the_page_is_current():
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    current = head + BEGIN + table() + END + rest.split(END)[1]
    if os.environ.get("MOTLEY_UPDATE_DOCS"):
        PAGE.write_text(current)
    assert PAGE.read_text() == current, "docs/reference/what-runs.md is not current: run ./dev docs"


def test_every_family_is_tested_in_what_it_can():
    """A family that is added without tests would say no where it should say yes."""
    files = {family for family, has_form in FAMILIES.items() if has_form}
    refused = families_of(training.REFUSED)
    for column, expected in {"planned, folder": set(FAMILIES), "served, folder": set(FAMILIES), "planned, GGUF": files, "served, GGUF": files,
                             "quantised": files, "trained": set(FAMILIES) - refused}.items():
        _, shown = COLUMNS[column]
        assert shown == expected, f"{column}: {sorted(shown ^ expected)}"


def test_tests_that_the_page_names_are_run():
    for tests, _ in COLUMNS.values():
        for test in tests:
            assert getattr(sys.modules[test.__module__], test.__name__) is test and test.__name__.startswith("test_")
