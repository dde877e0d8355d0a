"""`lw.ties`: ties, lost ties, leaves that are equal but untied, and problems with the optimizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tools.tie_table import ARCHITECTURES, LanguageModel
from torch import nn

import leafwise as lw
from leafwise.cli import main
from leafwise.core.memory.ops import Op


def test_every_op_is_reported() -> None:
    model: Any = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3), "t": nn.Linear(3, 4), "v": nn.Linear(4, 2)})
    lw.tie(model, "b.weight", to="a.weight", keep="source")
    lw.tie(model, "t.weight", to="a.weight", transpose=True, keep="source")
    lw.tie(model, "v.weight", to="a.weight", slice=slice(1, 3), keep="source")
    (tie,) = ties = lw.ties(model)
    assert [(str(name.path), name.op) for name in tie.names] == [
        ("a.weight", "same"),
        ("b.weight", "same"),
        ("t.weight", "transpose"),
        ("v.weight", "view"),
    ]
    assert ties[0] == tie
    assert ties[:1] == [tie]
    assert ties.bytes_saved == 48 + 48 + 32
    assert ties.text().splitlines() == [
        "a.weight                    3×4  float32  48 B",
        "├─ b.weight  same                               saves 48 B",
        "├─ t.weight  transpose .T                       saves 48 B",
        "└─ v.weight  view [1:3, :]                      saves 32 B",
        "",
        "1 tie, 4 names · 128 B saved",
    ]
    assert f"{ties}" == ties.text()
    data = json.loads(json.dumps(ties.json()))
    assert data["bytes_saved"] == 128
    assert data["ties"][0]["names"][3] == {"path": "v.weight", "op": "view", "view": "[1:3, :]"}
    assert "v.weight" in ties._repr_html_()


def test_a_model_without_ties_says_so() -> None:
    assert lw.ties(nn.Linear(2, 2)).text() == "no ties"
    assert len(lw.ties({"a": torch.zeros(2)})) == 0


def test_shared_memory_with_separate_gradients_is_not_a_tie() -> None:
    model = ARCHITECTURES["transposed autoencoder"].build()
    ARCHITECTURES["transposed autoencoder"].by_hand(model)
    ties = lw.ties(model, optimizer=torch.optim.SGD(model.parameters()))
    assert len(ties) == 0
    assert [shared.reason for shared in ties.shared_memory] == ["shared memory, separate gradients"]
    assert "shared memory, separate gradients: encoder.weight, decoder.weight" in ties.text()
    assert [held.problem for held in ties.optimizer or ()] == ["shared memory"]
    assert "encoder.weight and decoder.weight share memory and are stepped separately" in ties.text()
    lw.tie(model, "decoder.weight", to="encoder.weight", transpose=True)
    assert lw.ties(model).shared_memory == []


def test_leaves_that_are_equal_but_untied_are_listed() -> None:
    model = LanguageModel()
    model.head.load_state_dict({"weight": model.embed.weight.detach()})
    model.add_module("turned", nn.Linear(10, 4, bias=False))
    model.turned.load_state_dict({"weight": model.embed.weight.detach().T})  # type: ignore[union-attr]
    model.add_module("norms", nn.ModuleList([nn.LayerNorm(4), nn.LayerNorm(4)]))
    assert lw.ties(model).equal_untied is None
    ties = lw.ties(model, equal_untied=True)
    found = [([str(leaf.path) for leaf in e.leaves], e.op, e.constant) for e in ties.equal_untied or ()]
    assert found == [
        (["embed.weight", "head.weight"], "same", False),
        (["embed.weight", "turned.weight"], "transpose", False),
        (["norms.0.weight", "norms.1.weight"], "same", True),
        (["norms.0.bias", "norms.1.bias"], "same", True),
    ]
    assert ties.text().splitlines()[-3:] == [
        "equal but untied: embed.weight, head.weight",
        "equal but untied (transpose .T): embed.weight, turned.weight",
        "4 leaves are equal because each is constant",
    ]
    assert json.dumps(ties.json()["equal_untied"][0])
    lw.tie(model, "head.weight", to="embed.weight")
    left = lw.ties(model, equal_untied=True).equal_untied or []
    assert [[str(leaf.path) for leaf in e.leaves] for e in left if not e.constant] == [
        ["embed.weight", "turned.weight"]
    ]


def test_equal_means_the_same_bits() -> None:
    values = {
        "a": torch.tensor([1.0, 2.0, 3.0]),
        "shuffled": torch.tensor([3.0, 2.0, 1.0]),
        "nan": torch.tensor([float("nan"), 1.0]),
        "nan too": torch.tensor([float("nan"), 1.0]),
        "zero": torch.tensor([0.0, 1.0]),
        "minus zero": torch.tensor([-0.0, 1.0]),
        "half": torch.tensor([1.0, 2.0, 3.0]).half(),
        "flags": torch.tensor([True, False]),
        "flags too": torch.tensor([True, False]),
        "waves": torch.tensor([1 + 2j, 0]),
        "waves too": torch.tensor([1 + 2j, 0]),
        "meta": torch.zeros(3, device="meta"),
        "empty": torch.zeros(0),
    }
    found = lw.ties(values, equal_untied=True).equal_untied or []
    assert [[str(leaf.path) for leaf in e.leaves] for e in found] == [
        ["nan", "nan too"],
        ["flags", "flags too"],
        ["waves", "waves too"],
    ]
    assert lw.ties(nn.Linear(2, 3), equal_untied=True).text().endswith("no untied leaves are equal")


def test_leaves_that_are_equal_but_untied_in_a_file_are_listed(tmp_path: Path) -> None:
    save_file(
        {"a": torch.arange(6).reshape(2, 3), "b": torch.arange(6).reshape(2, 3), "c": torch.ones(2)}, tmp_path / "x"
    )
    (equal,) = lw.ties(tmp_path / "x", equal_untied=True).equal_untied or ()
    assert [str(leaf.path) for leaf in equal.leaves] == ["a", "b"]
    assert json.dumps(lw.ties(tmp_path / "x").json())


def test_a_leaf_that_an_optimizer_steps_twice_is_reported() -> None:
    model = LanguageModel()
    model.head.weight = model.embed.weight
    with pytest.warns(UserWarning, match=r"duplicate"):
        optimizer = torch.optim.SGD([model.embed.weight, model.head.weight, model.block.weight])
    (held,) = lw.ties(model, optimizer=optimizer).optimizer or ()
    assert (held.problem, held.path) == ("twice", "embed.weight")
    assert held.message.startswith(
        "embed.weight is stepped 2 times, as parameter 0 of group 0 and as parameter 1 of group 0; "
        "pass it to the optimizer once"
    )
    sound = lw.ties(model, optimizer=torch.optim.SGD(model.parameters()))
    assert sound.optimizer == []
    assert sound.text().endswith("the optimizer steps each of its leaves once, and all of them are in the model")
    with pytest.raises(lw.WalkError, match=r"optimizer= takes an optimizer, not int"):
        lw.ties(model, optimizer=3)
    with pytest.raises(lw.Unsupported, match=r"torch cannot list the parameters of an optimizer"):
        lw.ties(model, optimizer=model)


def test_a_parameter_that_only_the_optimizer_still_holds_is_reported() -> None:
    model = LanguageModel()
    optimizer = torch.optim.SGD(model.named_parameters())
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    held = lw.ties(model, optimizer=optimizer).optimizer or []
    assert [one.problem for one in held] == ["stale"] * 4
    assert held[0].message.startswith(
        "parameter 0 of group 0, 'embed.weight' (10×4) is no longer a parameter of the model, so stepping it changes "
        "nothing; it may have been replaced by embed.weight or head.weight, not in the optimizer; create the optimizer"
    )
    json.dumps(lw.ties(model, optimizer=optimizer).json())


def test_the_command_prints_ties_as_text_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared_model.py").write_text(
        "from torch import nn\ndef build():\n    layer = nn.Linear(2, 2)\n    return nn.Sequential(layer, layer)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["ties", "shared_model:build"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 ties, 4 names · 24 B saved"
    assert main(["ties", "shared_model:build", "--json", "--equal-untied"]) == 0
    assert json.loads(capsys.readouterr().out)["equal_untied"] == []
    assert main(["ties", "nowhere.safetensors"]) == 1
    assert "nowhere.safetensors" in capsys.readouterr().err


def test_ops_are_compared_as_strings_and_kept_whole() -> None:
    model = ARCHITECTURES["transposed autoencoder"].by_leafwise(ARCHITECTURES["transposed autoencoder"].build())
    (tie,) = lw.ties(model)
    assert tie.op == "transpose"
    assert isinstance(tie.op, Op)
    assert tie.op.order == (1, 0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int8", "bool"])
def test_equal_leaves_of_two_homes_are_found(dtype: str) -> None:
    array = np.array([[-1.5, 2.0], [0.0, -3.0]]).astype(dtype)
    ties = lw.ties({"tensor": torch.from_numpy(array.copy()), "array": array}, equal_untied=True)
    assert [[str(leaf.path) for leaf in equal.leaves] for equal in ties.equal_untied or ()] == [["tensor", "array"]]


def test_negated_and_conjugated_views_are_compared_by_their_values() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    negated = torch._neg_view(torch.tensor([1.0, 2.0]))
    model = {"a": z.conj(), "b": z.conj().resolve_conj().clone(), "c": negated, "d": -torch.tensor([1.0, 2.0])}
    ties = lw.ties(model, equal_untied=True)
    assert [[str(leaf.path) for leaf in equal.leaves] for equal in ties.equal_untied or ()] == [["a", "b"], ["c", "d"]]


def test_parameters_that_share_memory_are_not_listed_as_equal_but_untied() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "ab"})
    model["b"].weight = nn.Parameter(model["a"].weight.detach())
    found = lw.ties(model, equal_untied=True)
    assert (len(found.shared_memory), found.equal_untied) == (1, [])


def test_the_same_numbers_in_another_shape_are_not_equal() -> None:
    numbers = torch.arange(6.0)
    assert (
        lw.ties({"a": numbers.reshape(2, 3), "b": numbers.reshape(3, 2).clone()}, equal_untied=True).equal_untied == []
    )


def test_equal_leaves_are_found_after_one_that_only_looks_like_them() -> None:
    first = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    other = torch.tensor([[1.0, 2, 3], [4, 9, 8], [7, 6, 5]])  # the same numbers, first row and first column
    [equal] = lw.ties({"first": first, "b": other, "c": other.clone()}, equal_untied=True).equal_untied or []
    assert [str(leaf.path) for leaf in equal.leaves] == ["b", "c"]
