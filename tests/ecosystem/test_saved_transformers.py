"""Checkpoints of transformers: what `save_pretrained` stores loads exactly, or is refused by name."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.lazy import Lazy
from tools import saved_transformers
from torch import nn

import leafwise as lw

transformers, core_model_loading = Lazy("transformers"), Lazy("transformers.core_model_loading")
# Each has conversions of another kind: experts, fused q, k and v, prefixes, renames that depend on each other, permuted
# rows, and names that `from_pretrained` itself does not find again.
CONVERTED = [
    "mixtral",
    "qwen2_moe",
    "deepseek_v2",
    "kimi_k25",
    "llava",
    "paligemma",
    "vit",
    "gpt_neox",
    "mistral_large4",
    "segformer",
    pytest.param("d_fine", marks=pytest.mark.slow),
    "shieldgemma2",
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.enable_progress_bar()


@pytest.mark.parametrize("name", CONVERTED)
def test_every_leaf_is_bit_for_bit_equal_to_the_saved_one(name: str) -> None:
    found = saved_transformers.outcome_of(name)
    assert found is not None
    assert set(found.modes.values()) == {"exact"}, found
    assert found.is_converted, found


def mixtral(**options: Any) -> Any:
    config = transformers.MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        **options,
    )
    return transformers.MixtralForCausalLM(config)


EXPERTS = "model.layers.0.block_sparse_moe.experts"
FUSED = "model.layers.0.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model, folder = mixtral(), tmp_path_factory.mktemp("mixtral")
    model.save_pretrained(folder)
    return model, folder


def changed(stored: tuple[Any, Path], tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    state = load_file(stored[1] / "model.safetensors")
    change(state)
    save_file(state, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def assert_equal(model: nn.Module, other: nn.Module) -> None:
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


def test_the_plan_shows_what_each_leaf_is_made_from(stored: tuple[Any, Path]) -> None:
    plan = lw.plan(mixtral(), stored[1])
    assert plan.library == "transformers"
    (leaf,) = [leaf for leaf in plan.json()["leaves"] if leaf["target"] == FUSED]
    assert leaf["how"] == ["stacked", "concatenated"]
    assert leaf["sources"] == [f"{EXPERTS}.{number}.{part}.weight" for part in ("w1", "w3") for number in range(4)]
    (line,) = [line for line in str(plan).split("\n") if FUSED in line]
    assert line.split()[:3] == [f"{EXPERTS}.{{0..3}}.w{{1,3}}.weight", "→", FUSED]
    assert line.endswith("stacked, concatenated")
    assert "read as transformers stores it: 1 renamed, 2 leaves are made from 12 stored" in str(plan)
    assert json.dumps(plan.json())


def test_a_state_dict_of_stored_names_loads_as_a_file_does(stored: tuple[Any, Path]) -> None:
    model, folder = stored
    assert_equal(model, lw.load(mixtral(), load_file(folder / "model.safetensors")))


def test_a_state_dict_that_shares_memory_with_the_model_is_copied_first(stored: tuple[Any, Path]) -> None:
    """The experts of the source are views of the fused parameter, in another order."""
    model = mixtral()
    truth = {name: value.clone() for name, value in model.state_dict().items()}
    state = load_file(stored[1] / "model.safetensors")
    fused = model.get_parameter(FUSED).detach()
    for number in range(4):
        state[f"{EXPERTS}.{number}.w1.weight"] = fused[3 - number, :24]
        state[f"{EXPERTS}.{number}.w3.weight"] = fused[3 - number, 24:]
    lw.load(model, state)
    assert torch.equal(model.get_parameter(FUSED), truth[FUSED].flip(0))


@pytest.mark.parametrize("save", ["leafwise", "torch", "safetensors"])
def test_names_of_the_model_are_not_converted(stored: tuple[Any, Path], tmp_path: Path, save: str) -> None:
    model, path = stored[0], tmp_path / "model.safetensors"
    if save == "leafwise":
        lw.save(model, path)
    elif save == "torch":
        path = tmp_path / "model.pt"
        torch.save(model.state_dict(), path)
    else:
        save_file(model.state_dict(), path)
    assert lw.plan(mixtral(), path).library == ""
    assert_equal(model, lw.load(mixtral(), path))


def test_a_part_of_a_state_dict_with_the_names_of_the_model_is_not_converted(stored: tuple[Any, Path]) -> None:
    part = {FUSED: stored[0].state_dict()[FUSED]}
    plan = lw.plan(mixtral(), part, allow={"missing"})
    assert plan.holds
    assert plan.library == ""


def test_an_expert_that_is_missing_is_refused(stored: tuple[Any, Path], tmp_path: Path) -> None:
    def without_one(state: dict[str, torch.Tensor]) -> None:
        del state[f"{EXPERTS}.3.w2.weight"]

    plan = lw.plan(mixtral(), changed(stored, tmp_path, without_one))
    assert [problem.kind for problem in plan.problems] == ["shape"]
    assert "down_proj is 4×16×24 in the model but 3×16×24 in the checkpoint" in plan.problems[0].message


def test_an_expert_with_the_wrong_number_is_refused(stored: tuple[Any, Path], tmp_path: Path) -> None:
    def renumbered(state: dict[str, torch.Tensor]) -> None:
        state[f"{EXPERTS}.7.w2.weight"] = state.pop(f"{EXPERTS}.1.w2.weight")

    model = mixtral()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(lw.LoadError, match=r"do not count from 0 to 3"):
        lw.load(model, changed(stored, tmp_path, renumbered), allow={"missing", "unexpected", "shape"})
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_experts_of_different_dtypes_are_refused(stored: tuple[Any, Path], tmp_path: Path) -> None:
    def half(state: dict[str, torch.Tensor]) -> None:
        state[f"{EXPERTS}.1.w2.weight"] = state[f"{EXPERTS}.1.w2.weight"].half()

    plan = lw.plan(mixtral(), changed(stored, tmp_path, half), cast=True)
    (problem,) = [problem for problem in plan.problems if problem.kind == "unsupported"]
    assert "these have different dtypes: float32, float16" in problem.message


def test_precision_is_kept_unless_a_cast_is_allowed(tmp_path: Path) -> None:
    model = mixtral().to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert {problem.kind for problem in lw.plan(mixtral(), tmp_path).problems} == {"dtype"}
    assert_equal(model.float(), lw.load(mixtral(), tmp_path, cast=True))
    target = mixtral().to(torch.bfloat16)
    assert_equal(model.to(torch.bfloat16), lw.load(target, tmp_path))


def test_a_damaged_expert_is_found_before_anything_changes(stored: tuple[Any, Path], tmp_path: Path) -> None:
    state = load_file(stored[1] / "model.safetensors")
    path = Path(lw.save(state, tmp_path / "model.safetensors"))
    needle = state[f"{EXPERTS}.2.w3.weight"].numpy().tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(needle) + 5] ^= 1
    path.write_bytes(data)
    model = mixtral()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(lw.ChecksumError) as raised:
        lw.load(model, path)
    assert raised.value.leaves == (FUSED,)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    with torch.device("meta"):
        on_meta = mixtral()
    with pytest.raises(lw.ChecksumError):
        lw.load(on_meta, path)


def test_rename_comes_before_the_conversion(stored: tuple[Any, Path]) -> None:
    model, folder = stored
    state = {f"net.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    assert not lw.plan(mixtral(), state).holds
    assert_equal(model, lw.load(mixtral(), state, rename={"net.model": "model", "net.lm_head": "lm_head"}))


def test_a_model_in_a_dict_is_converted_under_its_own_name(stored: tuple[Any, Path]) -> None:
    model, folder = stored
    run = lw.load({"model": mixtral(), "step": 0}, {"model": load_file(folder / "model.safetensors"), "step": 3})
    assert run["step"] == 3
    assert_equal(model, run["model"])


# -- what leafwise does not know --------------------------------------------------------------------------------------


def doubled() -> Any:
    """An operation of another library."""

    class Doubled(core_model_loading.ConversionOps):  # type: ignore[misc, name-defined]
        def convert(self, input_dict: Any, **_: Any) -> Any:
            return {name: value * 2 for name, value in input_dict.items()}

    return Doubled()


@pytest.fixture
def mapping(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], None]:
    """Sets what transformers says about a model."""

    def put(transforms: list[Any]) -> None:
        from transformers import conversion_mapping

        monkeypatch.setattr(conversion_mapping, "get_model_conversion_mapping", lambda model, **_: list(transforms))

    return put


def llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
    )


def test_an_operation_that_leafwise_does_not_know_is_refused_by_name(mapping: Callable[[list[Any]], None]) -> None:
    mapping(
        [
            core_model_loading.WeightRenaming("layers.0.norm1", "layers.0.input_layernorm"),
            core_model_loading.WeightConverter("mlp.w1.weight", "mlp.gate_proj.weight", operations=[doubled()]),
        ]
    )
    model = llama()
    state = model.state_dict()
    state["model.layers.0.mlp.w1.weight"] = state.pop("model.layers.0.mlp.gate_proj.weight")
    plan = lw.plan(llama(), state)
    assert not plan.holds
    assert any("leafwise does not know the operation Doubled" in note for note in plan.notes)
    state["model.layers.0.norm1.weight"] = state.pop("model.layers.0.input_layernorm.weight")
    with pytest.raises(lw.LoadError, match="leafwise does not know the operation Doubled"):
        lw.load(llama(), state, allow={"missing", "unexpected"})


def test_a_layout_that_names_and_shapes_do_not_show_is_refused(
    mapping: Callable[[list[Any]], None], tmp_path: Path
) -> None:
    transpose = core_model_loading.Transpose(0, 1)
    mapping([core_model_loading.WeightConverter("mlp.gate_proj.weight", "mlp.gate_proj.weight", [transpose])])
    model = llama()
    save_file({**model.state_dict(), "lm_head.weight": model.lm_head.weight.clone()}, tmp_path / "a.safetensors")
    plan = lw.plan(llama(), tmp_path / "a.safetensors")
    assert [(problem.kind, problem.name) for problem in plan.problems] == [
        ("unsupported", "model.layers.0.mlp.gate_proj.weight")
    ]
    assert "may be stored as it is in the model, or as transformers stores it" in plan.problems[0].message
    assert lw.plan(llama(), lw.save(model, tmp_path / "b.safetensors")).holds
    assert lw.plan(llama(), model).holds


def test_two_stored_names_for_one_leaf_are_refused(mapping: Callable[[list[Any]], None]) -> None:
    mapping([core_model_loading.WeightRenaming("gate_(a|b)", "gate_proj")])
    state = llama().state_dict()
    gate = state.pop("model.layers.0.mlp.gate_proj.weight")
    state |= {f"model.layers.0.mlp.gate_{letter}.weight": gate for letter in "ab"}
    plan = lw.plan(llama(), state)
    assert plan.missing == ["model.layers.0.mlp.gate_proj.weight"]
    assert not plan.holds


# -- base models and heads --------------------------------------------------------------------------------------------


def bert(cls: Any) -> Any:
    return cls(
        transformers.BertConfig(
            vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
        )
    )


@pytest.mark.parametrize("save", ["transformers", "leafwise"])
def test_a_base_model_loads_into_a_model_with_a_head(tmp_path: Path, save: str) -> None:
    base, model = bert(transformers.BertModel), bert(transformers.BertForSequenceClassification)
    path: Any = tmp_path
    if save == "transformers":
        base.save_pretrained(tmp_path)
    else:
        path = lw.save(base, tmp_path / "model.safetensors")
    heads = ["classifier.weight", "classifier.bias"]
    assert lw.plan(model, path).missing == heads
    head = model.classifier.weight.clone()
    lw.load(model, path, allow={"missing"})
    assert torch.equal(model.classifier.weight, head)
    assert_equal(base, model.bert)


def test_a_model_with_a_head_loads_into_its_base_model(tmp_path: Path) -> None:
    model, base = bert(transformers.BertForSequenceClassification), bert(transformers.BertModel)
    model.save_pretrained(tmp_path)
    plan = lw.plan(base, tmp_path)
    assert [problem.kind for problem in plan.problems] == ["unexpected"] * 2
    lw.load(base, tmp_path, allow={"unexpected"})
    assert_equal(model.bert, base)


def test_a_tied_model_stays_tied(tmp_path: Path) -> None:
    model = mixtral(tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    target = lw.load(mixtral(tie_word_embeddings=True), tmp_path)
    assert target.lm_head.weight is target.model.embed_tokens.weight
    assert_equal(model, target)


def test_experts_on_another_machine_are_downloaded_before_anything_changes(stored: tuple[Any, Path]) -> None:
    model, folder = stored
    files = fsspec.filesystem("memory")
    files.pipe("/experts/model.safetensors", (folder / "model.safetensors").read_bytes())
    assert_equal(model, lw.load(mixtral(), "memory://experts/model.safetensors"))
    with torch.device("meta"):
        on_meta = mixtral()
    assert_equal(model, lw.load(on_meta, "memory://experts/model.safetensors"))


def test_shards_load_like_one_file(stored: tuple[Any, Path], tmp_path: Path) -> None:
    model = stored[0]
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_equal(model, lw.load(mixtral(), tmp_path))
