"""What run.py checks. Nothing here is imported that a machine without a GPU lacks, until a check runs."""

import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from between import faults, nccl, peers, staging, sums, two
from common import (CLUSTER, CONTEXT, PROMPT, SHAPES, STEPS, Check, Context, complete, give_tokenizer, link_torch, make_model, probe, safely,
                    serve_plan, serving)  # fmt: skip

GENERATE = 24
PROMPT_LENGTHS = [1, 7, 40, 83]
QUANTISED = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "mxfp4", "iq4_nl", "iq4_xs"]
SCRIPTS = [dict(name="alone"), dict(name="batched, chunks of 17", chunk=17, together=True), dict(name="batched", together=True)]


# ---- parity ----

def requests():
    import random
    generator = random.Random(5)
    draw = lambda count: [generator.randrange(3, 200) for _ in range(count)]  # noqa: E731
    return [dict(prompt=draw(length), generate=GENERATE, forced=draw(GENERATE)) for length in PROMPT_LENGTHS]


def logits(context, case, name, **changes):
    import numpy
    folder = context.scratch / name
    folder.mkdir()
    (folder / "case.json").write_text(json.dumps(case))
    context.program("engine_check", folder / "case.json", folder / "out", **changes)
    values = numpy.fromfile(folder / "out.bin", numpy.float32)
    shutil.rmtree(folder)
    return values


def layout(context, *stages):
    """Stages of (share of the layers, degree, on the GPU)."""
    return lambda layers: [dict(name="layout", stages=[dict(first=round(first * layers), last=round(last * layers), degree=degree,
                                                            backend=context.backend if gpu else "cpu")
                                                       for first, last, degree, gpu in stages])]


def apart(context, number, case, ours, one):
    """How far the logits of `ours` are from those of `one`, a layout on the processor: (the largest difference over the largest logit,
    the error over that of the processor). Errors are root mean squares of the difference to a run that rounds neither activations
    nor inputs of products."""
    import numpy
    found = logits(context, case | dict(layouts=ours), f"ours-{number}")
    theirs = logits(context, case | dict(layouts=one), f"theirs-{number}")
    whole = "fp32" if case["weight_type"] == "bf16" else case["weight_type"]
    truth = logits(context, case | dict(layouts=one, weight_type=whole, kv_type="fp32"), f"truth-{number}", MOTLEY_ACTIVATIONS="fp32")
    error, allowed = (float(numpy.sqrt(numpy.mean((x - truth) ** 2))) for x in (found, theirs))
    largest = float(abs(found - theirs).max() / abs(theirs).max()) if numpy.isfinite(found).all() else float("inf")
    return largest, error / allowed if allowed else float("inf")


def difference(context, number, model, weight_type, kv_type, stages):
    layers = json.loads((context.pack / "models" / model / "config.json").read_text())["num_hidden_layers"]
    case = dict(model=str(context.pack / "models" / model), weight_type=weight_type, kv_type=kv_type, requests=requests(), scripts=SCRIPTS)
    largest, error = apart(context, number, case, stages(layers), layout(context, (0, 1, 1, False))(layers))
    return largest if limit_of((model, weight_type, kv_type)) == FP32_LIMIT else error


FP32_LIMIT, ROUNDED_LIMIT = 1e-4, 1.5
MEASURES = {FP32_LIMIT: "fp32: largest difference of logits, of the largest logit",
            ROUNDED_LIMIT: "rounded types: error, of the processor's own"}


def compare_all(context, rows, cases, name_of):
    """Of cases of (model, weight type, kv type, stages): a row for each limit, and an error for what is beyond."""
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda job: safely(difference, context, *job), [(i, *case) for i, case in enumerate(cases)]))
    (context.out / f"parity-{len(cases)}.json").write_text(
        json.dumps([(name_of(case), str(result)) for case, result in zip(cases, found)], indent=1))
    beyond = []
    for limit, measure in MEASURES.items():
        those = [(result, name_of(case)) for result, case in zip(found, cases) if limit_of(case) == limit]
        for result, name in those:
            if isinstance(result, Exception) or not result <= limit:
                beyond.append(f"{name}: {result if isinstance(result, Exception) else f'{result:.1e}'}")
        numbers = [(result, name) for result, name in those if not isinstance(result, Exception)]
        if numbers:
            worst, name = max(numbers)
            rows.append((f"{len(those)} cases: {measure}", f"{worst:.2g} ({name})", f"{limit:g}"))
    if beyond:
        raise RuntimeError("; ".join(beyond))


def limit_of(case):
    """In fp32 alone orders of sums hardly matter: of small models in bf16, one rank and two ranks differ by 3 % of the largest logit on
    the processor itself."""
    return FP32_LIMIT if case[1] == "fp32" and case[2] == "fp32" else ROUNDED_LIMIT


def parity(context, rows):
    whole = layout(context, (0, 1, 1, True))
    families = sorted(path.name for path in (context.pack / "models").iterdir() if path.name != "small256")
    cases = [(family, kind, kind, whole) for family in families for kind in ("fp32", "bf16")]
    cases += [("small256", kind, "bf16", whole) for kind in QUANTISED]
    cases += [("small256", kind, "q8_0", whole) for kind in ("fp32", "bf16")]
    compare_all(context, rows, cases, lambda case: " ".join(case[:3]))


def pipeline(context, rows):
    layouts = {"two stages on the GPU": layout(context, (0, 1 / 3, 1, True), (1 / 3, 1, 1, True)),
               "GPU, then processor": layout(context, (0, 2 / 3, 1, True), (2 / 3, 1, 1, False)),
               "processor, then GPU": layout(context, (0, 1 / 3, 1, False), (1 / 3, 1, 1, True)),
               "two ranks on the GPU": layout(context, (0, 1, 2, True))}
    names = {id(stages): name for name, stages in layouts.items()}
    cases = [(family, kind, kind, stages) for stages in layouts.values() for kind in ("fp32", "bf16")
             for family in ("llama-gqa-llama3", "qwen3-qk-norm")]
    compare_all(context, rows, cases, lambda case: f"{names[id(case[3])]}, {case[0]} {case[1]}")


def logits_of_models(context, rows):
    models = {"1b, random weights": make_model(context, "1b" if context.on_gpu else "small"),
              "tales, trained": context.pack / "share/motley/models/tales"}
    for name, folder in models.items():
        layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
        case = dict(model=str(folder), weight_type="bf16", kv_type="bf16", requests=requests(), scripts=SCRIPTS[1:])
        largest, error = apart(context, name.split(",")[0], case, *(layout(context, (0, 1, 1, gpu))(layers) for gpu in (True, False)))
        rows.append((f"{name}, bf16: largest difference of logits, of the largest logit", f"{largest:.2g}", "0.01"))
        rows.append((f"{name}, bf16: error against fp32, of the processor's own", f"{error:.2f}", f"{ROUNDED_LIMIT:g}"))
        if not error <= ROUNDED_LIMIT:
            raise RuntimeError(f"the error of {name} is {error:.2f} of the processor's")


# ---- speed ----


def decode(context, folder, kind, loads, **changes):
    arguments = [folder, kind, ",".join(f"{batch}x{tokens}" for batch, tokens in loads), CONTEXT, STEPS, 8, "bf16", context.backend]
    return [json.loads(line) for line in context.program("decode_bench", *arguments, **changes).splitlines()]


def with_transformers(context, folder, loads):
    """[(tokens/s, prefill tokens/s)], with the best attention that it has here."""
    import torch
    from transformers import AutoModelForCausalLM
    device = "cuda" if context.on_gpu else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").to(device).eval()
    wait = torch.cuda.synchronize if context.on_gpu else lambda: None
    results = []
    with torch.inference_mode():
        for batch, tokens in loads:
            prompt = torch.randint(3, 1000, (batch, tokens), device=device)
            times = []
            for _ in range(6 if context.on_gpu else 2):  # the first chooses kernels
                wait()
                begin = time.perf_counter()
                result = model(prompt, use_cache=True, logits_to_keep=1)
                wait()
                times.append(time.perf_counter() - begin)
            prefill = statistics.median(times[1:])
            for i in range(STEPS + 4):
                if i == 4:
                    wait()
                    begin = time.perf_counter()
                result = model(result.logits[:, -1:].argmax(-1), past_key_values=result.past_key_values, use_cache=True, logits_to_keep=1)
            wait()
            results.append((batch * STEPS / (time.perf_counter() - begin), batch * tokens / prefill))
    del model, result
    if context.on_gpu:
        torch.cuda.empty_cache()
    return results


def prefill_flops(config, tokens):
    """Of the blocks: the head is computed for one row."""
    hidden, heads, dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    block = hidden * dim * (2 * heads + 2 * config["num_key_value_heads"]) + 3 * hidden * config["intermediate_size"]
    return config["num_hidden_layers"] * (2 * block * tokens + 2 * heads * dim * tokens**2)  # causal: half of all pairs


def read_weights(config, bytes_of_all):
    """Bytes of weights that a step reads: all but an embedding that is a matrix of its own."""
    return bytes_of_all - (0 if config["tie_word_embeddings"] else 2 * config["vocab_size"] * config["hidden_size"])


def speed(context, rows, shape, goals):
    context.know_rates()
    shape = shape if context.on_gpu else "small"
    config, folder = SHAPES[shape], make_model(context, shape)
    loads = [(1, CONTEXT), (16, CONTEXT), (64, CONTEXT), (1, PROMPT)] if context.on_gpu else [(1, 20), (3, 20)]
    runs = decode(context, folder, "bf16", loads)
    (context.out / f"decode-{shape}.json").write_text(json.dumps(runs, indent=1))
    theirs = safely(with_transformers, context, folder, loads)
    for i, run in enumerate(runs):
        batch, tokens = loads[i]
        ratio = "" if isinstance(theirs, Exception) else f", {run['tokens_per_s'] / theirs[i][0]:.2f} x `transformers`"
        share = read_weights(config, run["weight_bytes"]) / run["step_s"] / context.read_rate
        if tokens == CONTEXT or not context.on_gpu:
            rows.append((f"{shape}, bf16, decode, batch {batch} ({run['kernels']})",
                         f"{run['tokens_per_s']:.0f} tokens/s, {1e3 * run['step_s']:.2f} ms a step, {share:.0%} of the read rate{ratio}",
                         goals.get(batch, "")))
        if batch == 1 and tokens == loads[-1][1]:
            rate = prefill_flops(config, tokens) * run["prefill_tokens_per_s"] / tokens
            ratio = "" if isinstance(theirs, Exception) else f", {run['prefill_tokens_per_s'] / theirs[i][1]:.2f} x `transformers`"
            rows.append((f"{shape}, bf16, prompt of {tokens:,} tokens",
                         f"{run['prefill_tokens_per_s']:.0f} tokens/s, {rate / context.matrix_rate:.0%} of the matrix peak{ratio}",
                         goals.get("prompt", "")))
    if isinstance(theirs, Exception):
        raise theirs


def speed_8b(context, rows):
    speed(context, rows, "8b", {1: "80 % of the read rate", 16: "3 x", "prompt": "60 % of the peak"})


def speed_1b(context, rows):
    speed(context, rows, "1b", {})


def library(context, rows):
    """Without the library of kernels: LibTorch's alone."""
    shape = "1b" if context.on_gpu else "small"
    folder, loads = make_model(context, shape), [(1, CONTEXT), (16, CONTEXT)]
    for kernels in ("none", ""):
        for run in decode(context, folder, "bf16", loads, MOTLEY_CUDA_KERNELS=kernels):
            rows.append((f"{shape}, bf16, decode, batch {run['batch']}, kernels: {run['kernels']}", f"{1e3 * run['step_s']:.2f} ms a step", ""))


def quantised(context, rows):
    context.know_rates()
    shape = "1b" if context.on_gpu else "small"
    folder = make_model(context, shape)
    for kind in ("q8_0", "q4_k"):
        for run in decode(context, folder, kind, [(1, CONTEXT), (16, CONTEXT)]):
            share = run["weight_bytes"] / run["step_s"] / context.read_rate
            rows.append((f"{shape}, {kind}, decode, batch {run['batch']}",
                         f"{run['tokens_per_s']:.0f} tokens/s, {1e3 * run['step_s']:.2f} ms a step, {share:.0%} of the read rate", ""))


def cuda_libraries():
    """Folders of cuBLAS and others, as PyTorch's packages bring them."""
    import torch
    return sorted((Path(torch.__file__).parent.parent / "nvidia").glob("*/lib"))


def with_llama_cpp(context, file, loads):
    """(tokens/s, prefill tokens/s) of each load, by llama.cpp's own benchmark; nothing where there is no build of it."""
    found = {}
    for tokens in sorted({tokens for _, tokens in loads}) if context.llama_cpp else ():
        batches = [batch for batch, of in loads if of == tokens]
        batches.insert(0, batches[0])  # kernels are loaded the first time: its figure gives way to the second
        command = [context.llama_cpp / "llama-batched-bench", "-m", file, "-ngl", 99, "-npp", tokens, "-ntg", STEPS,
                   "-npl", ",".join(map(str, batches)), "-c", (tokens + STEPS) * max(batches), "--output-format", "jsonl"]
        left = max(5, context.deadline - time.monotonic())
        environment = context.environment()
        environment["LD_LIBRARY_PATH"] += "".join(f":{folder}" for folder in cuda_libraries())
        said = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=left)
        reports = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
        if said.returncode != 0 or len(reports) != len(batches):
            raise RuntimeError(f"llama-batched-bench ended with {said.returncode}: {said.stderr[-400:]}")
        found |= {(report["pl"], tokens): (report["speed_tg"], report["speed_pp"]) for report in reports}
    return found


def many_rows(context, rows):
    """Many streams, and prompts, with quantised weights, next to llama.cpp on the same file. Prompts of up to 512 tokens multiply by
    motley's kernels, longer ones by LibTorch's after weights are expanded: the times of both show where the border should be."""
    shape = "8b" if context.on_gpu else "small"
    batches, prompts = ((1, 16, 64, 128), (128, 256, 512, 1024, PROMPT)) if context.on_gpu else ((1, 17), (20, 40))
    folder, context_tokens = make_model(context, shape), prompts[0]
    give_tokenizer(context, folder)
    loads = [(batch, context_tokens) for batch in batches] + [(1, tokens) for tokens in prompts[1:]]
    if not context.llama_cpp:
        rows.append(("llama.cpp on the same files", "not compared: `./dev gpu --build` has built none for this card", ""))
    for kind in ("q4_k", "q8_0"):
        file = context.scratch / f"{shape}-{kind}.gguf"
        context.program("motley", "model", "quantize", folder, "--type", kind, "-q", "-o", file)
        runs = dict(zip(loads, decode(context, file, "file", loads)))
        theirs = safely(with_llama_cpp, context, file, loads)
        file.unlink()
        speeds = [(f"decode, batch {batch}", (batch, context_tokens), 0, runs[batch, context_tokens]["tokens_per_s"], batch)
                  for batch in batches]
        speeds += [(f"prompt of {tokens:,} tokens", (1, tokens), 1, runs[1, tokens]["prefill_tokens_per_s"], tokens) for tokens in prompts]
        for what, load, figure, speed, tokens in speeds:
            ratio = f", {speed / theirs[load][figure]:.2f} x llama.cpp" if isinstance(theirs, dict) and load in theirs else ""
            rows.append((f"{shape}, {kind}, {what}", f"{speed:.0f} tokens/s, {1e3 * tokens / speed:.2f} ms{ratio}", "1.05 x llama.cpp"))
        if isinstance(theirs, Exception):
            raise theirs


def memory(context, rows):
    """What a process takes on the card beyond what the plan counts."""
    import torch
    shape = "1b" if context.on_gpu else "small"
    folder = make_model(context, shape)
    command = [context.pack / "bin/decode_bench", folder, "bf16", "16", CONTEXT, 2000 if context.on_gpu else 5, 8, "bf16", context.backend]
    before = torch.cuda.mem_get_info()[0] if context.on_gpu else 0
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=context.environment())
    most = 0
    while process.poll() is None:
        if context.on_gpu:
            most = max(most, before - torch.cuda.mem_get_info()[0])
        time.sleep(0.1)
    run = json.loads(process.stdout.read().splitlines()[0])
    planned = run["weight_bytes"] + run["kv_bytes"] + run["activation_bytes"]
    rows.append((f"{shape}, memory of the process", f"{most / 2**20:.0f} MiB, {planned / 2**20:.0f} MiB of them counted by the plan", ""))


def doctor(context):
    """It may lack what this pack does not have, and says so by its exit status."""
    return subprocess.run([context.pack / "bin/motley", "doctor", "--json"], capture_output=True, text=True,
                          env=context.environment()).stdout


def serve(context, rows):
    """The program itself: a plan for one card, whose worker runs on it, against one on the processor."""
    folder, model = context.scratch / "serve", context.pack / "share/motley/models/tales"
    folder.mkdir()
    (folder / "cluster.toml").write_text(CLUSTER)
    cards = [finding["detail"] for finding in json.loads(doctor(context))["findings"] if finding["what"].startswith("gpu ")]
    rows.append(("`motley doctor`", "; ".join(cards) or "no GPU", ""))
    link_torch(context)
    for kind in ("fp32", "bf16"):
        context.program("motley", "plan", "serve", "--cluster", folder / "cluster.toml", "--model", model, "--weight-type", kind,
                        "--max-tokens", 64, "--max-sequences", 8, "-o", folder / "plan.json")
        answers = {}
        for backend in ("cpu", "cuda" if context.on_gpu else "cpu"):
            said = context.program("motley", "chat", folder / "plan.json", "--model", model, "--temperature", 0, "--max-answer-tokens", 160,
                                   "--message", "Tell me a short story about a lantern and an owl.", "--message", "Who helped the owl?",
                                   "--backend", backend, "-q", "--json")
            answers[backend] = [turn["token_ids"] for turn in json.loads(said)]
        tokens = sum(map(len, answers["cpu"]))
        same = answers["cpu"] == list(answers.values())[-1]
        rows.append((f"`motley chat`, {kind}, two answers of the tales model, against the processor's",
                     f"{tokens} tokens, {'all equal' if same else 'not equal'}", "equal in fp32"))
        if kind == "fp32" and not same:
            raise RuntimeError("the answers differ")


ANSWER_TOKENS = 128


def talk(address, streams, answers=3):
    """Tokens/s of this many clients, each asking for one answer after another; the first of each is not counted."""
    import random
    source = random.Random(streams)

    def one(number):
        done = []
        for _ in range(answers):
            begin = time.monotonic()
            came = complete(address, source, 64, ANSWER_TOKENS)
            done.append((begin, time.monotonic(), came))
        return done[1:]

    with ThreadPoolExecutor(streams) as clients:
        done = [answer for mine in clients.map(one, range(streams)) for answer in mine]
    return sum(answer[2] for answer in done) / (max(answer[1] for answer in done) - min(answer[0] for answer in done))


def http(context, rows):
    """A server's clients, next to what the same model decodes in one process."""
    shape = "8b" if context.on_gpu else "small"
    model = make_model(context, shape)
    plan = serve_plan(context, model, "http", CLUSTER.replace("8 GiB", "60 GiB" if context.on_gpu else "2 GiB"))
    with serving(context, plan, model) as (address, _):
        for streams in (1, 16, 64) if context.on_gpu else (1, 4):
            rows.append((f"{shape}, bf16, `motley serve`, {streams} clients over HTTP, 64 tokens in and {ANSWER_TOKENS} out",
                         f"{talk(address, streams):.0f} tokens/s", ""))


TAKER = """
import sys, torch
held = []
for line in sys.stdin:  # takes memory until this many MiB are free
    wanted = int(line) << 20
    while (spare := torch.cuda.mem_get_info()[0] - wanted) > 8 << 20:
        held.append(torch.empty(min(spare, 1 << 30), dtype=torch.uint8, device="cuda"))
    print(torch.cuda.mem_get_info()[0] >> 20, flush=True)
"""


@contextmanager
def taker(context):
    """Another program on the card: a function that leaves this many MiB free, and says how many are."""
    with subprocess.Popen([sys.executable, "-c", TAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def leave(megabytes):
            process.stdin.write(f"{megabytes}\n")
            process.stdin.flush()
            return int(process.stdout.readline())
        yield leave if context.on_gpu else lambda megabytes: megabytes
        process.stdin.close()


def shared(context, rows):
    """Another program takes memory: before the server starts, and while it serves."""
    import random
    shape = "1b" if context.on_gpu else "small"
    model = make_model(context, shape)
    plan = serve_plan(context, model, "shared", CLUSTER.replace("8 GiB", "60 GiB" if context.on_gpu else "2 GiB"))
    planned = json.loads(plan.read_text())["stages"][0]["kv_tokens"]
    source, count, tokens = random.Random(3), 48 if context.on_gpu else 4, 1900 if context.on_gpu else 40

    def ask_all():
        with ThreadPoolExecutor(count) as clients:
            came = list(clients.map(lambda _: complete(address, source, tokens, 64), range(count)))
        if came != [64] * count:
            raise RuntimeError(f"answers of {came} tokens")

    with taker(context) as leave:
        left = leave(8 << 10)
        with serving(context, plan, model) as (address, said):
            at_start = re.findall(r"keys and values of (\d+) tokens", said())
            rows.append((f"{shape}, {left} MiB free where the plan has keys and values of {planned} tokens",
                         f"served with {at_start[-1] if at_start else planned} tokens", "fewer"))
            later = leave(16)  # less than libraries take for their first large product
            ask_all()
            after = re.findall(r"keys and values of (\d+) tokens", said())[len(at_start):]
            rows.append((f"{shape}, {later} MiB left free while it serves, {count} prompts of {tokens} tokens",
                         f"all answered; keys and values {f'of {after[-1]} tokens from then on' if after else 'as before'}", "all answered"))
    if context.on_gpu and not at_start:
        raise RuntimeError("the cache did not shrink")


def predict(context, rows):
    """What planners predict of the shape once the card was probed, next to what `8b` measured."""
    shape, sizes, prompt = ("8b", (16, 64), PROMPT) if context.on_gpu else ("small", (3,), 20)
    model = make_model(context, shape)
    link_torch(context)
    probed, load = context.scratch / "probed.toml", context.scratch / "load.toml"
    context.program("motley", "cluster", "probe", "--backend", "cuda" if context.on_gpu else "cpu", "--model", model, "--seconds", 15, "-o", probed)
    shutil.copy(probed, context.out)
    load.write_text(f'format = "motley.workload/1"\n[[class]]\nname = "bench"\nrate = "1 /s"\nprompt_tokens = {CONTEXT}\noutput_tokens = {STEPS}\n')
    predicted = {}
    for sequences in sizes:
        plan = context.scratch / f"predict-{sequences}.json"
        context.program("motley", "plan", "serve", "--cluster", probed, "--model", model, "--workload", load, "--weight-type", "bf16",
                        "--max-tokens", prompt, "--max-sequences", sequences, "-o", plan)
        step = json.loads(context.program("motley", "explain", plan, "--json"))["steps"][0]
        predicted |= {1: step["one_token_s"], sequences: step["max_sequences_s"], "prompt": step["full_step_s"]}
    runs = decode(context, model, "bf16", [(1, CONTEXT), *((size, CONTEXT) for size in sizes), (1, prompt)])
    measured = dict(zip((1, *sizes), (run["step_s"] for run in runs))) | {"prompt": prompt / runs[-1]["prefill_tokens_per_s"]}
    names = {1: "a step of one token", "prompt": f"a prompt of {prompt:,} tokens"} | {size: f"a step of {size} sequences" for size in sizes}
    for key, name in names.items():
        rows.append((f"{shape}, bf16, {name}", f"{1e3 * predicted[key]:.2f} ms predicted, {1e3 * measured[key]:.2f} ms measured, "
                     f"{predicted[key] / measured[key] - 1:+.0%}", "15 %"))
    if context.on_gpu and (far := [name for key, name in names.items() if abs(predicted[key] / measured[key] - 1) > 0.15]):
        raise RuntimeError(f"further apart than 15 %: {', '.join(far)}")


ALL = [
    Check("probe", "read rate of the card's memory, and its bf16 matrix peak", 40, probe),
    Check("staging", "copies between the card and the host by size, as serving makes them; how fast memory is pinned", 120, staging),
    Check("parity", "every family, mixtures among them, weight type and KV type: logits against the processor's", 150, parity),
    Check("pipeline", "two stages on the GPU, a GPU with a processor, two ranks on the GPU: logits", 100, pipeline),
    Check("serve", "`motley plan serve` and `motley chat` with the worker on the GPU: the processor's tokens", 60, serve),
    Check("8b", "decode and prefill of the 8 B shape against transformers, and shares of the probe's rates", 180, speed_8b),
    Check("http", "`motley serve` of the 8 B shape on the GPU: clients over HTTP", 90, http),
    Check("predict", "`motley cluster probe` of the GPU, and the plan made from it: predicted and measured", 120, predict),
    Check("peers", "two stages' processes on the GPU: rows from device to device, and through the host", 90, peers),
    Check("two", "`motley up` and `motley join` as two machines on the GPU, a stage each, over TLS: answers, tokens/s, prediction", 210, two),
    Check("faults", "one of two processes on the GPU is killed, or breaks its context, under load", 80, faults),
    Check("shared", "a server on a GPU of which other programs take most, before it starts and while it serves", 90, shared),
    Check("quantised", "decode of the 1 B shape in q8_0 and q4_k", 90, quantised),
    Check("rows", "64 and 128 streams and prompts of the 8 B shape in q4_k and q8_0, against llama.cpp where there is one", 240, many_rows),
    Check("1b", "decode and prefill of the 1 B shape against transformers", 90, speed_1b),
    Check("logits", "logits of the 1 B shape and of the tales model in bf16 against the processor's", 90, logits_of_models),
    Check("library", "the same without motley's library of kernels", 60, library),
    Check("memory", "memory that a process takes, next to the plan's figure", 60, memory),
    Check("sums", "sums of two processes over memory of the device and of the host: bits, replays, the loss of one", 90, sums),
    Check("nccl", "NCCL's library through the interface for vendors' libraries", 30, nccl),
]
