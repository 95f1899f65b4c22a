"""A plan for each family, from config.json and from a GGUF file: sound, and of the layers that are there."""

import json
import subprocess
import sys

import pytest

import engine
import models

sys.path.append(str(engine.ROOT / "tests/fuzz"))
import gguf_seeds  # noqa: E402

FOLDERS = {name: make()[1] for name, make in models.MODELS.items()}
# One of each family; the llamas differ in their types alone.
FILES = {"llama": "llama-scaled", **{name.replace("-", "_").replace(".", "_"): name for name in gguf_seeds.SEEDS if not name.startswith("llama")}}


def plan(model, folder):
    motley = engine.BUILD / "motley"
    for arguments in (["plan", "serve", "--cluster", engine.ROOT / "examples/clusters/desk.toml", "--model", model, "-o", "plan.json", "-q"],
                      ["verify", "plan.json"]):
        result = subprocess.run([motley, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
    return json.loads((folder / "plan.json").read_text())


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_planned(name, tmp_path):
    FOLDERS[name].save_pretrained(tmp_path)
    made = plan(tmp_path, tmp_path)
    assert made["model"]["config"]["model_type"] == FOLDERS[name].model_type
    assert max(stage["layers"][1] for stage in made["stages"]) == models.LAYERS


@pytest.mark.parametrize("name", FILES)
def test_gguf_files_are_planned(name, tmp_path):
    (tmp_path / "model.gguf").write_bytes(gguf_seeds.SEEDS[FILES[name]]())
    made = plan("model.gguf", tmp_path)
    assert made["model"]["config"]["model_type"].removesuffix("_text") == name
    assert max(stage["layers"][1] for stage in made["stages"]) == 1
