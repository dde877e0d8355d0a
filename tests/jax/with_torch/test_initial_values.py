"""`lw.initialize` draws the same values in PyTorch, Flax NNX, Equinox and dicts, for the same paths."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import leafwise as lw

# How an array of Flax is turned into the order of PyTorch, by its axes.
_ORDERS = {("in", "out"): (1, 0), ("w", "in", "out"): (2, 1, 0), ("h", "w", "in", "out"): (3, 2, 0, 1)}
_NAMES = {"kernel": "weight", "embedding": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}

RULES: dict[str, Any] = {
    "the defaults": None,
    "normal": [lw.Rule("**", init="normal", std=0.02)],
    "by fan": [lw.Rule(lw.where(role="{linear,conv}.weight"), init="kaiming_normal", mode="fan_out")],
    "orthogonal": [lw.Rule(lw.where(role="{linear,conv}.weight"), init="orthogonal")],
    "by role": [lw.Rule(lw.where(role="embedding.table"), init="truncated_normal", std=0.1)],
}


def torch_net() -> torch.nn.Module:
    return torch.nn.ModuleDict(
        {
            "fc": torch.nn.Linear(3, 4),
            "conv": torch.nn.Conv2d(3, 5, (3, 2)),
            "line": torch.nn.Conv1d(2, 3, 4),
            "embed": torch.nn.Embedding(7, 3),
            "norm": torch.nn.LayerNorm(4),
            "batch": torch.nn.BatchNorm2d(5),
        }
    )


class NnxNet(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.fc = nnx.Linear(3, 4, rngs=rngs)
        self.conv = nnx.Conv(3, 5, (3, 2), rngs=rngs)
        self.line = nnx.Conv(2, 3, (4,), rngs=rngs)
        self.embed = nnx.Embed(7, 3, rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.batch = nnx.BatchNorm(5, rngs=rngs)


class EquinoxLayers(eqx.Module):
    fc: eqx.nn.Linear
    conv: eqx.nn.Conv2d
    line: eqx.nn.Conv1d
    embed: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm

    def __init__(self) -> None:
        key = jax.random.key(0)
        self.fc = eqx.nn.Linear(3, 4, key=key)
        self.conv = eqx.nn.Conv2d(3, 5, (3, 2), key=key)
        self.line = eqx.nn.Conv1d(2, 3, 4, key=key)
        self.embed = eqx.nn.Embedding(7, 3, key=key)
        self.norm = eqx.nn.LayerNorm(4)


def in_torch_order(leaf: lw.Leaf, shape: tuple[int, ...]) -> Any:
    array = leaf.numpy()
    order = _ORDERS.get(leaf.axes or ())
    return (array if order is None else array.transpose(order)).reshape(shape)  # Equinox has biases of (out, 1, 1)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("build", [NnxNet, EquinoxLayers, lambda: nnx.eval_shape(NnxNet)], ids=["nnx", "eqx", "meta"])
def test_the_layers_of_every_framework_begin_with_the_same_values(build: Any, rules: Any) -> None:
    expected = {str(leaf.path): leaf.numpy() for leaf in lw.tree(lw.initialize(torch_net(), rules, seed=3))}
    compared = set()
    for leaf in lw.tree(lw.initialize(build(), rules, seed=3)):
        layer, _, name = str(leaf.path).rpartition(".")
        path = f"{layer}.{_NAMES.get(name, name)}"
        np.testing.assert_array_max_ulp(in_torch_order(leaf, expected[path].shape), expected[path], 2)
        compared.add(path)
    assert {"fc.weight", "fc.bias", "conv.weight", "conv.bias", "embed.weight", "norm.weight"} <= compared


def test_dicts_begin_with_the_same_values_by_rule() -> None:
    rules = [lw.Rule("**", init="normal", std=0.02)]
    params = {"fc": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}
    drawn = lw.initialize(params, rules, seed=3)
    expected: Any = lw.initialize(torch_net(), rules, seed=3)
    np.testing.assert_array_max_ulp(np.array(drawn["fc"]["kernel"].T), expected["fc"].weight.detach().numpy(), 2)
    np.testing.assert_array_max_ulp(np.array(drawn["fc"]["bias"]), expected["fc"].bias.detach().numpy(), 2)
    assert (params["fc"]["kernel"] == 1).all()


def test_groups_of_pytorch_are_not_for_optax() -> None:
    groups = lw.groups(torch.nn.Linear(2, 2))
    with pytest.raises(lw.Unsupported, match=r"torch\.optim\.AdamW\(groups\)"):
        groups.optax(lambda: None)
    with pytest.raises(lw.Unsupported, match=r"its optimizers take lw\.groups\(model\)"):
        lw.trainable(torch.nn.Linear(2, 2))
