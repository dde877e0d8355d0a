"""Checkpoints are exchanged with Hugging Face in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.lazy import Lazy

import leafwise as lw

transformers = Lazy("transformers")
LLAMA = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2, tied": (
        "GPT2Config",
        {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 64, "n_positions": 32, "bos_token_id": 0},
    ),
    "Llama, not tied": ("LlamaConfig", LLAMA),
    "Llama, tied": ("LlamaConfig", LLAMA | {"tie_word_embeddings": True}),
}


def config_of(name: str) -> Any:
    class_name, options = CONFIGS[name]
    return getattr(transformers, class_name)(**options)


def built(name: str) -> Any:
    return transformers.AutoModelForCausalLM.from_config(config_of(name))


def outputs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.tensor([[1, 5, 9, 2]])).logits
    return found


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_save_pretrained_writes_loads_here(name: str, sharded: bool, tmp_path: Path) -> None:
    model = built(name)
    model.save_pretrained(tmp_path, max_shard_size="20KB" if sharded else "5GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    other = lw.load(built(name), tmp_path)
    assert torch.equal(outputs(other), outputs(model))
    with torch.device("meta"):
        target = built(name)
    assert torch.equal(outputs(lw.load(target, tmp_path)), outputs(model))


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_saved_here_loads_with_from_pretrained(name: str, sharded: bool, tmp_path: Path) -> None:
    model = built(name)
    config_of(name).save_pretrained(tmp_path)
    lw.save(model, tmp_path, shard_size="20KB" if sharded else None)
    other, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert torch.equal(outputs(other), outputs(model))
    assert transformers.AutoConfig.from_pretrained(tmp_path).model_type == config_of(name).model_type


def test_the_base_of_a_model_takes_its_part(tmp_path: Path) -> None:
    whole = built("Llama, not tied")
    path = lw.save(whole, tmp_path / "a.safetensors")
    base = transformers.AutoModel.from_config(config_of("Llama, not tied"))
    plan = lw.plan(base, path)
    assert plan.unexpected == ["lm_head.weight"]
    assert plan.prefixes[0].source == "model."
    lw.load(base, path, allow={"unexpected"})
    assert torch.equal(base.embed_tokens.weight, whole.model.embed_tokens.weight)
    again = lw.load(whole, base, allow={"missing"})
    assert torch.equal(again.model.norm.weight, base.norm.weight)


def test_a_masked_language_model_is_exchanged_both_ways(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    model = transformers.BertForMaskedLM(config)
    model.save_pretrained(tmp_path / "theirs")
    config.save_pretrained(tmp_path / "ours")
    lw.save(model, tmp_path / "ours")
    assert torch.equal(outputs(lw.load(transformers.BertForMaskedLM(config), tmp_path / "theirs")), outputs(model))
    assert torch.equal(outputs(transformers.BertForMaskedLM.from_pretrained(tmp_path / "ours")), outputs(model))
