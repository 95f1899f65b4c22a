"""What sharing prefixes is worth, of the shape of 135 million parameters in one GGUF file, on one device over HTTP.

    prefixes.py [--cache FOLDER] [--type q8_0] [--rounds N] [--contexts N,N] [--skip llama.cpp] [--only questions|unlike|conversations]

questions: a question of 50 tokens to a context of 2,000 and of 8,000 tokens, and a second one to the same: time to the first token.
unlike: tokens/s of 8 clients whose prompts of 512 tokens have nothing in common, with the prefix cache and without.
conversations: 8 at once of 5 turns, 200 tokens in and 100 out: tokens/s with the cache, without, and of llama-server with its own.

Runs with the reference environment. Servers take turns, `rounds` times over; figures are medians.
"""

import argparse
import concurrent.futures
import json
import os
import random
import statistics
import sys
import time
import urllib.request
from pathlib import Path

import serving
from run import HERE, build_llama_cpp, output_of, say

CLIENTS, TURNS, ASKED_TOKENS, ANSWER_TOKENS, QUESTION_TOKENS = 8, 5, 200, 100, 50
TOKENS_OF_WORD = 1.03  # of the tokenizer that the model has


def words(source, tokens):
    return " ".join(source.choices(serving.WORDS, k=round(tokens / TOKENS_OF_WORD)))


def ask(address, name, prompt, tokens):
    """The answer's text, its usage and the seconds it took."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "model": name}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    begin = time.monotonic()
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    return answer["choices"][0]["text"], answer["usage"], time.monotonic() - begin


def name_at(address):
    with urllib.request.urlopen(f"{address}/v1/models") as answer:
        return json.load(answer)["data"][0]["id"]


def questions(address, tokens, seed):
    """Seconds to the first token of the first question, and of the second."""
    source, name = random.Random(seed), name_at(address)
    ask(address, name, words(source, 64), 1)
    context = words(source, tokens)
    first, second = (ask(address, name, f"{context} {words(source, QUESTION_TOKENS)}", 1) for _ in range(2))
    return first[2], second[2], first[1]["prompt_tokens"]


def together(work):
    """Generated tokens/s of all clients; `work(client)` yields the usages of its answers."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        usages = [usage for done in clients.map(lambda client: list(work(client)), range(CLIENTS)) for usage in done]
    return sum(usage["completion_tokens"] for usage in usages) / (time.monotonic() - begin)


def unlike(address, seed):
    name = name_at(address)

    def work(client):
        source = random.Random(f"{seed} {client}")
        for _ in range(3):
            yield ask(address, name, words(source, 512), 32)[1]

    return together(work)


def conversations(address, seed):
    name = name_at(address)

    def work(client):
        source, said = random.Random(f"{seed} {client}"), ""
        for _ in range(TURNS):
            said += words(source, ASKED_TOKENS) + "\n"
            text, usage, _ = ask(address, name, said, ANSWER_TOKENS)
            said += text + "\n"
            yield usage

    return together(work)


def servers(options):
    def motley(*extra):
        return lambda: serving.motley(options, options.model, lambda o, model: [*serving.one_device(o, model), *extra])

    offered = {"on": motley(), "off": motley("--prefix-cache", "off")}
    if "llama.cpp" not in options.skip:
        offered["llama.cpp"] = lambda: serving.llama_server(options, options.model, ["--cache-reuse", 0], room=4096)
    return offered


def medians(options, names, measure):
    """By server, of each of the figures that `measure(address, round)` gives."""
    figures = {name: [] for name in names}
    for turn in range(options.rounds):
        for name in names:
            with servers(options)[name]() as address:
                figures[name].append(measure(address, turn))
            say(f"round {turn + 1}: {name} {figures[name][-1]}")
    return {name: [statistics.median(column) for column in zip(*rows)] for name, rows in figures.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contexts", default="2000,8000")
    parser.add_argument("--skip", action="append", default=[], choices=["llama.cpp"])
    parser.add_argument("--only", action="append", choices=["questions", "unlike", "conversations"])
    options = parser.parse_args()
    options.clients = CLIENTS
    options.folder = options.cache / "prefixes"
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.cache / "llama-135m-long"
    options.model = folder / f"model-{options.type}.gguf"
    if not options.model.exists():
        say("making the model")
        output_of(sys.executable, HERE / "make_model.py", folder, "--shape", "135m", "--tokenizer")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16384}))
        output_of(serving.MOTLEY, "model", "quantize", folder, "--type", options.type, "-o", options.model)
    options.kernels = json.loads(output_of(serving.ROOT / "build/release/decode_bench", "kernels"))[-1]
    wanted = options.only or ["questions", "unlike", "conversations"]
    if "conversations" in wanted and "llama.cpp" not in options.skip:
        build_llama_cpp(options.cache, options.kernels, "llama-server")

    print(f"{options.type}, {options.kernels}, {os.cpu_count()} threads, {options.rounds} rounds\n")
    if "questions" in wanted:
        print("| context | first question, s | second, s | ratio |\n|---|---|---|---|")
        for tokens in map(int, options.contexts.split(",")):
            first, second, prompt = medians(options, ["on"], lambda address, turn: questions(address, tokens, turn))["on"]
            print(f"| {prompt:.0f} | {first:.2f} | {second:.3f} | {second / first:.3f} |")
    if "unlike" in wanted:
        rates = medians(options, ["on", "off"], lambda address, turn: [unlike(address, turn)])
        print(f"\nunlike prompts: {rates['on'][0] / rates['off'][0]:.3f} x the tokens/s without the cache ({rates['off'][0]:.1f})")
    if "conversations" in wanted:
        rates = medians(options, list(servers(options)), lambda address, turn: [conversations(address, turn)])
        print("\n| conversations | tokens/s | with the cache |\n|---|---|---|")
        for name, (rate,) in rates.items():
            print(f"| {name} | {rate:.1f} | {rates['on'][0] / rate:.2f} x |")


if __name__ == "__main__":
    main()
