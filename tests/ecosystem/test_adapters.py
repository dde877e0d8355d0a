"""Adapters that PEFT saved load into the model with that adapter, as PEFT itself loads them."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.lazy import Lazy

import leafwise as lw

peft, transformers = Lazy("peft"), Lazy("transformers")
LAYERS = ["q_proj", "v_proj"]
CONFIGS: dict[str, Callable[[], Any]] = {
    "LoRA": lambda: peft.LoraConfig(target_modules=LAYERS, r=3),
    "LoRA with biases": lambda: peft.LoraConfig(target_modules=LAYERS, r=3, bias="all"),
    "LoRA of embeddings": lambda: peft.LoraConfig(target_modules=["q_proj", "embed_tokens"], r=3),
    "LoRA with whole layers": lambda: peft.LoraConfig(
        target_modules=LAYERS, r=3, modules_to_save=["lm_head", "embed_tokens"]
    ),
    "LoRA with tokens": lambda: peft.LoraConfig(
        target_modules=LAYERS, r=3, trainable_token_indices={"embed_tokens": [1, 2]}
    ),
    "DoRA": lambda: peft.LoraConfig(target_modules=LAYERS, r=3, use_dora=True),
    "IA3": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "AdaLoRA": lambda: peft.AdaLoraConfig(target_modules=LAYERS, init_r=4, target_r=2, total_step=10),
    "LoHa": lambda: peft.LoHaConfig(target_modules=LAYERS, r=2),
    "VeRA": lambda: peft.VeraConfig(target_modules=LAYERS[:1], r=2),
    "prompt tuning": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5),
    "prefix tuning": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5),
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def base() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    )


def adapted(kind: str, name: str = "default") -> Any:
    return peft.get_peft_model(base(), CONFIGS[kind](), adapter_name=name)


def trained(kind: str) -> Any:
    model = adapted(kind)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def values(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(model: Any, other: Any) -> None:
    theirs = other if isinstance(other, dict) else values(other)
    for name, value in values(model).items():
        assert torch.equal(theirs[name], value), name


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_adapter_loads_as_peft_loads_it(kind: str, tmp_path: Path) -> None:
    source, model = trained(kind), adapted(kind)
    source.save_pretrained(tmp_path)
    before, config = values(model), copy.deepcopy(model.peft_config["default"].to_dict())
    plan = lw.plan(model, tmp_path)
    assert plan.library == "PEFT"
    assert model.peft_config["default"].to_dict() == config  # a plan changes nothing
    assert_equal(model, before)
    lw.load(model, tmp_path)
    assert_equal(model, source)
    assert_equal(model, peft.PeftModel.from_pretrained(base(), tmp_path))
    fed = {feed.name for feed in plan.feeds}
    assert fed.isdisjoint(plan.kept)
    assert {name for name, value in values(model).items() if not torch.equal(before[name], value)} <= fed


def test_the_plan_says_which_leaves_keep_their_values(tmp_path: Path) -> None:
    trained("LoRA").save_pretrained(tmp_path)
    plan = lw.plan(adapted("LoRA"), tmp_path)
    assert plan.holds
    assert len(plan.kept) == 21
    assert not any("lora" in name for name in plan.kept)
    assert plan.json()["kept"] == plan.kept
    assert 'the checkpoint is an adapter, which is loaded into "default", the active one' in str(plan)


def test_an_adapter_loads_under_another_name(tmp_path: Path) -> None:
    source = trained("LoRA with whole layers")
    source.save_pretrained(tmp_path)
    model = lw.load(adapted("LoRA with whole layers", "other"), tmp_path)
    ours = {name.replace(".other", ".default"): value for name, value in values(model).items()}
    assert_equal(source, ours)


def test_only_the_active_adapter_changes(tmp_path: Path) -> None:
    source, model = trained("LoRA"), adapted("LoRA")
    source.save_pretrained(tmp_path)
    model.add_adapter("second", CONFIGS["LoRA"]())
    before = values(model)
    model.set_adapter("second")
    lw.load(model, tmp_path)
    changed = {name for name, value in values(model).items() if not torch.equal(before[name], value)}
    assert changed == {name for name in before if "lora" in name and ".second." in name}
    for name in changed:
        assert torch.equal(values(model)[name], values(source)[name.replace(".second", ".default")])


def test_an_adapter_loads_into_a_model_of_transformers_that_has_one(tmp_path: Path) -> None:
    source, model = trained("LoRA"), base()
    source.save_pretrained(tmp_path)
    model.add_adapter(CONFIGS["LoRA"]())
    lw.load(model, tmp_path)
    theirs = {name.removeprefix("base_model.model."): value for name, value in values(source).items()}
    assert_equal(model, theirs)


def test_an_incomplete_adapter_is_refused(tmp_path: Path) -> None:
    trained("LoRA").save_pretrained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    state = load_file(path)
    lost = next(iter(state))
    del state[lost]
    save_file(state, path)
    plan = lw.plan(adapted("LoRA"), tmp_path)
    assert plan.missing == [lost.replace(".weight", ".default.weight")]
    assert not plan.holds


def test_an_adapter_of_another_rank_is_refused(tmp_path: Path) -> None:
    trained("LoRA").save_pretrained(tmp_path)
    model = peft.get_peft_model(base(), peft.LoraConfig(target_modules=LAYERS, r=2))
    plan = lw.plan(model, tmp_path)
    assert {problem.kind for problem in plan.problems} == {"shape", "nothing"}
    assert "lora_A.default.weight is 2×16 in the model but 3×16 in the checkpoint" in plan.problems[0].message


def test_an_adapter_for_other_layers_is_refused(tmp_path: Path) -> None:
    trained("LoRA").save_pretrained(tmp_path)
    model = peft.get_peft_model(base(), peft.LoraConfig(target_modules=["q_proj"], r=3))
    plan = lw.plan(model, tmp_path)
    assert len(plan.unexpected) == 4
    assert all("v_proj" in name for name in plan.unexpected)


def test_prompts_that_an_encoder_computed_are_refused(tmp_path: Path) -> None:
    config = peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=5, encoder_hidden_size=8)
    peft.get_peft_model(base(), config).save_pretrained(tmp_path)
    with pytest.raises(lw.LoadError, match="prompt_embeddings in the checkpoint: it is the result of prompt_encoder"):
        lw.load(peft.get_peft_model(base(), config), tmp_path)


def test_a_base_model_on_meta_is_missing(tmp_path: Path) -> None:
    trained("LoRA").save_pretrained(tmp_path)
    with torch.device("meta"):
        model = adapted("LoRA")
    plan = lw.plan(model, tmp_path)
    assert not plan.holds
    assert plan.kept == []
    assert any(name.endswith("embed_tokens.weight") for name in plan.missing)


def test_the_whole_state_of_a_model_with_an_adapter_loads_as_it_is(tmp_path: Path) -> None:
    source = trained("LoRA with whole layers")
    path = lw.save(source, tmp_path / "model.safetensors")
    assert lw.plan(adapted("LoRA with whole layers"), path).library == ""
    assert_equal(source, lw.load(adapted("LoRA with whole layers"), path))


MERGED = r"its adapter is merged into its weights, .* call unmerge_adapter\(\) first"


@pytest.mark.parametrize("kind", ["LoRA", "LoRA of embeddings", "LoHa", "IA3", "DoRA"])
def test_a_merged_adapter_is_refused_both_ways(kind: str, tmp_path: Path) -> None:
    model, merged = trained(kind), trained(kind)
    path = lw.save(model, tmp_path / "a.safetensors")
    merged.merge_adapter()
    before = values(merged)
    with pytest.raises(lw.Error, match=MERGED):
        lw.save(merged, tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()
    for target, source in ((model, merged), (merged, model), (merged, path), (merged, model.state_dict())):
        with pytest.raises(lw.LoadError, match=MERGED):
            lw.load(target, source)
    assert_equal(merged, before)
    merged.unmerge_adapter()
    lw.load(merged, path)
    assert_equal(merged, model)
    alone = adapted(kind)  # the values with which an adapter begins
    alone.merge_adapter()
    with pytest.raises(lw.LoadError, match=MERGED):
        lw.load(alone, path)


@pytest.mark.parametrize("kind", ["LoRA", "DoRA", "IA3", "LoHa"])
def test_a_checkpoint_of_the_base_model_loads_into_a_model_with_an_adapter(kind: str, tmp_path: Path) -> None:
    """The adapter keeps its values."""
    source = base()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.normal_()
    source.save_pretrained(tmp_path)
    for checkpoint in (tmp_path, source, source.state_dict()):
        model = trained(kind)
        before = values(model)
        expected = {name.removeprefix("base_model.model.").replace(".base_layer.", "."): name for name in before}
        lw.load(model, checkpoint)
        assert source.state_dict().keys() <= expected.keys()
        for short, name in expected.items():
            there = source.state_dict().get(short, before[name])
            assert torch.equal(model.state_dict()[name], there), name


def test_the_head_of_which_there_is_a_trained_copy_is_not_loaded() -> None:
    model = trained("LoRA with whole layers")
    before = values(model)
    with pytest.raises(lw.LoadError, match=r"lm_head\.weight"):
        lw.load(model, base())
    assert_equal(model, before)


def test_a_model_with_two_active_adapters_says_which_to_activate(tmp_path: Path) -> None:
    model = adapted("LoRA")
    model.add_adapter("second", CONFIGS["LoRA"]())
    model.base_model.set_adapter(["default", "second"])
    source = trained("LoRA")
    source.save_pretrained(tmp_path)
    message = r"several active adapters \(default, second\); activate one: model.set_adapter\(\"default\"\)"
    with pytest.raises(lw.LoadError, match=message):
        lw.load(model, tmp_path)
    model.set_adapter("second")
    lw.load(model, tmp_path)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.{}.weight"
    assert torch.equal(values(model)[name.format("second")], values(source)[name.format("default")])
    assert not values(model)[name.format("default")].any()
