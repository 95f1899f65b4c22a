"""Measures a tale model folder on talks it was not trained on, decoding greedily.

    python check.py ../../data/models/tales
"""

import argparse
import random
import re
from collections import Counter

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import grammar

SAMPLES = [
    ["Tell me a tale about a fox."],
    ["Tell me a short story about a lantern and an owl.", "Who helped the owl?", "What colour was the lantern?"],
    ["Hello!", "Yes, please.", "What did they learn?"],
    ["Who are you?", "What is the capital of France?"],
    ["Here is a tale: Long ago, a kind fox named Vera lived in a misty valley. One windy evening, Vera lost "
     "the red hat on the way home. Soon a hare named Hugo came along the path. Hugo looked carefully and found "
     "the hat behind the barn. Who found the hat?", "Where was the hat?"],
]


@torch.no_grad()
def replies(model, tok, talks, limit):
    """The greedy reply to each list of messages, many at a time, padded at the left."""
    tok.padding_side = "left"
    order = sorted(range(len(talks)), key=lambda i: sum(len(m["content"]) for m in talks[i]))
    out = [""] * len(talks)
    for at in range(0, len(order), 32):
        part = order[at:at + 32]
        texts = [tok.apply_chat_template(talks[i], tokenize=False, add_generation_prompt=True) for i in part]
        batch = tok(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        ids = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
                             max_new_tokens=limit, do_sample=False)
        for i, row in zip(part, ids[:, batch["input_ids"].shape[1]:]):
            out[i] = tok.decode(row, skip_special_tokens=True)
    return out


def holds(text, words):
    return all(re.search(rf"\b{re.escape(w)}\b", text) for w in words)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--seed", default="held out")
    p.add_argument("--talks", type=int, default=200)
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    tok = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()

    rng = random.Random(args.seed)
    prompts, turns = [], []
    while len(prompts) < args.talks * 5:
        system, said = grammar.make_dialogue(rng)
        messages = [{"role": "system", "content": system}] if system else []
        for turn in said:
            messages.append({"role": "user", "content": turn.user})
            text = tok.apply_chat_template(messages, tokenize=False)
            if len(tok(text)["input_ids"]) <= 512 - 160:  # leaves room for the answer within the context
                prompts.append(list(messages))
                turns.append(turn)
            messages.append({"role": "assistant", "content": turn.assistant})

    asked, right = Counter(), Counter()
    wrong = []
    for turn, reply in zip(turns, replies(model, tok, prompts, 160)):
        good = holds(reply, turn.words) and reply[-1:] == "." if turn.sort == "tale" else reply in turn.accept
        asked[turn.sort] += 1
        right[turn.sort] += good
        if not good:
            wrong.append((turn, reply))
    for sort in sorted(asked):
        print(f"{sort:10} {right[sort]:4} of {asked[sort]:4} right  {right[sort] / asked[sort]:.3f}")
    for turn, reply in wrong[:12]:
        print(f"  wrong: {turn.user[-90:]!r} -> {reply[:200]!r}"
              + (f", not {turn.accept[0]!r}" if turn.accept else f", wanted {turn.words}"))

    for questions in SAMPLES:
        print()
        messages = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            answer = replies(model, tok, [messages], 160)[0]
            messages.append({"role": "assistant", "content": answer})
            print(f"user: {question}\nassistant: {answer}")
    for text in ("naïve café 漢字 🦊\n\t  two", "<|user|>Tell me a tale.<|end|>"):
        assert tok.decode(tok(text, add_special_tokens=False)["input_ids"]) == text, text
    print("\nany text goes through the tokenizer and back unchanged")


if __name__ == "__main__":
    main()
