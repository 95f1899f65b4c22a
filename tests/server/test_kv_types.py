"""A plan whose keys and values are q8_0, served: tokens are those of the engine alone on one device."""

import json
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench/decode"), str(ROOT / "tests/parity")]
import engine  # noqa: E402
import make_model  # noqa: E402

GENERATE = 16
EOS = 1


def prompts():
    return [[(7 * i + 31 * request) % 1900 + 50 for i in range(length)] for request, length in enumerate((5, 100, 61))]


def completion(server, tokens):
    body = dict(prompt=tokens, max_tokens=GENERATE, temperature=0)
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


def test_tokens_are_those_of_the_engine_alone(motley, start_server, tmp_path):
    folder, plan = tmp_path / "model", tmp_path / "plan.json"
    make_model.make("small256", folder)  # heads of 64
    make_model.write_tokenizer(folder)
    subprocess.run([motley, "plan", "serve", "--cluster", ROOT / "tests/server/cluster.toml", "--model", folder, "--weight-type", "fp32",
                    "--kv-type", "q8_0", "--max-tokens", "48", "--max-sequences", "3", "--all-devices", "--no-roles", "-q", "-o", plan],
                   check=True)
    stages = json.loads(plan.read_text())["stages"]
    assert len(stages) > 1 and {stage["kv_type"] for stage in stages} == {"q8_0"}
    requests = [dict(prompt=prompt, generate=GENERATE) for prompt in prompts()]
    case = dict(model=str(folder), kv_type="q8_0", requests=requests, layouts=[engine.chain(1, cuts=[0, 4])], scripts=[dict(name="alone")])
    alone = {run["request"]: run["tokens"] for run, _ in engine.run(case, tmp_path)}
    server = start_server(plan, "--model", folder)
    with ThreadPoolExecutor(3) as clients:
        answers = list(clients.map(lambda prompt: completion(server, prompt), prompts()))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for request, answer in enumerate(answers):
        tokens = alone[request]
        assert answer == tokenizer.decode(tokens[:tokens.index(EOS)] if EOS in tokens else tokens), request
    assert server.stop() == 0
