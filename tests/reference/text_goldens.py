"""Builds three small tokenizers and records what `transformers` makes of texts and chats with them.

    .venv-reference/bin/python tests/reference/text_goldens.py

Writes tests/data/text/<tokenizer>/ (tokenizer.json, tokenizer_config.json) and tests/data/text/goldens.json.
"""

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

OUT = Path(__file__).resolve().parents[1] / "data" / "text"

CORPUS = [
    "The old miller walked along the river and counted his ducks: one, two, three, four!",
    "\"Where are you going?\" asked the fox. \"To the market,\" said the hen, \"with 12 eggs and 3.50 in silver.\"",
    "def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n\tprint(i, i * i)\n",
    "Das Mädchen aß süße Äpfel; l'été dernier, où êtes-vous allés? ¿Cuántos años tienes, señor?",
    "Быстрая лиса прыгает через ленивую собаку. Η γρήγορη αλεπού πηδάει.",
    "狐狸跳过了懒狗。今天天气很好，我们去公园吧。東京は日本の首都です。안녕하세요 세계",
    "مرحبا بالعالم، كيف حالك؟ שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "🙂 🚀 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ✨ naïve café résumé",
    "I'm sure they're right, we've seen it, he'll go, she'd know; it's 2024-01-31 at 10:45.",
]

TEXTS = [
    "", " ", "  ", "\n", "\n\n\n", "\t \t", "a", " a", "a ", "Hello", "Hello, world!", " Hello  world   !",
    "The miller walked along the river.", "I'm we've they'll she'd don't", "CamelCaseWords and snake_case_words",
    "line one\r\nline two\r\n\r\nline four", "\rlone\rreturns\r", "tabs\tand\u00a0no-break\u2003em\u200bzero",
    "    four spaces\n        eight spaces\n", "trailing   \n   leading",
    "0 1 12 123 1234 12345 3.14159 1e-5 0xDEADBEEF", "!?.,;:()[]{}<>@#$%^&*-_=+|\\/~`'\"",
    "café cafe\u0301 ÅA\u030aÅ", "n\u0303 o\u0308\u0323 z\u0327\u0300\u0301",
    "👩‍👩‍👧‍👦", "👍🏽👍🏿", "🇩🇪🇫🇷", "🙂🙂🙂 text 🚀", "1️⃣ ❤️ ❤",
    "狐狸跳过了懒狗。", "今天 天气 mixed 中文 and English", "東京は日本の首都です", "안녕하세요 세계", "한글",
    "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "Быстрая лиса", "Η γρήγορη αλεπού",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𒀀", "\u0000nul\u0001\u007f", "\ufeffbom", "\ufffd replacement \ufffd\ufffd", "\u202eright-to-left\u202c",
    "x" * 300, "ab" * 200, " " * 100, "é" * 50, "🙂" * 40, "a\n" * 40,
    "<|im_start|>user\nHi<|im_end|>", "<s>[INST] Hi [/INST] Yes </s>", "<s><s></s>", "before<|im_end|>after", "<|im_", "< s >",
    "<tool>spaced</tool> and <tool> again", "▁ visible space ▁▁", "Ġ Ċ ĉ byte letters", "<0x0A> <0xE2>",
    "https://example.org/a?b=c&d=%20#e", "{\"key\": [1, 2.5, null, true], \"s\": \"a\\nb\"}", "e\u0301" * 30,
]

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>' + '\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

INST = """{%- if messages[0]['role'] == 'system' -%}
    {%- set ns = namespace(system='<<SYS>>\n' ~ messages[0]['content'] ~ '\n<</SYS>>\n\n') -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set ns = namespace(system='') -%}
    {%- set turns = messages -%}
{%- endif -%}
{{- bos_token -}}
{%- for turn in turns -%}
    {%- if (turn['role'] == 'user') != (loop.index0 is even) -%}
        {{- raise_exception('user and assistant must take turns, starting with the user') -}}
    {%- endif -%}
    {%- if turn['role'] == 'user' -%}
        {{- ' [INST] ' ~ ns.system ~ turn['content'].strip() ~ ' [/INST]' -}}
        {%- set ns.system = '' -%}
    {%- else -%}
        {{- ' ' ~ turn['content'].strip() ~ eos_token -}}
    {%- endif -%}
{%- endfor -%}"""

HEADERS = """{%- macro header(role) -%}
<|header|>{{ role }}<|/header|>

{% endmacro -%}
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'skip' %}{% continue %}{% endif %}
    {%- if m.role == 'stop' %}{% break %}{% endif %}
    {{- header(m.role) }}
    {%- if m.content is string %}
        {{- m.content | trim }}
    {%- elif m.content is iterable %}
        {%- for part in m.content if part.type == 'text' %}{{ part.text }}{{ '' if loop.last else ' | ' }}{% endfor %}
    {%- endif %}
    {%- if m.tool_calls is defined %}
        {{- m.tool_calls | tojson(indent=2) }}
    {%- endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- header('assistant') }}
{%- endif %}
"""

FEATURES = """{% set roles = messages | map(attribute='role') | list %}
{{ roles | join(',') | upper }} {{ roles | length }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{% set last = (messages | last).content %}
{% if 'x' in last and not last.startswith(' ') %}has x{% elif tools %}tools{% else %}plain{% endif %}

{{ {'b': [1, 2.5, none, true], 'a': last, 'ü': '<&>'} | tojson }}
{{ last.split(' ')[0] if last else 'empty' }} {{ last[::-1][:5] }} {{ '%02d' % 7 }} {{ 7 // 2 }} {{ 2 ** 10 }} {{ 'ab' * 3 }}
    {%- for key, value in dict(one=1, two=2).items() %} {{ key }}={{ value }}{% endfor %}

{% generation %}{{ last | replace('\\n', ' / ') }}{% endgeneration %}

{{ undefined_name }}|{{ pad_token }}|{{ unk_token }}|{{ last is none }}|{{ range(3) | list }}"""

REFUSES = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system messages here') }}{% endif %}{% endfor %}ok"

TEMPLATES = {"chatml": CHATML, "inst": INST, "headers": HEADERS, "features": FEATURES, "refuses": REFUSES}

CHATS = {
    "one turn": [{"role": "user", "content": "Hello there, x"}],
    "system": [{"role": "system", "content": " You are brief. "}, {"role": "user", "content": "Why?\nTell me.  "}],
    "multi": [
        {"role": "user", "content": "Tell me a tale."},
        {"role": "assistant", "content": "Once upon a time 🙂."},
        {"role": "user", "content": "今天天气? \"quoted\" <b>&amp;</b>"},
    ],
    "assistant first": [{"role": "assistant", "content": "I begin"}, {"role": "user", "content": "No"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "tool calls": [
        {"role": "user", "content": "Weather in Ulm?"},
        {"role": "assistant", "content": None,
         "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}]},
    ],
    "loop controls": [
        {"role": "skip", "content": "unseen"}, {"role": "user", "content": "seen"},
        {"role": "stop", "content": "end"}, {"role": "user", "content": "unseen"},
    ],
    "empty content": [{"role": "user", "content": ""}],
}


def save(name, tokenizer, config):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def byte_level():
    """Like GPT-2, Llama 3 and Qwen: bytes, split by an expression with a look-ahead, NFC, digits in threes."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False, lstrip=True, rstrip=True)])
    save("byte_level", tokenizer, {"eos_token": "<|im_end|>", "pad_token": "<|end|>"})


def sentencepiece_like():
    """Like Llama 2 and Mistral: a metaspace by normalisation, bytes for what the vocabulary lacks, <s> in front."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=520, show_progress=False, limit_alphabet=90,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)],
    )
    tokenizer.train_from_iterator(CORPUS[:3], trainer)
    # The bytes were made special only to be in the vocabulary.
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    ])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    save("sentencepiece_like", tokenizer, {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"},
                                           "unk_token": "<unk>"})


def metaspace():
    """The newer form of the same: a metaspace pre-tokenizer; what tokenizer_config.json says about begin and end is not heard."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=520, show_progress=False, limit_alphabet=120,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)],
    )
    tokenizer.train_from_iterator([word for line in CORPUS[:5] for word in line.split(" ")], trainer)
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)])
    save("metaspace", tokenizer, {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": True,
        "chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": CHATML}],
    })


def record(name):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(OUT / name)
    texts = []
    for text in TEXTS:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        texts.append({
            "text": text,
            "tokens": tokens,
            "with_special": tokenizer.encode(text, add_special_tokens=True),
            "decoded": tokenizer.decode(tokens, skip_special_tokens=False),
            "decoded_plain": tokenizer.decode(tokens, skip_special_tokens=True),
        })
    # Arbitrary tokens, as an untrained model writes them: their bytes are often no text.
    chance = random.Random(7)
    random_tokens = []
    for length in [1, 2, 3, 5, 8, 13, 21, 34] * 4:
        tokens = [chance.randrange(tokenizer.vocab_size) for _ in range(length)]
        random_tokens.append({"tokens": tokens, "decoded": tokenizer.decode(tokens, skip_special_tokens=False)})
    chats = []
    for template_name, template in TEMPLATES.items():
        for chat_name, chat in CHATS.items():
            for prompt in (False, True):
                row = {"template": template_name, "chat": chat_name, "add_generation_prompt": prompt}
                try:
                    row["text"] = tokenizer.apply_chat_template(
                        chat, chat_template=template, add_generation_prompt=prompt, tokenize=False)
                except Exception as error:
                    row["error"] = str(error)
                chats.append(row)
    own = None
    if tokenizer.chat_template:
        own = tokenizer.apply_chat_template(CHATS["multi"], add_generation_prompt=True, tokenize=False)
    return {"texts": texts, "random": random_tokens, "chats": chats, "own_template": own}


def main():
    byte_level()
    sentencepiece_like()
    metaspace()
    goldens = {
        "templates": TEMPLATES,
        "chats": CHATS,
        "tokenizers": {name: record(name) for name in ("byte_level", "sentencepiece_like", "metaspace")},
    }
    (OUT / "goldens.json").write_text(json.dumps(goldens, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
