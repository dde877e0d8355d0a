"""`lw.initialize` draws the same values in PyTorch, Flax NNX, Equinox and dicts, for the same paths."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from tests.jax.with_torch.layers import LAYERS

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


_WITH_A_COUNTERPART = [
    (layer, framework, rules)
    for layer, (_, made) in LAYERS.items()
    for framework in made
    for rules in ("the defaults", "normal")
    if framework != "PyTorch" and (framework, rules) != ("Flax Linen", "the defaults")  # dicts have no defaults
]


_OWN_STATE = re.compile(r"rngs|first_time_index")


def _with_one_bias(made: Any) -> Any:
    """A layer of PyTorch whose second biases are zero where other frameworks have one."""
    for name, value in made.named_parameters():
        if name.startswith("bias_hh"):
            apart = 2 * made.hidden_size if isinstance(made, torch.nn.GRU) else len(value)
            value.data[:apart] = 0
    return made


@pytest.mark.parametrize(("layer", "framework", "rules"), _WITH_A_COUNTERPART)
def test_every_layer_begins_with_the_values_of_its_counterpart(layer: str, framework: str, rules: str) -> None:
    """Compared by what a load makes of the values of PyTorch's layer, square ones included."""
    made = LAYERS[layer][1]
    alone: Any = lw.initialize(made["PyTorch"].make(), RULES[rules], seed=5)
    drawn, loaded = lw.initialize(made[framework].make(), RULES[rules], seed=5), made[framework].make()
    if (layer, framework) == ("GRU", "Flax NNX"):  # which has no second bias of the new gate
        weights = {name: value for name, value in alone.state_dict().items() if name.startswith("weight")}
        drawn, loaded = (lw.tree(of).select("**.kernel") for of in (drawn, loaded))
        lw.load(loaded, weights)
    else:
        loaded = lw.load(loaded, _with_one_bias(alone))
    expected = named(loaded)
    compared = {name: leaf for name, leaf in named(drawn).items() if not _OWN_STATE.search(name)}
    assert compared
    for name, leaf in compared.items():
        if not (layer == "PReLU" and rules == "the defaults"):  # whose first value is a setting of the layer
            np.testing.assert_array_max_ulp(leaf.numpy(), expected[name].numpy(), 2)


def named(model: Any) -> dict[str, lw.Leaf]:
    return {str(path): leaf for path, leaf in lw.tree(model).items()}


def test_containers_of_layers_do_not_change_the_values() -> None:
    def bound(rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.RNN(nnx.SimpleCell(4, 5, rngs=rngs), rngs=rngs))

    key = jax.random.key(0)
    expected: Any = lw.initialize(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.RNN(4, 5)), seed=1)
    of_flax: Any = lw.initialize(bound(nnx.Rngs(0)), seed=1)
    of_equinox: Any = lw.initialize(eqx.nn.Sequential([eqx.nn.Linear(3, 4, key=key)]), seed=1)
    weight = expected[0].weight.detach().numpy()
    np.testing.assert_array_max_ulp(np.array(of_flax.layers[0].kernel[...].T), weight, 2)
    np.testing.assert_array_max_ulp(np.array(of_equinox.layers[0].weight), weight, 2)
    hidden = expected[1].weight_hh_l0.detach().numpy()
    np.testing.assert_array_max_ulp(np.array(of_flax.layers[1].cell.dense_h.kernel[...].T), hidden, 2)
