#!/usr/bin/env python3
"""The second act of the demo: a worker is killed in the middle of an answer, and the answer ends as it would have.

    examples/garage/second_act.py PLAN MODEL
"""

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path

import own_model

QUESTIONS = ["Tell me a short story about a lantern and an owl.", "Who helped the owl?", "Tell me a long story about a fox."]


def streamed(address, messages):
    """Pieces of the answer's text as they come."""
    body = {"messages": messages, "max_tokens": 160, "temperature": 0, "stream": True}
    request = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    sys.exit(f"the answer ended with an error: {event['error']['message']}")
                if text := event["choices"][0]["delta"].get("content"):
                    yield text


def conversation(address, disturb=None):
    """The answers; `disturb` is called once within the last of them."""
    messages, answers = [], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        text = ""
        for piece in streamed(address, messages):
            text += piece
            if disturb and question == QUESTIONS[-1]:
                print(f"> {question}\n{text.rstrip()} ...")
                disturb()
                disturb = None
        messages.append({"role": "assistant", "content": text})
        answers.append(text)
    return answers


def plan_in_force(address):
    with urllib.request.urlopen(f"{address}/plan") as answer:
        return json.load(answer)


def kill_a_worker(address):
    worker = plan_in_force(address)["workers"][2]
    os.kill(worker["process"], signal.SIGKILL)
    print(f"(killed: process {worker['process']}, {worker['device']}, rank {worker['rank']} of stage {worker['stage']})")


def main():
    plan, model = sys.argv[1:]
    server, address = own_model.serve(model, Path(plan))
    try:
        undisturbed = conversation(address)
        disturbed = conversation(address, lambda: kill_a_worker(address))
        restarts = plan_in_force(address)["epoch"] - 1
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()
    print(disturbed[-1])
    equal = disturbed == undisturbed and restarts == 1
    print(f"the same answer as without the loss: {'yes' if equal else 'NO'}")
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
