"""`--model OWNER/NAME[:FILE.gguf]`: the hub's own client library against a stand-in for the hub on this machine."""

import json
import struct
import subprocess
import urllib.request
from pathlib import Path

import pytest

from hub import Hub

ROOT = Path(__file__).resolve().parents[2]
TALES = ROOT / "data" / "models" / "tales"
CLUSTER = ROOT / "examples" / "garage" / "cluster.toml"
PLAN = ["plan", "serve", "--cluster", CLUSTER]


def padded(weights, size):
    """The same tensors behind a header that is longer by spaces."""
    length = struct.unpack("<Q", weights[:8])[0]
    return struct.pack("<Q", length + size) + weights[8:8 + length] + b" " * size + weights[8 + length:]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    files = {file.name: file.read_bytes() for file in TALES.iterdir()}
    # More than the client writes at a time.
    files["model.safetensors"] = padded(files["model.safetensors"], 12 << 20)
    files["pytorch_model.bin"] = files["README.md"] = b"not needed"
    hub = Hub({"own/tales": files, "own/packed": {"a-q4_0.gguf": b"GGUF", "b-q8_0.gguf": b"GGUF"}, "own/notes": {"README.md": b""}})
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield hub
    hub.close()


def test_plans_need_the_configuration_alone(run_to, hub, tmp_path):
    file = tmp_path / "plan.json"
    run_to(*PLAN, "--model", "own/tales", "-o", file)
    assert sorted(hub.downloads()) == ["config.json", "generation_config.json"]
    model = json.loads(file.read_text())["model"]
    assert (model["name"], model["source"], model["revision"]) == ("tales", "own/tales", hub.revision)
    hub.requests.clear()
    # A plan is served with the revision that it was made for.
    earlier, hub.revision = hub.revision, "b" * 40
    hub.revisions = {earlier, hub.revision}
    run_to("serve", file, "--model", "own/tales", "--dry-run", "--local")
    assert not hub.downloads() and not any(hub.revision in path for _, path, _ in hub.requests)
    local = json.loads(run_to(*PLAN, "--model", TALES, "--json").stdout)["model"]
    assert "source" not in local or not local["source"]


def test_serving_fetches_what_is_needed_and_goes_on_after_a_break(start_server, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    hub.breaks_after["model.safetensors"] = 11 << 20
    server = start_server("--cluster", CLUSTER, "--model", "own/tales")
    assert {*hub.downloads()} == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert any(start and int(start.split("=")[1].rstrip("-")) >= 10 << 20 for _, path, start in hub.requests if "safetensors" in path)
    assert hub.tokens == {"Bearer hf_of_the_test"}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 4, "temperature": 0}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        said = json.load(answer)
    assert said["model"] == "tales" and said["usage"]["completion_tokens"] == 4
    assert server.stop() == 0
    # What is in the cache needs no network.
    hub.close()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert start_server("--cluster", CLUSTER, "--model", "own/tales").stop() == 0


def test_what_is_here_wins(motley, hub, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tales").symlink_to(TALES)
    for name in ("own/tales", "tales"):
        subprocess.run([motley, "model", "show", name], cwd=tmp_path, check=True, capture_output=True)
    assert not hub.requests


@pytest.mark.parametrize("name, words", [
    ("own/none", ["no such file or folder here", "the hub has no public model own/none", "HF_TOKEN"]),
    ("own/packed", ["GGUF files and no config.json", "own/packed:a-q4_0.gguf, own/packed:b-q8_0.gguf"]),
    ("own/packed:c.gguf", ["has no file c.gguf", "a-q4_0.gguf, b-q8_0.gguf"]),
    ("own/tales:c.gguf", ["has no file c.gguf", "leave out the file's name"]),
    ("own/notes", ["own/notes has no config.json"]),
    ("own/tales/more", ["own/tales/more: no such file or folder"]),
    ("own/tales.gguf", ["own/tales.gguf: no such file or folder"]),
])
def test_errors_say_what_was_tried(run_to, hub, name, words):
    said = run_to("model", "show", name, code=2).stderr
    assert all(word in said for word in words), said


def test_gated_models(run_to, hub):
    hub.gated.add("own/tales")
    assert "accepted its terms" in run_to("model", "show", "own/tales", code=2).stderr


def test_without_a_network(run_to, hub, monkeypatch):
    run_to("model", "show", "own/tales")
    hub.close()
    run_to("model", "show", "own/tales")
    words = "is not complete in this machine's cache, and the hub cannot be reached"
    assert words in run_to("model", "show", "own/another", code=2).stderr
    # The configuration is there, the weights are not.
    assert words in run_to("serve", "--cluster", CLUSTER, "--model", "own/tales", "--local", "--port", 0, code=2).stderr
