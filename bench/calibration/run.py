"""What `motley simulate` says of a plan, and what `motley serve` really does, after `motley cluster probe` has measured this machine.

    run.py [--build FOLDER] [--model FOLDER] [--requests N] [--repeat N] [--keep FOLDER]

For the garage and for one device: probes the workers, plans with the probed cluster, serves the plan, sends streamed completions over HTTP,
and simulates the same requests with the same arrivals. Prints medians of time to first token and time per output token, and how far they
are apart; exit code 1 where that is more than `--within` (0.20). Needs Python 3.9 and nothing else.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GARAGE = ROOT / "examples" / "garage"
OUTPUT_TOKENS = 160
WORDS = "the old owl and a small lantern walked over the green hill to find a friend who was lost in the rain near the river".split()


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed ({result.returncode}):\n{result.stderr[-3000:]}")
    return result.stdout


@contextlib.contextmanager
def server(motley, plan, model):
    """Port of `motley serve PLAN --local`, which ends in order."""
    command = [str(motley), "serve", str(plan), "--model", str(model), "--local", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log = []
    port = None
    for line in process.stderr:
        log.append(line)
        if found := re.search(r"http://127\.0\.0\.1:(\d+)/v1", line):
            port = int(found[1])
            break
    if port is None:
        sys.exit("the server did not get ready:\n" + "".join(log))
    reader = threading.Thread(target=process.stderr.read, daemon=True)  # or its pipe fills up
    reader.start()
    try:
        yield port
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.wait(60)


def ask(port, prompt, answer):
    """Streams one completion; `answer` gets its lengths and times. Reads now and understands later, to keep the cores free."""
    body = json.dumps({"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True,
                       "return_token_ids": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    pieces = []
    start = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(head.encode() + body)
        while piece := connection.recv(1 << 16):
            pieces.append((time.perf_counter(), piece))
    arrivals, usage, text = [], None, b""
    for arrived, piece in pieces:
        text += piece
        *lines, text = text.split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if any(choice.get("token_ids") for choice in event.get("choices", [])):
                arrivals.append(arrived)
    if not arrivals or not usage:
        raise RuntimeError(b"".join(piece for _, piece in pieces)[:2000].decode())
    tokens = usage["completion_tokens"]
    answer.update(start=start, prompt_tokens=usage["prompt_tokens"], output_tokens=tokens,
                  ttft_s=arrivals[0] - start, tpot_s=(arrivals[-1] - arrivals[0]) / (tokens - 1))


def prompts(count, seed):
    source = random.Random(seed)
    return [" ".join(source.choice(WORDS) for _ in range(source.randint(35, 60))) for _ in range(count)]


def load(port, texts, gaps_s):
    """Sends each text at its time; the answers, in order of sending."""
    answers = [{} for _ in texts]
    threads = []
    until = time.perf_counter()
    for text, gap_s, answer in zip(texts, gaps_s, answers):
        until += gap_s
        time.sleep(max(0, until - time.perf_counter()))
        threads.append(threading.Thread(target=ask, args=(port, text, answer)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if not all(answers):
        sys.exit("a request failed")
    return answers


def simulate(motley, plan, answers, folder):
    """`motley simulate` of the very same requests, at the times at which they were sent."""
    first = min(answer["start"] for answer in answers)
    rows = sorted((answer["start"] - first, answer["prompt_tokens"], answer["output_tokens"]) for answer in answers)
    (folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens,class\n"
                                      + "".join(f"{arrival:.6f},{prompt},{output},chat\n" for arrival, prompt, output in rows))
    (folder / "trace.toml").write_text('format = "motley.workload/1"\n[[class]]\nname = "chat"\nprompt_tokens = 64\noutput_tokens = 160\n'
                                       '[arrival]\nprocess = "trace"\nfile = "trace.csv"\n')
    result = json.loads(run(motley, "simulate", plan, "--workload", folder / "trace.toml", "--json", "-q"))
    if result["requests"] != len(rows):
        sys.exit(f"{len(rows)} requests were sent, {result['requests']} simulated")
    return result


def compare(motley, plan, model, requests, load_name, seed, folder):
    """Medians, measured and simulated, of requests one after another or at random at half of what one at a time would allow."""
    texts = prompts(requests + 2, seed)
    with server(motley, plan, model) as port:
        alone = load(port, texts[:2], [0, 2])[1]  # the first one warms up
        service_s = alone["ttft_s"] + OUTPUT_TOKENS * alone["tpot_s"]
        source = random.Random(seed)
        gaps_s = [1.3 * service_s if load_name == "single" else source.expovariate(0.5 / service_s) for _ in range(requests)]
        answers = load(port, texts[2:], gaps_s)
    simulated = simulate(motley, plan, answers, folder)
    return {name: (statistics.median(answer[name] for answer in answers), simulated[name]["p50"]) for name in ("ttft_s", "tpot_s")}


def probed_plan(motley, cluster, model, folder):
    name = cluster.stem if cluster.stem != "cluster" else "garage"
    probed, plan = folder / f"{name}.toml", folder / f"{name}.json"
    say(run(motley, "cluster", "probe", "--cluster", cluster, "--model", model, "--weight-type", "fp32", "-o", probed, "-q"))
    run(motley, "plan", "serve", "--cluster", probed, "--model", model, "--workload", GARAGE / "workload.toml", "--weight-type", "fp32",
        "--max-tokens", 64, "--max-sequences", 8, "-q", "-o", plan)
    return name, plan


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--model", type=Path, default=ROOT / "data" / "models" / "tales")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=3, help="probes and servers; the table has the median of each")
    parser.add_argument("--within", type=float, default=0.20)
    parser.add_argument("--keep", type=Path, help="folder for what is made on the way")
    options = parser.parse_args()
    motley = options.build / "motley"
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        for seed in range(options.repeat):
            for cluster in (GARAGE / "one-device.toml", GARAGE / "cluster.toml"):
                name, plan = probed_plan(motley, cluster, options.model, folder)
                for load_name in ("single", "random"):
                    result = compare(motley, plan, options.model, options.requests, load_name, seed, folder)
                    for figure, pair in result.items():
                        found.setdefault((name, load_name, figure), []).append(pair)
                        say(f"{name}, {load_name}, {figure}: measured {1e3 * pair[0]:.2f} ms, simulated {1e3 * pair[1]:.2f} ms")
    worst = 0
    print("| plan | requests | figure | measured | simulated | apart |\n|---|---|---|---|---|---|")
    for (name, load_name, figure), pairs in found.items():
        apart = statistics.median(simulated / measured - 1 for measured, simulated in pairs)
        measured, simulated = (statistics.median(values) for values in zip(*pairs))
        worst = max(worst, abs(apart))
        print(f"| {name} | {load_name} | {figure[:4]} | {1e3 * measured:.2f} ms | {1e3 * simulated:.2f} ms | {100 * apart:+.0f} % |")
    print(f"\nat most {100 * worst:.0f} % apart")
    return 0 if worst <= options.within else 1


if __name__ == "__main__":
    sys.exit(main())
