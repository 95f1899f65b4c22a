"""Requests to a deployment's API: tokens/s of several at once."""

import http.client
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

WARM_UP_TOKENS = 8


def complete(prompt_tokens, tokens, seed, port=8000):
    """A greedy answer of this many tokens to random ones; when it was asked for, and when each token came."""
    prompt = [random.Random(seed).randrange(3, 1000) for _ in range(prompt_tokens)]
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True}
    asked, arrivals = time.monotonic(), []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    for line in answer:
        if line.startswith(b"data: {"):
            came = sum(len(choice.get("token_ids", ())) for choice in json.loads(line[6:])["choices"])
            arrivals += [time.monotonic()] * came
    connection.close()
    if answer.status != 200 or len(arrivals) != tokens:
        raise RuntimeError(f"{answer.status}: {len(arrivals)} tokens of {tokens}")
    return asked, arrivals


def at_once(streams, prompt_tokens, tokens, port):
    """complete() of as many requests; some short ones go before."""
    with ThreadPoolExecutor(streams) as threads:
        list(threads.map(lambda seed: complete(prompt_tokens, WARM_UP_TOKENS, seed, port), range(streams)))
        return list(threads.map(lambda seed: complete(prompt_tokens, tokens, seed, port), range(streams, 2 * streams)))


def tokens_per_s(streams, prompt_tokens, tokens, port=8000):
    """From the first request to the last token of all."""
    answers = at_once(streams, prompt_tokens, tokens, port)
    return streams * tokens / (max(arrivals[-1] for _, arrivals in answers) - min(asked for asked, _ in answers))


def decoded_per_s(streams, prompt_tokens, tokens, port=8000):
    """While all of them decode."""
    answers = at_once(streams, prompt_tokens, tokens, port)
    begin, end = max(arrivals[0] for _, arrivals in answers), min(arrivals[-1] for _, arrivals in answers)
    return sum(begin < time <= end for _, arrivals in answers for time in arrivals) / (end - begin)
