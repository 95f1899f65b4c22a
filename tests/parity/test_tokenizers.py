"""Tokenizers of GGUF files give the tokens that the families' own give, over small vocabularies: by the classes of
`transformers` where they spell out how a text is cut, otherwise by the rule of the published tokenizer.json."""

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.models.gemma.tokenization_gemma import GemmaTokenizer
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reference"))
import gguf_text_goldens as files  # noqa: E402
from text_goldens import CORPUS  # noqa: E402

GLM = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
       r"|\s+(?!\S)|\s+")
UPPER, LOWER, ENDINGS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def by_bytes(pattern):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


RULES = {
    "qwen2": lambda: Qwen2Tokenizer().backend_tokenizer,
    "qwen35": lambda: Qwen3_5Tokenizer().backend_tokenizer,
    "glm4": lambda: by_bytes(GLM),
    "gpt-4o": lambda: by_bytes(O200K),
    "minimax-m2": lambda: by_bytes(O200K),
}


def texts():
    """As they are after NFC, which Qwen's tokenizers do before and files say nothing of."""
    return {unicodedata.normalize("NFC", text) for text in files.texts()}


@pytest.mark.parametrize("pre", RULES)
def test_byte_pairs_are_cut_as_by_the_family(pre, tmp_path, monkeypatch):
    tokenizer = RULES[pre]()
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<|endoftext|>", "<|user|>"])
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    monkeypatch.setattr(files, "OUT", tmp_path)
    files.byte_pairs("model", tmp_path, pre)
    own = files.own_codec(tmp_path / "model.gguf")
    for text in texts():
        assert own.encode(text, False) == tokenizer.encode(text, add_special_tokens=False).ids, text
    cuts = {piece for text in texts() for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)}
    assert len(cuts) > 500


SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
NAMED = {"<bos>": "add_bos_token_id", "<eos>": "add_eos_token_id", "<unk>": "add_unk_token_id", "<pad>": "add_pad_token_id"}


def trained_pieces(corpus, special, pre_tokenizer=None):
    """Vocabulary and merges of pieces with a sign for the space."""
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trained.normalizer = normalizers.Replace(" ", "▁")
    if pre_tokenizer:
        trained.pre_tokenizer = pre_tokenizer
    trained.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=640, show_progress=False, limit_alphabet=120,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))]))
    return json.loads(trained.to_str())["model"]


def test_pieces_of_gemma(tmp_path, monkeypatch):
    """No space in front, bytes for what the vocabulary lacks."""
    model = trained_pieces(CORPUS[:5], SPECIAL)
    tokenizer = GemmaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    kinds = {"<unk>": files.UNKNOWN, **{token: files.CONTROL for token in SPECIAL if token != "<unk>"}}
    ordered = sorted(model["vocab"], key=model["vocab"].get)
    types = [kinds.get(token, files.BYTE if token.startswith("<0x") else files.NORMAL) for token in ordered]
    monkeypatch.setattr(files, "OUT", tmp_path)
    out = files.writer("gemma", "llama")
    out.add_tokenizer_pre("default")
    out.add_token_list(ordered)
    out.add_token_scores([-float(place) for place in range(len(ordered))])
    out.add_token_types(types)
    for name, add in NAMED.items():
        getattr(out, add)(model["vocab"][name])
    out.add_add_space_prefix(False)
    files.close(out)
    own = files.own_codec(tmp_path / "gemma.gguf")
    for text in files.texts():
        assert own.encode(text, False) == tokenizer.encode(text, add_special_tokens=False), text
    assert own.encode("a", True)[0] == model["vocab"]["<bos>"]
    assert own.decode(own.encode(" a  b", False), True) == " a  b"


VISIBLE = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>']
HIDDEN = ["<|turn>", "<turn|>", "<|think|>"]


CHAT = '<|turn>model\n<|channel>thought\n Two  words.\n\n<channel|><|tool_call>call:f{a:<|"|>b<|"|>}<tool_call|><turn|>\n'


def tokenizer_of_gemma_4():
    """The folder's tokenizer, of a small vocabulary, and its merges. None joins a line break with another character, as in the released
    one."""
    lines = ["\n" * count + "a" for count in range(1, 8)]
    model = trained_pieces([*CORPUS[:5], *lines * 4], [*SPECIAL, *HIDDEN, *VISIBLE],
                           pre_tokenizers.Split(Regex("\n+"), "isolated"))
    merges = [tuple(pair) for pair in model["merges"]]
    return GemmaTokenizer(vocab=model["vocab"], merges=merges, extra_special_tokens=[*HIDDEN, *VISIBLE]), merges


def pieces_of_gemma_4(path, says_bos=True):
    """A file as llama.cpp's converter writes it, and the tokenizer of the folder."""
    tokenizer, merges = tokenizer_of_gemma_4()
    vocabulary = tokenizer.get_vocab()
    ordered = sorted(vocabulary, key=vocabulary.get)
    kinds = dict.fromkeys([*SPECIAL, *HIDDEN], files.CONTROL) | dict.fromkeys(VISIBLE, files.USER_DEFINED)
    out = files.writer(path.stem, "gemma4")
    out.add_token_list(ordered)
    out.add_token_scores([-1000.0] * len(ordered))
    out.add_token_types([kinds.get(token, files.BYTE if token.startswith("<0x") else files.NORMAL) for token in ordered])
    out.add_token_merges([" ".join(pair) for pair in merges])
    for name, add in NAMED.items():
        getattr(out, add)(vocabulary[name])
    out.add_add_space_prefix(False)
    out.add_add_bos_token(says_bos)
    files.close(out)
    return files.own_codec(path), tokenizer


def texts_of_gemma_4():
    long = ["\n".join(files.texts()[start::12]) for start in range(12)]
    return [*files.texts(), *long, CHAT, "\n", " \n \n\n  a", "a" + "\n" * 40 + "b"]


def test_pieces_of_gemma_4(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "OUT", tmp_path)
    own, tokenizer = pieces_of_gemma_4(tmp_path / "gemma-4.gguf")
    assert any("\n\n" in token for token in tokenizer.get_vocab()), "line breaks are merged"
    for text in texts_of_gemma_4():
        tokens = own.encode(text, False)
        assert tokens == tokenizer.encode(text, add_special_tokens=False), text
        if "▁" not in text:
            assert own.decode(tokens, False) == text


def test_marks_of_gemma_4_are_read_and_its_turns_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "OUT", tmp_path)
    own, tokenizer = pieces_of_gemma_4(tmp_path / "gemma-4.gguf")
    kept = [token for token in VISIBLE if token != "<|tool_response>"]  # which ends an answer
    assert own.decode(own.encode("".join([*HIDDEN, *VISIBLE, *SPECIAL]), False), True) == "".join(kept)
    for token in [*HIDDEN, *VISIBLE, *SPECIAL]:
        assert len(own.encode(token, False)) == 1 and own.token_bytes(own.encode(token, False)[0]).decode() == token


@pytest.mark.parametrize("says", [True, False])
def test_texts_of_gemma_4_begin_with_bos(says, tmp_path, monkeypatch):
    """As for llama.cpp: early files say that they do not."""
    monkeypatch.setattr(files, "OUT", tmp_path)
    own, tokenizer = pieces_of_gemma_4(tmp_path / "gemma-4.gguf", says)
    assert own.encode("a", True) == [tokenizer.bos_token_id, *own.encode("a", False)]


SMALL = {"model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "head_dim": 32, "global_head_dim": 32, "intermediate_size": 64, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}


def test_files_of_gemma_4_cut_as_their_folders(motley, tmp_path):
    """`motley model quantize` writes what it reads."""
    tokenizer, _ = tokenizer_of_gemma_4()
    tokenizer.save_pretrained(tmp_path / "folder")
    (tmp_path / "folder" / "config.json").write_text(json.dumps(SMALL | {"vocab_size": len(tokenizer)}))
    for arguments in (["init", "folder", "-o", "model"], ["quantize", "model", "--type", "q8_0", "-o", "model.gguf"]):
        subprocess.run([motley, "model", *arguments, "-q"], cwd=tmp_path, check=True)
    own = files.own_codec(tmp_path / "model.gguf")
    for text in texts_of_gemma_4():
        assert own.encode(text, False) == tokenizer.encode(text, add_special_tokens=False), text
    assert own.decode(own.encode(CHAT, False), True) == CHAT.replace("<|turn>", "").replace("<turn|>", "")
    assert own.encode("a", True)[0] == tokenizer.bos_token_id
