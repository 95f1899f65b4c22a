"""Tokens/s of many clients at once over HTTP, of the shape of 135 million parameters in one GGUF file: motley on one device, motley over
the garage's six workers, and llama-server, all on the same cores.

    serving.py [--cache FOLDER] [--type q8_0] [--rounds N] [--clients N] [--only one|garage|llama.cpp]...

Runs with the reference environment. Servers take turns, `rounds` times over; the table holds medians. A client asks for one answer of
128 tokens after another, each from another prompt of about 64; the first answer of each client is not counted.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from local_server import listening
from run import HERE, ROOT, build_llama_cpp, llama_cpp_program, output_of, say

sys.path.insert(0, str(ROOT / "examples/garage"))
import own_model  # noqa: E402

PROMPT_WORDS, ANSWER_TOKENS, ANSWERS = 48, 128, 3
MOTLEY = ROOT / "build/release/motley"
WORDS = "owl lantern river story night small kind found helped forest".split()


def one_device(options, model):
    cluster = (ROOT / "examples/garage/one-device.toml").read_text().replace("64 MiB", "4 GiB")
    (options.folder / "one.toml").write_text(cluster)
    output_of(MOTLEY, "plan", "serve", "--cluster", options.folder / "one.toml", "--model", model, "--workload",
              ROOT / "examples/garage/workload.toml", "--max-tokens", 256, "--max-sequences", options.clients, "-o",
              options.folder / "plan.json")
    return ["--worker-threads", os.cpu_count()]


def garage(options, model):
    own_model.STEPS = ["--max-tokens", "256", "--max-sequences", str(options.clients)]
    own_model.KV_TOKENS = options.clients * (2 * PROMPT_WORDS + ANSWER_TOKENS)
    with contextlib.redirect_stdout(sys.stderr):
        own_model.plan(model, [], options.folder)
    return []


def motley(options, model, plan):
    extra = plan(options, model)
    command = [MOTLEY, "serve", options.folder / "plan.json", "--model", model, "--local", "--port", 0, *extra]
    return listening(command)


@contextlib.contextmanager
def llama_server(options, model, extra=("--no-cache-prompt",), room=512):
    """`room`: tokens of each client."""
    port = 18080
    command = [llama_cpp_program(options.cache, options.kernels, "llama-server"), "-m", model, "--port", port, "-np", options.clients, "-c",
               options.clients * room, "-t", os.cpu_count(), "-tb", os.cpu_count(), "-ctk", "bf16", "-ctv", "bf16", *extra]
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{address}/health").close()
                break
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait()


def measure(options, address):
    """Tokens/s of all clients, from the first answer that counts to the last one."""
    source = random.Random(1)
    with urllib.request.urlopen(f"{address}/v1/models") as answer:
        name = json.load(answer)["data"][0]["id"]
    prompts = [[" ".join(source.choices(WORDS, k=PROMPT_WORDS)) for _ in range(ANSWERS)] for _ in range(options.clients)]

    def talk(mine):
        done = []
        for prompt in mine:
            body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True, "model": name}
            request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            begin = time.monotonic()
            with urllib.request.urlopen(request) as answer:
                usage = json.load(answer)["usage"]
            done.append((begin, time.monotonic(), usage["completion_tokens"]))
        return done[1:]

    with concurrent.futures.ThreadPoolExecutor(options.clients) as clients:
        answers = [answer for done in clients.map(talk, prompts) for answer in done]
    begin, end = min(answer[0] for answer in answers), max(answer[1] for answer in answers)
    return sum(answer[2] for answer in answers) / (end - begin)


SERVERS = {
    "one": lambda options, model: motley(options, model, one_device),
    "garage": lambda options, model: motley(options, model, garage),
    "llama.cpp": llama_server,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--only", action="append", choices=list(SERVERS))
    options = parser.parse_args()
    options.folder = options.cache / "serving"
    options.folder.mkdir(parents=True, exist_ok=True)
    names = options.only or list(SERVERS)
    folder, model = options.cache / "llama-135m-text", options.cache / f"llama-135m-text/model-{options.type}.gguf"
    if not model.exists():
        say("making the model")
        output_of(sys.executable, HERE / "make_model.py", folder, "--shape", "135m", "--tokenizer")
        output_of(MOTLEY, "model", "quantize", folder, "--type", options.type, "-o", model)
    options.kernels = json.loads(output_of(ROOT / "build/release/decode_bench", "kernels"))[-1]
    if "llama.cpp" in names:
        build_llama_cpp(options.cache, options.kernels, "llama-server")
    speeds = {name: [] for name in names}
    for round_number in range(options.rounds):
        for name in names:
            with SERVERS[name](options, model) as address:
                speeds[name].append(measure(options, address))
            say(f"round {round_number + 1}: {name} {speeds[name][-1]:.1f} tokens/s")
    median = {name: statistics.median(rates) for name, rates in speeds.items()}
    print(f"{options.type}, {options.kernels}, {options.clients} clients, {os.cpu_count()} threads, {options.rounds} rounds\n")
    print("| server | tokens/s | of one device |\n|---|---|---|")
    for name, rate in median.items():
        print(f"| {name} | {rate:.1f} | {rate / median[names[0]]:.2f} |")


if __name__ == "__main__":
    main()
