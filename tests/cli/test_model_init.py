"""`motley model init`: folders with random weights."""

import json
import math

import pytest
import torch
import transformers

TALES = "data/models/tales"


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("config", ["data/models/tales", "opt", "qwen3"])
def test_transformers_reads_it_and_would_have_drawn_alike(run_to, tmp_path, config):
    small = {"num_hidden_layers": 2, "hidden_size": 128, "vocab_size": 500, "num_attention_heads": 4}
    if config != TALES:
        made = transformers.AutoConfig.for_model(
            config, **small, **({"ffn_dim": 256, "word_embed_proj_dim": 128} if config == "opt" else
                                {"num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256, "pad_token_id": 3}))
        made.save_pretrained(tmp_path / "config")
        config = tmp_path / "config" / "config.json"
    run_to("model", "init", config, "-o", tmp_path / "model", "--seed", 5, "--type", "fp32", "-q")
    ours = load(tmp_path / "model")
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(ours.config)
    theirs = dict(theirs.float().named_parameters())
    assert dict(ours.named_parameters()).keys() == theirs.keys()
    for name, values in ours.named_parameters():
        other = theirs[name]
        assert values.shape == other.shape
        tolerance = 5 / math.sqrt(values.numel())
        assert values.std().item() == pytest.approx(other.std().item(), rel=tolerance, abs=1e-9), name
        assert values.mean().item() == pytest.approx(other.mean().item(), abs=5e-2 * tolerance + 1e-9), name
        if values.dim() == 2:  # the same rows are zero
            assert torch.equal(values.abs().sum(1) == 0, other.abs().sum(1) == 0), name


def test_the_folder_is_a_model_with_its_tokenizer(run_to, tmp_path):
    told = run_to("model", "init", TALES, "-o", f"{tmp_path}/model/", "--seed", 1).stdout
    assert "random weights in bf16" in told
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    shown = [json.loads(run_to("model", "show", model, "--json").stdout) for model in (TALES, tmp_path / "model")]
    assert [model.pop("name") for model in shown] == ["tales", "model"]
    assert shown[0] == shown[1]
    assert {tensor.dtype for tensor in transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").parameters()} == {torch.bfloat16}


def test_nothing_is_written_over(run_to, tmp_path):
    error = run_to("model", "init", TALES, "-o", tmp_path, code=2).stderr
    assert "exists already" in error and "hint" in error
    assert not list(tmp_path.iterdir())


def test_only_types_that_are_trained(run_to, tmp_path):
    error = run_to("model", "init", TALES, "--type", "q8_0", "-o", tmp_path / "model", code=2).stderr
    assert "--type must be a type that is trained" in error and "fp32, bf16 or fp16" in error
