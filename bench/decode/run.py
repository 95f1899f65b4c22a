"""Decode speed on this machine's CPU: motley beside `transformers` and llama.cpp, on the same model of a billion random parameters.

    run.py [--cache FOLDER] [--build FOLDER] [--rounds N] [--threads N] [--skip llama.cpp]

Runs with the reference environment. The model, llama.cpp's sources (pip's source package of llama-cpp-python) and its build stay in the
cache folder, so that a second run starts at once. Everything is measured in turn, `rounds` times over; the table holds medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LLAMA_CPP = "llama-cpp-python==0.3.36"
CONTEXT, STEPS = 64, 24
CASES = [("bf16", 1), ("bf16", 16), ("fp32", 1), ("fp32", 16)]


def say(text):
    print(text, file=sys.stderr, flush=True)


def output_of(*command, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed ({result.returncode}):\n{result.stderr[-3000:]}")
    return result.stdout


def llama_cpp(cache):
    """Folder of llama.cpp's sources; builds its batched benchmark where there is none yet."""
    sources = next(cache.glob("llama_cpp_python-*/vendor/llama.cpp"), None)
    if sources is None:
        say("fetching llama.cpp")
        if not list(cache.glob("llama_cpp_python-*.tar.gz")):
            output_of(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python", LLAMA_CPP, "-d", cache)
        output_of("tar", "xzf", next(cache.glob("llama_cpp_python-*.tar.gz")), "-C", cache)
        sources = next(cache.glob("llama_cpp_python-*/vendor/llama.cpp"))
    build = cache / "llama.cpp-build"
    if not (build / "bin" / "llama-batched-bench").exists():
        say("building llama.cpp (some minutes)")
        output_of("cmake", "-S", sources, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
                  "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
                  "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_COMMON=ON", "-DBUILD_SHARED_LIBS=OFF")
        output_of("nice", "cmake", "--build", build, "-j2", "--target", "llama-batched-bench")
    return sources


def measure_motley(options, kind, batch):
    report = json.loads(output_of(options.build / "decode_bench", options.model, kind, batch, CONTEXT, STEPS, options.threads))
    return report["tokens_per_s"], report["weight_bytes"]


def measure_llama_cpp(options, kind, batch):
    command = [options.cache / "llama.cpp-build/bin/llama-batched-bench", "-m", options.model / f"model-{kind}.gguf", "-npp", CONTEXT,
               "-ntg", STEPS, "-npl", batch, "-c", (CONTEXT + STEPS) * batch, "-t", options.threads, "-tb", options.threads,
               "-ctk", "bf16" if kind == "bf16" else "f32", "-ctv", "bf16" if kind == "bf16" else "f32", "--output-format", "jsonl"]
    for line in output_of(*command).splitlines():
        if line.startswith("{"):
            return json.loads(line)["speed_tg"]
    sys.exit("llama-batched-bench reported nothing")


def measure_transformers(options, kind, batch):
    """In a process of its own, so that its memory is free again afterwards."""
    return float(output_of(sys.executable, __file__, "--transformers", options.model, kind, batch, options.threads))


def decode_with_transformers(folder, kind, batch, threads):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if kind == "bf16" else torch.float32).eval()
    with torch.inference_mode():
        tokens = torch.randint(3, 1000, (batch, CONTEXT))
        result = model(tokens, use_cache=True)
        times = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            result = model(result.logits[:, -1:].argmax(-1), past_key_values=result.past_key_values, use_cache=True)
            times.append(time.perf_counter() - begin)
    print(batch / statistics.median(times))


def report(options, bandwidth, speeds, weight_bytes):
    read = statistics.median(row["read_bytes_per_s"] for row in bandwidth)
    copy = statistics.median(row["copy_bytes_per_s"] for row in bandwidth)
    print(f"{options.threads} threads, {options.rounds} rounds, contexts of {CONTEXT} tokens; memory: read {read / 1e9:.1f} GB/s, "
          f"copy {copy / 1e9:.1f} GB/s (read + written)\n")
    print("| type | batch | motley tokens/s | weights read | share of read bandwidth | transformers | ratio | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        kind, batch = case
        median = {name: statistics.median(speeds[name][case]) for name in speeds}
        weights = weight_bytes[case] * median["motley"] / batch
        cells = [kind, batch, f"{median['motley']:.2f}", f"{weights / 1e9:.1f} GB/s", f"{weights / read:.0%}"]
        for peer in ("transformers", "llama.cpp"):
            cells += [f"{median[peer]:.2f}", f"{median['motley'] / median[peer]:.2f}"] if peer in median else ["-", "-"]
        print("| " + " | ".join(map(str, cells)) + " |")


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--transformers":
        return decode_with_transformers(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--skip", action="append", default=[], choices=["llama.cpp", "transformers"])
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    options.model = options.cache / "llama-1b"

    peers = {"motley": None, "transformers": measure_transformers, "llama.cpp": measure_llama_cpp}
    peers = {name: measure for name, measure in peers.items() if name not in options.skip}
    say("making the model")
    gguf = ["--gguf", llama_cpp(options.cache) / "gguf-py"] if "llama.cpp" in peers else []
    output_of(sys.executable, HERE / "make_model.py", options.model, *gguf)

    bandwidth, weight_bytes, speeds = [], {}, {name: {case: [] for case in CASES} for name in peers}
    for round_number in range(options.rounds):
        for case in CASES:
            bandwidth.append(json.loads(output_of(options.build / "decode_bench", "bandwidth", options.threads)))
            for name in peers:
                if name == "motley":
                    speed, weight_bytes[case] = measure_motley(options, *case)
                else:
                    speed = peers[name](options, *case)
                speeds[name][case].append(speed)
                say(f"round {round_number + 1}: {case[0]} batch {case[1]} {name}: {speed:.2f} tokens/s")
    report(options, bandwidth, speeds, weight_bytes)


main()
