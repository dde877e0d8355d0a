"""What is not a weight, when weights are carried: settings, random streams, ties, and how a dict was stored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import torch
from flax import nnx
from tests.jax.with_torch.sources import as_dict, as_pt, as_safetensors
from torch import nn

import leafwise as lw


def _same(first: Any, second: Any) -> None:
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


class TorchNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)


class FlaxNet(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.fc, self.drop = nnx.Linear(4, 4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)


class EquinoxNet(eqx.Module):
    fc: eqx.nn.Linear
    drop: eqx.nn.Dropout

    def __init__(self) -> None:
        self.fc, self.drop = eqx.nn.Linear(4, 4, key=jax.random.key(0)), eqx.nn.Dropout(0.25)


def _as_model(model: nn.Module, _: Path) -> Any:
    return model


def _as_saved_dict(model: nn.Module, folder: Path) -> Any:
    return lw.save(model.state_dict(), folder / "own.safetensors")


SOURCES = (_as_model, as_dict, as_pt, as_safetensors, _as_saved_dict)


@pytest.mark.parametrize("stored", SOURCES)
def test_the_settings_of_layers_keep_their_values(stored: Callable[[nn.Module, Path], Any], tmp_path: Path) -> None:
    source = TorchNet()
    plan = lw.plan(EquinoxNet(), stored(source, tmp_path))
    assert any("keep their values, because settings are not carried" in note for note in plan.notes)
    model = lw.load(EquinoxNet(), stored(source, tmp_path))
    _same(model.fc.weight, source.fc.weight.detach())
    assert model.drop.p == 0.25
    lw.load(source, model)


def test_a_value_beside_the_layers_is_missing() -> None:
    with pytest.raises(lw.LoadError, match="step is in the model but not in the source"):
        lw.load({"model": EquinoxNet(), "step": 3}, {"model": TorchNet()})


@pytest.mark.parametrize("stored", SOURCES)
def test_a_state_dict_is_read_by_its_names(stored: Callable[[nn.Module, Path], Any], tmp_path: Path) -> None:
    source, model = TorchNet(), FlaxNet()
    lw.load(model, stored(source, tmp_path))
    _same(model.fc.kernel[...].T, source.fc.weight.detach())
    layer = nnx.Linear(4, 4, rngs=nnx.Rngs(1))
    lw.load(layer, stored(source.fc, tmp_path))
    _same(layer.kernel[...].T, source.fc.weight.detach())


def test_a_layer_without_roles_is_not_a_state_dict(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

    lw.save(nn.ModuleDict({"fc": Own()}), tmp_path / "own.safetensors")
    with pytest.raises(lw.LoadError, match="the order of its axes is not known"):
        lw.load(FlaxNet(), tmp_path / "own.safetensors", allow={"missing"})


def test_random_streams_in_a_state_are_left_out(tmp_path: Path) -> None:
    model = FlaxNet()
    state = nnx.state(model)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", nnx.to_pure_dict(state))
    for source in (model, state, nnx.to_pure_dict(state), tmp_path / "step"):
        net = TorchNet()
        lw.load(net, source)
        _same(model.fc.kernel[...].T, net.fc.weight.detach())
    net = TorchNet()
    for target in (nnx.state(FlaxNet()), nnx.to_pure_dict(nnx.state(FlaxNet()))):
        before = [leaf.value for _, leaf in lw.tree(target["drop"]).items()]
        filled = lw.load(target, net)
        _same(np.asarray(jax.tree.leaves(filled["fc"])[1]).T, net.fc.weight.detach())
        for old, (_, leaf) in zip(before, lw.tree(filled["drop"]).items(), strict=True):
            assert (old == leaf.value).all()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


class FlaxHead(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.embed, self.head = nnx.Embed(4, 3, rngs=rngs), nnx.Linear(3, 4, use_bias=False, rngs=rngs)


class EquinoxHead(eqx.Module):
    embed: eqx.nn.Embedding
    head: eqx.nn.Linear

    def __init__(self) -> None:
        key = jax.random.key(0)
        self.embed, self.head = eqx.nn.Embedding(4, 3, key=key), eqx.nn.Linear(3, 4, use_bias=False, key=key)


def test_a_tie_that_the_model_does_not_have_is_noted() -> None:
    notes = lw.plan(FlaxHead(), Tied()).notes
    assert "embed.weight, head.weight are one leaf in the source, and 2 in the model, with equal values" in notes
    assert any(
        "head.weight is tied in the source, but not here" in note for note in lw.plan(EquinoxHead(), Tied()).notes
    )
    untied = Tied()
    untied.head.weight = nn.Parameter(torch.zeros(4, 3))
    for model in (FlaxHead(), EquinoxHead()):
        assert not any("one leaf" in note or "tied" in note for note in lw.plan(model, untied).notes)


def test_another_kind_of_layer_of_the_same_framework_is_noted() -> None:
    plan = lw.plan(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
    assert plan.holds
    assert (
        "the source has another kind of layer for weight: linear.weight there and embedding.table in the model"
        in plan.notes
    )
    assert plan.notes != lw.plan(nn.Linear(4, 4), nn.Linear(4, 4)).notes == []


def test_the_lists_of_linen_need_a_rename() -> None:
    source = nn.ModuleDict({"h": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])})
    layers = {f"h_{number}": {"kernel": jnp.zeros((4, 4)), "bias": jnp.zeros(4)} for number in range(2)}
    filled = lw.load({"params": layers}, source, rename=[(r"^h\.(\d+)\.", r"h_\1.")])
    _same(filled["params"]["h_1"]["kernel"].T, source["h"][1].weight.detach())


def test_leaves_without_roles_and_of_one_name_are_copied() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(3, 3))

    class FlaxOwn(nnx.Module):
        def __init__(self) -> None:
            self.table = nnx.Param(jnp.zeros((3, 3)))

    source, model = Own(), FlaxOwn()
    assert any(note.startswith("copied as they are, because no side says") for note in lw.plan(model, source).notes)
    with pytest.warns(UserWarning, match="table: copied from another framework, which may store them transposed"):
        lw.load(model, source)
    _same(model.table[...], source.table.detach())


def test_counts_and_streams_that_both_sides_have_are_loaded() -> None:
    source, model = FlaxNet(), FlaxNet()
    source.drop.rngs.count[...] = source.drop.rngs.count[...] + 5
    lw.load(model, nnx.to_pure_dict(nnx.state(source)))
    assert int(model.drop.rngs.count[...]) == int(source.drop.rngs.count[...])
    norm = nn.BatchNorm1d(3)
    lw.load(norm, {name: jnp.asarray(value.numpy() + 1) for name, value in norm.state_dict().items()}, cast=True)
    assert int(norm.num_batches_tracked) == 1
