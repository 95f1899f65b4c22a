"""What happens to a server when something dies or is in its way."""

import os
import random
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "server" / "cluster.toml"
MODEL = ROOT / "data" / "models" / "tales"


@pytest.mark.parametrize("victim", range(3))
def test_a_worker_dies_under_load(start_server, victim):
    server = start_server("--cluster", CLUSTER, "--model", MODEL)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30)
    model = client.models.list().data[0].id
    assert len(server.workers) == 3

    def ask(number):
        """How a request ends; half of them stream."""
        stream = number % 2 == 0
        try:
            answer = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Tell me a tale."}], stream=stream, max_tokens=450,
                temperature=1, extra_body={"ignore_eos": True})
            for _ in answer if stream else []:
                pass
            return "whole"
        except openai.APIError as error:
            return str(error)

    with ThreadPoolExecutor(16) as pool:
        requests = [pool.submit(ask, number) for number in range(16)]
        time.sleep(random.Random(victim).uniform(0.2, 0.4))
        os.kill(server.workers[victim], signal.SIGKILL)
        ends = [request.result(timeout=30) for request in requests]
    assert all("box/" in text for text in ends), ends
    assert server.wait(timeout_s=30) == 5
    error, _, hint = server.log[-3:]
    assert error.startswith("error: box/") and "the machine may have run out of memory" in hint


def test_a_port_in_use(motley):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [motley, "serve", "--cluster", CLUSTER, "--model", MODEL, "--local", "--port", str(port)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 3
    assert f"127.0.0.1:{port}" in result.stderr and "--port" in result.stderr


@pytest.mark.parametrize("setting, words, hint", [
    ("MOTLEY_KERNELS", "MOTLEY_KERNELS names nonsense, which is not a set of kernels", "choose from: portable"),
    ("MOTLEY_ACTIVATIONS", "MOTLEY_ACTIVATIONS is nonsense", "choose int8 or fp32"),
])
def test_a_wrong_setting_of_the_kernels(motley, setting, words, hint):
    command = [motley, "serve", "--cluster", CLUSTER, "--model", MODEL, "--local", "--port", "0", "-q"]
    result = subprocess.run(command, env={**os.environ, setting: "nonsense"}, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.count("error:") == 1 and f": {words}" in result.stderr and hint in result.stderr


def test_interrupt_while_starting(motley):
    """Ctrl-C during the start ends everything at once."""
    command = [motley, "serve", "--cluster", CLUSTER, "--model", MODEL, "--local", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "text" in line:  # the tokenizer is open, the workers come next
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    process.stderr.close()
