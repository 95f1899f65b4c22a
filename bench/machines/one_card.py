#!/usr/bin/env python3
"""Two agents on the one card (or the one processor) of this machine, each a machine of its own as far as motley knows: `motley up` and
`motley join` in namespaces, a model in two stages, rows over TLS. Prints JSON: the plan, and what Load finds.

    one_card.py --motley PROGRAM --model FOLDER --memory SIZE --folder FOLDER [--load JSON] [--threads N] [--loopback] [-- OPTION_OF_UP...]

--loopback: without namespaces, and so without TLS.
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from deployment import Bridge, Deployment, Loopback, inside
from load import decoded_per_s


@dataclass
class Load:
    """What is asked of a server, the same of each one that is compared."""

    requests: int = 6  # whose tokens are kept, one after the other
    longest: int = 40  # tokens of a prompt among them
    answer: int = 16
    prompt: int = 60  # tokens of the prompt whose time is taken
    streams: tuple = (1, 4)  # that decode at once
    tokens: int = 32  # of each


def answer(port, prompt, tokens, seed):
    """Token ids: every second answer takes the likeliest tokens, the others are drawn."""
    body = {"prompt": prompt, "max_tokens": tokens, "seed": seed, "temperature": seed % 2, "ignore_eos": True, "return_token_ids": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        raise RuntimeError(f"{reply.status}: {text[:500]}")
    return json.loads(text)["choices"][0]["token_ids"]


def measured(port, load):
    source = random.Random(1)
    draw = lambda count: [source.randrange(3, 1000) for _ in range(count)]  # noqa: E731
    answers = [answer(port, draw(source.randint(1, load.longest)), load.answer, seed) for seed in range(load.requests)]
    prompts = []
    for _ in range(8):
        begin = time.monotonic()
        answer(port, draw(load.prompt), 1, 0)
        prompts.append(time.monotonic() - begin)
    rates = [decoded_per_s(streams, 16, load.tokens, port) for streams in load.streams]
    return {"answers": answers, "prompt_s": statistics.median(prompts[1:]), "tokens_per_s": rates}


def on_one_machine(plan, whole):
    """The plan on a machine "here" with room for it: its stages by their layers, or one stage of all."""
    plan = {key: value for key, value in plan.items() if key not in ("predicted", "unused", "search")}
    stages = [dict(stage) for stage in plan["stages"]]
    if whole:
        stages = [stages[0] | {"layers": [0, stages[-1]["layers"][1]], "head": True, "kv_tokens": min(stage["kv_tokens"] for stage in stages)}]
    for slot, stage in enumerate(stages):
        stage["devices"] = [f"here/{slot}"]
    kind = plan["cluster"]["device_type"][0] | {"name": "device", "memory": "64 GiB"}
    cluster = {"format": plan["cluster"]["format"], "name": "here", "machine": [{"name": "here", "devices": [f"device*{len(stages)}"]}],
               "device_type": [kind]}  # fmt: skip
    route = plan["routes"][0] | {"path": [{"stage": stage["id"], "layers": stage["layers"]} for stage in stages]}
    return plan | {"cluster": cluster, "stages": stages, "routes": [route], "unused": []}


def predicted_s(report):
    """Of a token of one stream, with the way between the stages and back to the driver."""
    route = report["steps"][0]
    return sum(part["predicted"]["one_token_s"] for part in [*route["stages"], route["between_stages"]])


class OneMachine(Deployment):
    """What one agent has measured of the card, the other need not."""

    def environment(self, name):
        return super().environment(name) | {"XDG_STATE_HOME": str(self.folder / "state")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--motley", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--memory", required=True, help="of each agent, so that the model fits both alone")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--load", default=json.dumps(asdict(Load())))
    parser.add_argument("--threads", help="of each worker (default: all processors)")
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("options", nargs="*")
    options = parser.parse_args()
    if not options.loopback:
        inside()
    threads = ["--device-threads", options.threads] if options.threads else []
    up = [*options.options, *threads, "--all-devices", "--one-pipeline", *(["--listen", "127.0.0.1"] if options.loopback else [])]
    second = {"memory": options.memory, "options": threads}
    deployment = OneMachine(options.folder, options.memory, [second], motley=options.motley, model=options.model, options=up,
                            links=Loopback() if options.loopback else Bridge())  # fmt: skip
    try:
        report = deployment.plan()
        if len(report["plan"]["stages"]) != 2 or {len(stage["devices"]) for stage in report["plan"]["stages"]} != {1}:
            sys.exit("not two stages of one device:\n" + deployment.text())
        found = measured(8000, Load(**json.loads(options.load)))
        epoch = deployment.plan()["epoch"]
        if epoch != report["epoch"]:
            sys.exit("the workers were started again:\n" + deployment.text())
        print(json.dumps({"plan": report["plan"], "predicted_s": predicted_s(report), "log": deployment.log} | found))
    finally:
        deployment.end()


if __name__ == "__main__":
    main()
