"""A chat template that refuses, fails, or takes too long holds up no other client, and not the server's end."""

import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from processes import children

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "server" / "cluster.toml"
TEMPLATE = """{% set words = messages[0].content %}
{% if words == 'refuse' %}{{ raise_exception('not that') }}{% endif %}
{% if words == 'divide' %}{{ 1 / (messages | length - 1) }}{% endif %}
{% if words == 'compare' %}{% set long = words * 5000000 %}{{ long ~ 'y' in [long ~ 'n'] * 9999 }}{% endif %}
{{ words }}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tales"
    shutil.copytree(ROOT / "data" / "models" / "tales", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def server(start_server, model):
    return start_server("--cluster", CLUSTER, "--model", model)


def chat(server, words):
    """The status, and the error's message; each on a connection of its own."""
    body = {"messages": [{"role": "user", "content": words}], "max_tokens": 4}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, None
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def test_refusals_and_faults_leave_everything_as_it_was(server):
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda words: chat(server, words), ["refuse", "divide", "refuse", "Once"] * 10))
    for refused, divided, again, good in zip(*[iter(answers)] * 4, strict=True):
        assert refused[0] == 400 and refused[1].startswith("the chat template refuses the messages: not that")
        assert divided[0] == 400 and divided[1].startswith("the chat template fails: ZeroDivisionError: division by zero")
        assert again == refused and good == (200, None)

    # One operation in C, which ends after its 2 s; a stream meanwhile goes on.
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    stream = iter(client.completions.create(model="tales", prompt="Once", max_tokens=400, stream=True, extra_body={"ignore_eos": True}))
    next(stream)
    slow = []
    thread = threading.Thread(target=lambda: slow.append(chat(server, "compare")))
    thread.start()
    meanwhile = sum(thread.is_alive() for _ in stream)
    thread.join()
    assert slow[0][0] == 400 and "the chat template took longer than 2 s" in slow[0][1]
    assert meanwhile > 20
    assert chat(server, "Once") == (200, None)
    assert server.stop(signal.SIGINT) == 0


def test_a_thread_that_hangs_does_not_keep_the_server(server):
    assert chat(server, "Once") == (200, None) and server.helpers
    stopped = {process for helper in server.helpers for process in (helper, *children(helper))}
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(chat, server, "Once")
        try:
            time.sleep(1)  # until the server has it
            os.kill(server.process.pid, signal.SIGINT)
            assert server.process.wait(60) == 130
        finally:
            for process in stopped:
                os.kill(process, signal.SIGCONT)
        with pytest.raises(OSError):
            hanging.result(timeout=60)
    assert server.wait() == 130
    assert "before every thread had come to its end" in server.text()
