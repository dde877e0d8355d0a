"""`lw.initialize` over Flax NNX, Equinox and dicts; tests/jax/with_torch compares the values with PyTorch's."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.jax.models import EquinoxNet, TiedNnx, linen_variables

import leafwise as lw

NORMAL = [lw.Rule("**", init="normal", std=0.02)]


def test_variables_change_in_place_and_stay_tied() -> None:
    model = TiedNnx()
    before = model.embed.embedding
    assert lw.initialize(model, NORMAL, seed=1) is model
    assert model.embed.embedding is before
    assert model.head.kernel is before
    assert 0.005 < float(before[...].std()) < 0.05


def test_pytrees_are_new_and_keep_their_structure() -> None:
    model = EquinoxNet()
    drawn = lw.initialize(model, NORMAL, seed=1)
    assert jax.tree.structure(drawn) == jax.tree.structure(model)
    assert not np.array_equal(drawn.layers[0].weight, model.layers[0].weight)


def test_a_layer_more_does_not_change_the_others() -> None:
    params = linen_variables()["params"]
    first = lw.initialize(params, NORMAL)
    second = lw.initialize({"extra": {"kernel": jnp.ones((2, 2))}, **params}, NORMAL)
    jax.tree.map(np.testing.assert_array_equal, first, {name: second[name] for name in params})


def test_a_dict_has_no_layers_and_needs_rules() -> None:
    with pytest.raises(lw.RuleError, match=r"no rule says how to initialize conv\.kernel"):
        lw.initialize(linen_variables()["params"])


class OwnLinear(nnx.Linear):
    """A layer with another constructor, which may mean other initial values."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        super().__init__(2, 2, rngs=rngs)


class SameLinear(eqx.nn.Linear):
    pass


def test_the_defaults_are_for_layers_of_the_libraries() -> None:
    lw.initialize({"layer": nnx.Linear(2, 2, rngs=nnx.Rngs(0))})
    lw.initialize(SameLinear(2, 2, key=jax.random.key(0)))
    with pytest.raises(lw.RuleError, match=r"no rule says how to initialize layer\.kernel"):
        lw.initialize({"layer": OwnLinear(rngs=nnx.Rngs(0))})


def test_recurrent_cells_of_equinox_have_defaults() -> None:
    for cell in (eqx.nn.LSTMCell, eqx.nn.GRUCell):
        drawn: Any = lw.initialize(cell(3, 4, key=jax.random.key(0)))
        assert float(jnp.abs(drawn.weight_hh).max()) <= 0.5
        assert float(jnp.abs(drawn.bias).max()) <= 0.5


def test_a_model_without_values_gets_them() -> None:
    with pytest.warns(UserWarning, match=r"drop\.rngs\.count, drop\.rngs\.key are still on meta"):
        model = lw.initialize(nnx.eval_shape(TiedNnx), [lw.Rule("embed.embedding", wins=True)])
    assert {leaf.device for leaf in lw.tree(model).select("{again,embed,norm}.**")} == {
        lw.tree({"w": jnp.ones(1)})["w"].device
    }
    assert model.head.kernel is model.embed.embedding


def test_the_dtype_and_the_sharding_stay() -> None:
    sharding = jax.sharding.NamedSharding(
        jax.make_mesh((8,), ("data",), devices=jax.devices("cpu")), jax.sharding.PartitionSpec("data")
    )
    params = {"w": jax.device_put(jnp.zeros((8, 2), jnp.bfloat16), sharding)}
    drawn = lw.initialize(params, NORMAL)
    assert (drawn["w"].dtype, drawn["w"].sharding) == (jnp.bfloat16, sharding)


@pytest.mark.parametrize("cell", [nnx.GRUCell, nnx.OptimizedLSTMCell, nnx.SimpleCell, nnx.LSTMCell])
def test_recurrent_cells_of_nnx_have_defaults_by_their_hidden_size(cell: Any) -> None:
    drawn = lw.initialize(cell(30, 16, rngs=nnx.Rngs(0)))
    largest = [abs(leaf.numpy()).max() for leaf in lw.tree(drawn).select(lw.where(role="rnn.*"))]
    assert min(largest) > 0.15  # a bias has only 16 values
    assert 0.24 < max(largest) <= 0.25  # 1 / sqrt(16)
