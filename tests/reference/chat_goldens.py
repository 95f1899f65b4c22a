"""Records what `transformers` makes of chats with templates in the style of each family.

    .venv-reference/bin/python tests/reference/chat_goldens.py

Reads tests/data/text/templates/*.jinja and writes chats.json next to them.
"""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast

TEXT = Path(__file__).resolve().parents[1] / "data" / "text"

CHATS = {
    "one turn": [{"role": "user", "content": " Hello there \n"}],
    "system": [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Why? 今天 🙂"}],
    "developer": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
    "earlier thinking": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two.", "reasoning_content": "It is\none more.\n"},
        {"role": "user", "content": "Three?/nothink"},
    ],
    "last thinking": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "\nTwo.", "reasoning": "One more."},
    ],
    "thinking in the content": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "<think>\nOne more.\n</think>\n\nTwo."},
    ],
    "a channel in the content": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "<|channel|>analysis<|message|>One more.<|end|>"},
        {"role": "user", "content": "What?"},
    ],
    "a thought in the content": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "<|channel>thought\nOne more.\n<channel|>Two."},
        {"role": "user", "content": "What?"},
    ],
    "two users": [{"role": "user", "content": "One?"}, {"role": "user", "content": "Two?"}],
}

ARGUMENTS = [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"reasoning_effort": "high"}]


def main():
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TEXT / "metaspace")
    rows = []
    for path in sorted((TEXT / "templates").glob("*.jinja")):
        for name, chat in CHATS.items():
            for arguments in ARGUMENTS:
                for prompt in (False, True):
                    row = {"template": path.stem, "chat": name, "arguments": arguments, "add_generation_prompt": prompt}
                    try:
                        row["text"] = tokenizer.apply_chat_template(
                            chat, chat_template=path.read_text(), add_generation_prompt=prompt, tokenize=False, **arguments)
                    except Exception as error:
                        row["error"] = str(error)
                    rows.append(row)
    (TEXT / "templates" / "chats.json").write_text(json.dumps({"chats": CHATS, "rows": rows}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
