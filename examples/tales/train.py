"""Trains the tale model: tokenizer, weights and a Hugging Face folder, from seeded text.

    python train.py --out ../../data/models/tales --state /tmp/tales

The state folder holds the checkpoint; the same command run again goes on from it.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

import grammar

SPECIAL = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>"]
BEGIN, END, SYSTEM, USER, ASSISTANT, PAD = range(6)
VOCAB, CONTEXT = 2048, 512
CHUNK = 256            # dialogues made at once, then sorted into batches of like length
ASIDE = 0.1            # loss weight of what the model only reads; its answers weigh 1

# (first chunk, questions per tale, tokens per batch, loss weight of a told tale).  Telling comes
# first.  Once tales are fluent, what is left of their loss is mostly the choice between equally
# good words, which teaches nothing, so the weight moves to the answers, and there are more of them.
PHASES = [(0, (3, 6), 4096, 1.0), (67, (6, 12), 2048, 0.3), (69, (6, 12), 1024, 0.2)]

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' }}"
    "{% elif message['role'] == 'system' %}{{ '<|system|>' }}"
    "{% else %}{{ '<|user|>' }}{% endif %}"
    "{{ message['content'] | trim }}{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# Plain keys, so that readers of older and newer config files both find what they look for.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB,
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 24, "hidden_act": "silu", "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "attention_bias": False,
    "mlp_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True,
    "bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD, "torch_dtype": "bfloat16",
}


def train_tokenizer(seed):
    """Byte-level BPE: the 256 bytes are all entries, so any text can be written and read back."""
    rng = random.Random(f"{seed} tokenizer")

    def lines():
        for words in grammar.FILL.values():  # rare words, of which the dialogues may miss some
            yield " " + " ".join(words)
        for _ in range(6000):
            system, turns = grammar.make_dialogue(rng)
            if system:
                yield system
            for turn in turns:
                yield turn.user
                yield turn.assistant

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False, min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    assert tok.get_vocab_size() == VOCAB, tok.get_vocab_size()
    return tok


def encode(tok, system, turns, tale_weight=1.0):
    """Token ids of a dialogue as the chat template writes it, and the loss weight of each."""
    ids, weights = [BEGIN], [0.0]

    def say(role, text, weight):
        body = tok.encode(text).ids
        ids.extend([role, *body, END])
        # The role mark is never the model's to say; the end mark of its own turn is.
        weights.extend([0.0] + [weight] * len(body) + [weight if role == ASSISTANT else 0.0])

    if system:
        say(SYSTEM, system, ASIDE)
    for turn in turns:
        say(USER, turn.user, ASIDE)
        say(ASSISTANT, turn.assistant, tale_weight if turn.sort == "tale" else 1.0)
    return ids[:CONTEXT], weights[:CONTEXT]


def chunk(tok, seed, index):
    """The batches of one chunk; the index alone decides its text, so training can resume at it."""
    _, questions, batch_tokens, tale_weight = [p for p in PHASES if p[0] <= index][-1]
    rng = random.Random(f"{seed} chunk {index}")
    rows = []
    for _ in range(CHUNK):
        if rng.random() < 0.03:  # a bare tale, to be continued without any chat
            body = tok.encode(grammar.make_tale(rng).text).ids
            rows.append(([BEGIN, *body, END], [0.0] + [tale_weight] * (len(body) + 1)))
        else:
            rows.append(encode(tok, *grammar.make_dialogue(rng, questions), tale_weight))
    rows.sort(key=lambda row: len(row[0]))
    batches, batch = [], []
    for row in rows:
        if batch and len(row[0]) * (len(batch) + 1) > batch_tokens:
            batches.append(batch)
            batch = []
        batch.append(row)
    batches.append(batch)
    rng.shuffle(batches)
    return [pad(b) for b in batches]


def pad(rows):
    """Padding stands at the right, where causal attention never looks from a real token."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([r + [PAD] * (width - len(r)) for r, _ in rows])
    weights = torch.tensor([w + [0.0] * (width - len(w)) for _, w in rows])
    return ids, weights


def token_losses(model, ids):
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    return logits, F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")


@torch.no_grad()
def held_out(model, tok, seed):
    """Loss of the assistant's tokens, and the share of answers about a tale that greedy decoding
    gives word for word (each answer token is the likeliest one, given the right ones before it)."""
    rng = random.Random(f"{seed} watch")
    rows = [encode(tok, *grammar.make_dialogue(rng)) for _ in range(96)]
    rng = random.Random(f"{seed} watch")
    talks = [grammar.make_dialogue(rng)[1] for _ in range(96)]
    total = count = right = asked = 0
    for (ids, weights), turns in zip(rows, talks):
        x = torch.tensor([ids])
        logits, losses = token_losses(model, x)
        spoken = torch.tensor(weights[1:]) == 1.0
        total += losses[spoken].sum().item()
        count += spoken.sum().item()
        hit = logits[0].argmax(-1) == x[0, 1:]
        starts = [i for i, t in enumerate(ids) if t == ASSISTANT]
        for start, turn in zip(starts, turns):
            if turn.sort != "fact" or END not in ids[start:]:
                continue
            end = ids.index(END, start)
            asked += 1
            right += bool(hit[start:end].all())
    return total / count, right / asked


def export(model, tok, out):
    out.mkdir(parents=True, exist_ok=True)
    state = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()
             if k != "lm_head.weight"}  # tied to the embedding
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    tok.save(str(out / "tokenizer.json"))

    def write(name, value):
        (out / name).write_text(json.dumps(value, indent=2) + "\n")

    write("config.json", CONFIG)
    write("generation_config.json", {
        "bos_token_id": BEGIN, "eos_token_id": [END], "pad_token_id": PAD, "do_sample": False})
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[BEGIN], "eos_token": SPECIAL[END],
        "pad_token": SPECIAL[PAD], "additional_special_tokens": [SPECIAL[SYSTEM], SPECIAL[USER], SPECIAL[ASSISTANT]],
        "add_bos_token": False, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT, "chat_template": CHAT_TEMPLATE})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True, help="the model folder to write")
    p.add_argument("--state", type=Path, required=True, help="the folder of the checkpoint")
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--chunks", type=int, default=200, help=f"length of the training, in chunks of {CHUNK} dialogues")
    p.add_argument("--minutes", type=float, default=1e9, help="shorten the schedule to end after so long")
    p.add_argument("--save-minutes", type=float, default=4)
    p.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.state.mkdir(parents=True, exist_ok=True)

    tok = train_tokenizer(args.seed)
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "torch_dtype"}))
    decay = [q for q in model.parameters() if q.dim() > 1]
    plain = [q for q in model.parameters() if q.dim() == 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
                            lr=args.rate, betas=(0.9, 0.98), fused=True)
    index = step = tokens = 0
    spent = 0.0
    checkpoint = args.state / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
        index, step, tokens, spent = (saved[k] for k in ("index", "step", "tokens", "spent"))
    print(f"{sum(q.numel() for q in model.parameters())} parameters, from chunk {index}", flush=True)

    start = saved_at = time.monotonic()
    began = spent
    while (progress := max(index / args.chunks, spent / (60 * args.minutes))) < 1:
        shown = 0.0
        batches = chunk(tok, args.seed, index)
        for ids, weights in batches:
            rate = args.rate * min(1, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
            for group in opt.param_groups:
                group["lr"] = rate
            w = weights[:, 1:].flatten()
            loss = (token_losses(model, ids)[1] * w).sum() / w.sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            step += 1
            tokens += int((ids != PAD).sum())
            shown += loss.item() / len(batches)
        index += 1
        now = time.monotonic()
        spent = began + now - start
        print(f"chunk {index} step {step} tokens {tokens} loss {shown:.4f} rate {rate:.1e} "
              f"tokens/s {tokens / spent:.0f}", flush=True)
        if now - saved_at > 60 * args.save_minutes:
            saved_at = now
            torch.save(dict(model=model.state_dict(), opt=opt.state_dict(), index=index, step=step,
                            tokens=tokens, spent=spent), checkpoint)
            export(model, tok, args.out)
            print("held out: loss %.4f, answers right %.3f" % held_out(model, tok, args.seed), flush=True)
    torch.save(dict(model=model.state_dict(), opt=opt.state_dict(), index=index, step=step,
                    tokens=tokens, spent=spent), checkpoint)
    export(model, tok, args.out)
    print("held out: loss %.4f, answers right %.3f" % held_out(model, tok, args.seed), flush=True)
    print(f"{tokens} tokens in {spent / 60:.1f} minutes, {tokens / spent:.0f} tokens/s")


if __name__ == "__main__":
    main()
