"""Checkpoints are exchanged with Hugging Face in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertForMaskedLM, GPT2Config, LlamaConfig

import leafwise as lw

CONFIGS: dict[str, Any] = {
    "GPT-2, tied": GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=32, bos_token_id=0),
    "Llama, not tied": LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    ),
    "Llama, tied": LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=64,
        tie_word_embeddings=True,
    ),
}  # fmt: skip


def outputs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.tensor([[1, 5, 9, 2]])).logits
    return found


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_save_pretrained_writes_loads_here(name: str, sharded: bool, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    model.save_pretrained(tmp_path, max_shard_size="20KB" if sharded else "5GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    other = lw.load(AutoModelForCausalLM.from_config(CONFIGS[name]), tmp_path)
    assert torch.equal(outputs(other), outputs(model))
    with torch.device("meta"):
        target = AutoModelForCausalLM.from_config(CONFIGS[name])
    assert torch.equal(outputs(lw.load(target, tmp_path)), outputs(model))


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_saved_here_loads_with_from_pretrained(name: str, sharded: bool, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    CONFIGS[name].save_pretrained(tmp_path)
    lw.save(model, tmp_path, shard_size="20KB" if sharded else None)
    other, told = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert torch.equal(outputs(other), outputs(model))
    assert AutoConfig.from_pretrained(tmp_path).model_type == CONFIGS[name].model_type


def test_the_base_of_a_model_takes_its_part(tmp_path: Path) -> None:
    from transformers import AutoModel

    whole = AutoModelForCausalLM.from_config(CONFIGS["Llama, not tied"])
    path = lw.save(whole, tmp_path / "a.safetensors")
    base = AutoModel.from_config(CONFIGS["Llama, not tied"])
    plan = lw.plan(base, path)
    assert plan.unexpected == ["lm_head.weight"]
    assert plan.prefixes[0].source == "model."
    lw.load(base, path, allow={"unexpected"})
    assert torch.equal(base.embed_tokens.weight, whole.model.embed_tokens.weight)
    again = lw.load(whole, base, allow={"missing"})
    assert torch.equal(again.model.norm.weight, base.norm.weight)


def test_a_masked_language_model_is_exchanged_both_ways(tmp_path: Path) -> None:
    config = BertConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)
    model = BertForMaskedLM(config)
    model.save_pretrained(tmp_path / "theirs")
    config.save_pretrained(tmp_path / "ours")
    lw.save(model, tmp_path / "ours")
    assert torch.equal(outputs(lw.load(BertForMaskedLM(config), tmp_path / "theirs")), outputs(model))
    assert torch.equal(outputs(BertForMaskedLM.from_pretrained(tmp_path / "ours")), outputs(model))
