"""Chats of a model that thinks, by OpenAI's own client. The model is the one of the tales: a template opens its thinking,
and one of its tokens, made likely enough, ends it."""

import json
import shutil
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "server" / "cluster.toml"
END = 5  # the token of padding, of which the model knows nothing
CHAT = {"messages": [{"role": "user", "content": "Tell me a tale."}], "max_tokens": 40, "temperature": 1, "logit_bias": {str(END): 12}}
OPENING = """{% if reasoning_effort == 'high' %}Think long and well. {% endif %}
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tales"
    shutil.copytree(ROOT / "data" / "models" / "tales", folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary, token = tokenizer["model"]["vocab"], tokenizer["added_tokens"][END]
    vocabulary["</think>"] = vocabulary.pop(token["content"])
    token |= {"content": "</think>", "special": False}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["pad_token"]
    config["chat_template"] += OPENING
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def client_of(start_server, model):
    def start(*options):
        server = start_server("--cluster", CLUSTER, "--model", model, *options)
        return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)

    return start


@pytest.fixture(scope="module")
def client(client_of):
    return client_of()


def chat(client, extra_body={}, **parameters):
    return client.chat.completions.create(model="tales", **CHAT, **parameters, extra_body={"min_tokens": 40, **extra_body})


@pytest.fixture(scope="module")
def seed(client):
    """One with which the model ends its thinking in the middle."""
    for first in range(0, 64, 8):
        for choice in chat(client, seed=first, n=8).choices:
            if getattr(choice.message, "reasoning_content", None) and choice.message.content.replace("</think>", "").strip():
                return first + choice.index
    pytest.fail("no seed ends the thinking")


def test_whole_and_streamed_are_split_alike(client, seed):
    whole = chat(client, seed=seed)
    message, usage = whole.choices[0].message, whole.usage
    assert message.reasoning_content and message.content
    assert "think>" not in message.reasoning_content
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    reasoning, content = "", ""
    for chunk in chat(client, seed=seed, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
    assert (reasoning, content) == (message.reasoning_content, message.content)
    assert chunk.usage == usage


def test_templates_take_what_requests_say(client, seed):
    closed = chat(client, seed=seed, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert not hasattr(closed.choices[0].message, "reasoning_content")
    assert closed.usage.completion_tokens_details.reasoning_tokens == 0
    plain, high = chat(client, seed=seed), chat(client, seed=seed, reasoning_effort="high")
    assert high.usage.prompt_tokens > plain.usage.prompt_tokens > closed.usage.prompt_tokens
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, seed=seed, extra_body={"chat_template_kwargs": {"enable_thinking": "no"}})
    assert error.value.param == "chat_template_kwargs.enable_thinking"


def test_thinking_may_stay_in_the_content(client, client_of, seed):
    split = chat(client, seed=seed).choices[0].message
    whole = chat(client_of("--reasoning", "none"), seed=seed).choices[0].message
    assert not hasattr(whole, "reasoning_content")
    assert whole.content.lstrip().startswith(split.reasoning_content)
    assert whole.content.endswith(split.content) and "</think>" in whole.content
