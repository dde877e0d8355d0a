"""`lw.layer_decay` in JAX, which sorts dicts and NNX modules by name: depth does not come from their order."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import leafwise as lw


def rates(params: Any, rule: Any = None) -> dict[str, float]:
    groups = lw.groups(params, [rule or lw.layer_decay(0.5)], lr=1.0)
    return {name: group["lr"] for group in groups for name in group["param_names"]}


def block() -> dict[str, Any]:
    return {"up": {"kernel": jnp.ones((4, 8))}, "down": {"kernel": jnp.ones((8, 4))}}


def params(**outside: Any) -> dict[str, Any]:
    return {"embed": {"embedding": jnp.ones((6, 4))}, **{f"layers_{n}": block() for n in range(12)}, **outside}


class NnxBlock(nnx.Module):
    def __init__(self) -> None:
        self.up, self.down = nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 4, rngs=nnx.Rngs(0))


class NnxModel(nnx.Module):
    def __init__(self) -> None:
        self.embed = nnx.Embed(6, 4, rngs=nnx.Rngs(0))
        self.layers = nnx.List([NnxBlock() for _ in range(12)])
        self.norm = nnx.LayerNorm(4, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(4, 6, rngs=nnx.Rngs(0))


class EquinoxModel(eqx.Module):
    zebra: Any
    layers: list[Any]
    attic: Any


def test_blocks_are_in_the_order_of_their_numbers() -> None:
    made = params(head={"kernel": jnp.ones((4, 6))}, encoder_norm={"scale": jnp.ones(4)})
    for tree in (made, jax.jit(lambda tree: tree)(made), {"params": jax.tree.map(lambda array: array, made)}):
        prefix = "params." if "params" in tree else ""
        for rule in (lw.layer_decay(0.5), lw.layer_decay(0.5, blocks=f"{prefix}layers_*")):
            found = rates(tree, rule)
            for number in range(12):
                assert found[f"{prefix}layers_{number}.up.kernel"] == 0.5 ** (12 - number)
            assert found[f"{prefix}embed.embedding"] == 0.5**13
            assert found[f"{prefix}head.kernel"] == found[f"{prefix}encoder_norm.scale"] == 1.0


def test_nnx_modules_before_and_after_a_merge() -> None:
    model = NnxModel()
    for each in (model, nnx.merge(*nnx.split(model)), nnx.state(model, nnx.Param)):
        found = rates(each)
        for number in range(12):
            assert found[f"layers.{number}.up.kernel"] == 0.5 ** (12 - number)
        assert found["embed.embedding"] == 0.5**13
        assert found["norm.scale"] == found["head.kernel"] == 1.0


def test_the_account_lists_what_is_placed_by_name() -> None:
    groups = lw.groups(params(head={"kernel": jnp.ones((4, 6))}), [lw.layer_decay(0.5)], lr=1.0)
    assert groups.rules[0].note == (
        "14 levels by layers_*; before them by name: embed.embedding; after them by name: head.kernel"
    )


def test_leaves_with_other_names_must_be_placed() -> None:
    tree = params(adapter={"kernel": jnp.ones((4, 4))}, LayerNorm_0={"scale": jnp.ones(4)})
    with pytest.raises(
        lw.RuleError, match=r'before and after the blocks; LayerNorm_0\.scale, adapter\.kernel: .*first="…".*last="…"$'
    ):
        rates(jax.jit(lambda tree: tree)(tree))
    with pytest.raises(lw.RuleError, match=r"the blocks; LayerNorm_0\.scale: name"):
        rates(tree, lw.layer_decay(0.5, first="adapter.*"))
    found = rates(tree, lw.layer_decay(0.5, first="adapter.*", last="LayerNorm_0.*"))
    assert (found["adapter.kernel"], found["layers_0.up.kernel"], found["LayerNorm_0.scale"]) == (0.5**13, 0.5**12, 1)
    with pytest.raises(lw.RuleError, match="last='nowhere' matches none of its leaves"):
        rates(tree, lw.layer_decay(0.5, last="nowhere"))
    with pytest.raises(lw.RuleError, match=r"adapter\.kernel is in first= and in last="):
        rates(tree, lw.layer_decay(0.5, first="adapter.*", last="adapter.*"))


def test_stages_are_counted_by_their_numbers_and_leaves_between_blocks_must_be_placed() -> None:
    def stage(width: int) -> dict[str, Any]:
        return {
            f"blocks_{n}": {name: {"kernel": jnp.ones((width, width))} for name in ("up", "down")} for n in range(11)
        }

    tree = {f"stages_{number}": stage(2 + number) for number in range(2)}
    found = rates(tree)
    assert found["stages_0.blocks_0.up.kernel"] == 0.5**22
    assert found["stages_0.blocks_10.up.kernel"] == 0.5**12
    assert found["stages_1.blocks_2.up.kernel"] == 0.5**9
    tree["stages_1"]["downsample"] = {"kernel": jnp.ones((2, 3))}
    with pytest.raises(lw.RuleError, match=r"the blocks; stages_1\.downsample\.kernel: name"):
        rates(tree)


def test_blocks_of_different_names_have_no_order() -> None:
    with pytest.raises(lw.RuleError, match=r"matches a_0 and b_0, and names are sorted"):
        rates({"a_0": block(), "b_0": block()}, lw.layer_decay(0.5, blocks="*_0"))


def test_equinox_modules_keep_the_order_of_their_fields() -> None:
    linear = eqx.nn.Linear(4, 4, key=jax.random.key(0))
    model = EquinoxModel(linear, [{"up": linear, "down": linear} for _ in range(11)], linear)
    for found, prefix in ((rates(model), ""), (rates({"model": model}), "model.")):
        assert found[f"{prefix}zebra.weight"] == 0.5**12
        assert found[f"{prefix}layers.2.up.weight"] == 0.5**9
        assert found[f"{prefix}attic.weight"] == 1.0


def test_a_schedule_cannot_be_scaled() -> None:
    with pytest.raises(lw.RuleError, match=r"lr is a schedule; .*lr \* schedule\(step\)"):
        lw.groups(params(), [lw.layer_decay(0.5)], lr=optax.constant_schedule(0.1))
