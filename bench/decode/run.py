"""Decode and prompt speed on this machine's CPU: motley against `transformers` and llama.cpp, on the same random weights, in fp32, bf16
and quantised types, with each of motley's sets of kernels that the machine runs; llama.cpp is compiled for each of them, too.

    run.py [--cache FOLDER] [--build FOLDER] [--rounds N] [--threads N] [--shape 1b|135m|qwen3-0.6b|mixtral4|NAME]
           [--kernels avx2] [--skip llama.cpp]

NAME is one of CUT: that model of data/models/, cut to some of its layers, which is measured where it is named alone. Runs with the
reference environment. The model, llama.cpp's sources and its build (llama_cpp_build.py) stay in the cache folder, so that a second run
starts at once. Everything is measured in turn, `rounds` times over; the table holds medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))  # where this file is imported by its path, too
from llama_cpp_build import build_llama_cpp, llama_cpp_program, output_of, say  # noqa: E402

STEPS = 24
# Shape, type, sequences, tokens of each prompt.
CASES = [("1b", kind, batch, 64) for kind in ("bf16", "fp32") for batch in (1, 16)]
CASES += [("135m", kind, batch, context) for kind in ("q4_1", "q8_0") for batch, context in ((1, 64), (16, 64), (1, 512))]
CASES += [("qwen3-0.6b", kind, 1, 64)
          for kind in ("bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "mxfp4", "iq4_nl", "iq4_xs")]
CASES += [("mixtral4", "q4_k", batch, 128) for batch in (1, 16)]
# Published models, and how many of their layers are kept: whole periods of their kinds of layers.
CUT = {"qwen3-30b-a3b": 8, "gpt-oss-20b": 6, "qwen3.5-35b-a3b": 8, "gemma-3-1b": 26}
for name in CUT:
    CASES += [(name, "mxfp4" if name == "gpt-oss-20b" else "q4_k", batch, context) for batch, context in ((1, 128), (16, 128), (1, 512))]
FROM_FILE = {"mixtral4", *CUT}  # measured from the file that llama.cpp reads: some of their folders would need 23 GB in fp32


def measure_motley(options, shape, kind, batch, context, kernels=""):
    """Tokens/s of decoding and of prompts, and the report."""
    weights = (gguf_file(options, shape, kind), "file") if shape in FROM_FILE else (options.models[shape], kind)
    report = json.loads(output_of(options.build / "decode_bench", *weights, batch, context, STEPS, options.threads,
                                  env={**os.environ, "MOTLEY_KERNELS": kernels}))
    return report["tokens_per_s"], report["prefill_tokens_per_s"], report


def make_cut(options, name, folder):
    """Random weights in the shape of a published model with its first layers alone; stays as GGUF files, its folder goes."""
    config = json.loads((ROOT / "data/models" / name / "config.json").read_text())
    config["num_hidden_layers"] = CUT[name]
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:CUT[name]]
    kinds = [case[1] for case in options.cases if case[0] == name]
    if all((folder / f"model-{kind}.gguf").exists() for kind in kinds):
        return
    with tempfile.TemporaryDirectory(dir=options.cache) as work:
        (Path(work) / "config.json").write_text(json.dumps(config))
        output_of(options.build / "motley", "model", "init", Path(work) / "config.json", "-o", Path(work) / "model", "-q")
        folder.mkdir(exist_ok=True)
        for kind in dict.fromkeys(kinds):
            output_of(options.build / "motley", "model", "quantize", Path(work) / "model", "--type", kind, "-q", "-o",
                      folder / f"model-{kind}.gguf")


def gguf_file(options, shape, kind):
    path = options.models[shape] / f"model-{kind}.gguf"
    if not path.exists():
        asked = "f32" if kind == "fp32" else kind
        output_of(options.build / "motley", "model", "quantize", options.models[shape], "--type", asked, "-o", path)
    return path


def measure_llama_cpp(options, shape, kind, batch, context, kernels):
    kv = "f32" if kind == "fp32" else "bf16"
    command = [llama_cpp_program(options.cache, kernels, "llama-batched-bench"), "-m", gguf_file(options, shape, kind), "-npp", context,
               "-ntg", STEPS, "-npl", batch, "-c", (context + STEPS) * batch, "-t", options.threads, "-tb", options.threads,
               "-ctk", kv, "-ctv", kv, "--output-format", "jsonl"]
    for line in output_of(*command).splitlines():
        if line.startswith("{"):
            report = json.loads(line)
            return report["speed_tg"], report["speed_pp"]
    sys.exit("llama-batched-bench reported nothing")


def measure_transformers(options, shape, kind, batch, context):
    """In a process of its own, so that its memory is free again afterwards. None: not of this type."""
    if kind not in ("fp32", "bf16"):
        return None
    answer = output_of(sys.executable, __file__, "--transformers", options.models[shape], kind, batch, context, options.threads)
    return [float(word) for word in answer.split()]


def decode_with_transformers(folder, kind, batch, context, threads):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if kind == "bf16" else torch.float32).eval()
    with torch.inference_mode():
        tokens = torch.randint(3, 1000, (batch, context))
        begin = time.perf_counter()
        result = model(tokens, use_cache=True)
        prompts = time.perf_counter() - begin
        begin = time.perf_counter()
        for _ in range(STEPS):
            result = model(result.logits[:, -1:].argmax(-1), past_key_values=result.past_key_values, use_cache=True)
        decode = time.perf_counter() - begin
    print(batch * STEPS / decode, batch * context / prompts)


def report(options, bandwidth, speeds, reports):
    def rate_beside_bf16(case, kernels):
        """Bytes of weights read per second, as a share of those in bf16."""
        bf16 = (case[0], "bf16", *case[2:])
        if bf16 not in reports or bf16 == case:
            return "-"
        rates = [reports[one]["weight_bytes"] * statistics.median(run[0] for run in speeds[kernels][one]) for one in (case, bf16)]
        return f"{rates[0] / rates[1]:.2f}"

    read = statistics.median(row["read_bytes_per_s"] for row in bandwidth)
    copy = statistics.median(row["copy_bytes_per_s"] for row in bandwidth)
    print(f"{options.threads} threads, {options.rounds} rounds; memory: read {read / 1e9:.1f} GB/s, copy {copy / 1e9:.1f} GB/s (read + "
          "written)\n")
    peers = [name for name in ("transformers", "llama.cpp") if name not in options.skip]
    print("| shape | type | sequences x prompt | kernels | figure | motley tokens/s | share of read bandwidth | bf16's rate |"
          + "".join(f" {peer} | ratio |" for peer in peers))
    print("|---|---|---|---|---|---|---|---|" + "---|---|" * len(peers))
    for case in options.cases:
        shape, kind, batch, context = case
        for kernels in options.kernels:
            for figure, name in enumerate(("decode", "prompt")):
                reads_all = figure == 0 and shape not in FROM_FILE
                median = {peer: statistics.median(run[figure] for run in rows[case]) for peer, rows in speeds.items() if rows[case]}
                mine = median[kernels]
                share = f"{reports[case]['weight_bytes'] * mine / batch / read:.0%}" if reads_all else "-"
                to_bf16 = rate_beside_bf16(case, kernels) if figure == 0 else "-"
                cells = [shape, kind, f"{batch} x {context}", kernels, name, f"{mine:.2f}", share, to_bf16]
                for peer in peers:
                    peer = f"llama.cpp {kernels}" if peer == "llama.cpp" else peer
                    cells += [f"{median[peer]:.2f}", f"{mine / median[peer]:.2f}"] if peer in median else ["-", "-"]
                print("| " + " | ".join(map(str, cells)) + " |")


def main():
    if len(sys.argv) == 7 and sys.argv[1] == "--transformers":
        return decode_with_transformers(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/motley/bench")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shape", choices=dict.fromkeys(case[0] for case in CASES), help="measure this one alone")
    parser.add_argument("--kernels", action="append", help="motley's sets to measure (default: all that run here)")
    parser.add_argument("--skip", action="append", default=[], choices=["llama.cpp", "transformers"])
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    options.cases = [case for case in CASES if options.shape == case[0] or not options.shape and case[0] not in CUT]
    options.models = {shape: options.cache / f"llama-{shape}" for shape in dict.fromkeys(case[0] for case in options.cases)}
    options.kernels = options.kernels or json.loads(output_of(options.build / "decode_bench", "kernels"))

    runs = {name: lambda *case, name=name: measure_motley(options, *case, name) for name in options.kernels}
    if "transformers" not in options.skip:
        runs["transformers"] = lambda *case: measure_transformers(options, *case)
    if "llama.cpp" not in options.skip:
        runs |= {f"llama.cpp {name}": lambda *case, name=name: measure_llama_cpp(options, *case, name) for name in options.kernels}
    say("making the models")
    for shape, folder in options.models.items():
        if shape in CUT:
            make_cut(options, shape, folder)
        else:
            output_of(sys.executable, HERE / "make_model.py", folder, "--shape", shape)
    if "llama.cpp" not in options.skip:
        for name in options.kernels:
            build_llama_cpp(options.cache, name, "llama-batched-bench")

    bandwidth, reports = [], {}
    speeds = {name: {case: [] for case in options.cases} for name in runs}
    for round_number in range(options.rounds):
        for case in options.cases:
            bandwidth.append(json.loads(output_of(options.build / "decode_bench", "bandwidth", options.threads)))
            for name, measure in runs.items():
                run = measure(*case)
                if run is None:
                    continue
                if name in options.kernels:
                    *run, reports[case] = run
                speeds[name][case].append(run)
                say(f"round {round_number + 1}: {' '.join(map(str, case))} {name}: decode {run[0]:.2f}, prompt {run[1]:.2f} tokens/s")
    report(options, bandwidth, speeds, reports)


if __name__ == "__main__":
    main()
