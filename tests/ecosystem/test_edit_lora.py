"""Adapters that PEFT trained and saved, merged into checkpoints, compared with PEFT's own merge."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.lazy import Lazy

import leafwise as lw

peft, transformers = Lazy("peft"), Lazy("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # PEFT's advice


def llama(tied: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        tie_word_embeddings=tied,
    )
    return transformers.LlamaForCausalLM(config).to(dtype)


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def merged_by_both(tmp_path: Path, model: Any, untie: Any = None, **options: Any) -> None:
    """Trains nothing, but gives every parameter of the adapter random values; then merges it in both ways."""
    model.save_pretrained(tmp_path / "base")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**options))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape) * 0.3)
    wrapped.save_pretrained(tmp_path / "adapter")
    out = tmp_path / "out.safetensors"
    result = lw.edit(tmp_path / "base", out, lora=tmp_path / "adapter", untie=untie)
    assert result.steps
    expected = wrapped.merge_and_unload().state_dict()
    with lw.open(out) as t:
        names = {str(path) for path, _ in t.items()}
        for name in names:
            ours = torch.from_numpy(t[name].numpy().copy().astype("float32"))
            theirs = expected[name].float()
            tolerance = 4 * torch.finfo(expected[name].dtype).eps
            assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance), name
        base = load_file(tmp_path / "base" / "model.safetensors")
        assert any(not torch.equal(expected[name], base[name]) for name in names & base.keys())


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 16},
        {"target_modules": "all-linear", "r": 8, "lora_alpha": 3, "use_rslora": True},
        {
            "target_modules": ["q_proj", "down_proj"],
            "r": 4,
            "lora_alpha": 16,
            "rank_pattern": {"down_proj": 2},
            "alpha_pattern": {r"layers\.1\.self_attn\.q_proj": 5},
        },
        {"target_modules": ["q_proj", "embed_tokens"], "r": 4, "lora_alpha": 8},
        {"target_modules": ["q_proj"], "r": 4, "modules_to_save": ["lm_head"]},
    ],
)
def test_an_adapter_is_merged_as_peft_merges_it(options: dict[str, Any], tmp_path: Path) -> None:
    merged_by_both(tmp_path, llama(), **options)


def test_an_adapter_of_16_bits_is_merged_to_rounding(tmp_path: Path) -> None:
    merged_by_both(tmp_path, llama(dtype=torch.bfloat16), target_modules="all-linear", r=8, lora_alpha=16)


def test_transposed_weights_are_merged(tmp_path: Path) -> None:
    merged_by_both(tmp_path, gpt2(), target_modules=["c_attn", "c_proj"], r=4, fan_in_fan_out=True)


def test_convolutions_are_merged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1))
    lw.save(model, tmp_path / "base.safetensors")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["0", "2"], r=2))
    with torch.no_grad():
        for parameter in wrapped.parameters():
            parameter.copy_(torch.randn(parameter.shape)) if parameter.requires_grad else None
    wrapped.save_pretrained(tmp_path / "adapter")
    lw.edit(tmp_path / "base.safetensors", tmp_path / "out.safetensors", lora=tmp_path / "adapter")
    expected = wrapped.merge_and_unload().state_dict()
    for name, value in load_file(tmp_path / "out.safetensors").items():
        assert torch.allclose(value, expected[name], atol=1e-5), name


def test_a_factor_scales_the_adapter(tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path / "base")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=4, init_lora_weights=False))
    wrapped.save_pretrained(tmp_path / "adapter")
    name = "model.layers.0.self_attn.q_proj.weight"
    values = []
    for factor in (0.0, 1.0, 0.5):
        lw.edit(tmp_path / "base", tmp_path / "out.safetensors", lora={tmp_path / "adapter": factor})
        values.append(load_file(tmp_path / "out.safetensors")[name])
    assert torch.equal(values[0], load_file(tmp_path / "base" / "model.safetensors")[name])
    assert torch.allclose(values[2], (values[0] + values[1]) / 2, atol=1e-6)


def test_an_adapter_is_not_replaced_by_what_is_merged(tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path / "base")
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    out = tmp_path / "adapter" / "adapter_model.safetensors"
    before = out.read_bytes()
    with pytest.raises(lw.FileError, match="it is also a source"):
        lw.edit(tmp_path / "base", out, lora=tmp_path / "adapter")
    assert out.read_bytes() == before


def test_a_tied_weight_must_be_untied_first(tmp_path: Path) -> None:
    model = llama(tied=True)
    lw.save(model, tmp_path / "base.safetensors")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["embed_tokens"], r=4, init_lora_weights=False))
    wrapped.save_pretrained(tmp_path / "adapter")
    out = tmp_path / "out.safetensors"
    with pytest.raises(lw.EditError, match=r"it is tied to lm_head\.weight.*untie='lm_head\.weight'"):
        lw.edit(tmp_path / "base.safetensors", out, lora=tmp_path / "adapter")
    lw.edit(tmp_path / "base.safetensors", out, lora=tmp_path / "adapter", untie="lm_head.weight")
    with lw.open(tmp_path / "base.safetensors") as base:
        head = torch.from_numpy(base["lm_head.weight"].numpy().copy())
    assert torch.equal(load_file(out)["lm_head.weight"], head)
    assert not torch.equal(load_file(out)["model.embed_tokens.weight"], head)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: peft.LoraConfig(target_modules=["q_proj"], use_dora=True), "DoRA"),
        (lambda: peft.LoraConfig(target_modules=["q_proj"], lora_bias=True), "biases of adapters"),
        (lambda: peft.LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa"), "init_lora_weights='pissa'"),
        (lambda: peft.LoHaConfig(target_modules=["q_proj"]), "adapter of type 'LOHA'"),
        (lambda: peft.IA3Config(target_modules=["q_proj"], feedforward_modules=[]), "adapter of type 'IA3'"),
    ],
)
def test_other_adapters_are_refused_by_name(make: Any, cause: str, tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path / "base")
    peft.get_peft_model(model, make()).save_pretrained(tmp_path / "adapter")
    with pytest.raises(lw.EditError) as caught:
        lw.edit(tmp_path / "base", tmp_path / "out.safetensors", lora=tmp_path / "adapter")
    assert cause in str(caught.value)
    assert not (tmp_path / "out.safetensors").exists()


def test_an_adapter_for_another_model_is_refused(tmp_path: Path) -> None:
    model = llama()
    gpt2().save_pretrained(tmp_path / "base")
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    with pytest.raises(lw.EditError, match=r"model\.layers\.0\.self_attn\.q_proj, which is not in the source"):
        lw.edit(tmp_path / "base", tmp_path / "out.safetensors", lora=tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(lw.FileError, match="does not contain a dict"):
        lw.edit(tmp_path / "base", tmp_path / "out.safetensors", lora=tmp_path / "adapter")
    config.unlink()
    with pytest.raises(lw.FileError, match=r"adapter_config\.json.*lora= takes a folder that PEFT wrote"):
        lw.edit(tmp_path / "base", tmp_path / "out.safetensors", lora=tmp_path / "adapter")
