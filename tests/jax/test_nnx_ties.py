"""Ties of Flax NNX: made, kept through what NNX does, undone with a warning, and refused where NNX has no way."""

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import leafwise as lw


class Net(nnx.Module):
    def __init__(self, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.embed = nnx.Embed(5, 3, rngs=rngs)
        self.head = nnx.Linear(5, 3, use_bias=False, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(3, rngs=rngs)


class GraphNet(nnx.Module, pytree=False):
    """A module that is not a pytree, with its layers in a list."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layers = [nnx.Linear(3, 3, rngs=rngs) for _ in range(2)]


def tied() -> Net:
    return lw.tie(Net(), "head.kernel", to="embed.embedding", keep="source")


def is_tied(net: Any) -> bool:
    return net.head.kernel is net.embed.embedding


def undone(model: Any) -> list[str]:
    """The ties that a walk reports as undone. It must warn of them, and of nothing else."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [str(tie.path) for tie in lw.tree(model).undone]
    assert [warning.category for warning in caught] == [lw.TieWarning] * bool(found)
    return found


@pytest.mark.parametrize("keep", ["source", "target", "mean"])
def test_a_tie_is_one_variable_with_the_values_that_were_asked_for(keep: Any) -> None:
    net = Net()
    source, target = np.asarray(net.embed.embedding[...]), np.asarray(net.head.kernel[...])
    expected = {"source": source, "target": target, "mean": ((source.astype(float) + target) / 2).astype("float32")}
    variable = net.embed.embedding
    assert lw.tie(net, "head.kernel", to="embed.embedding", keep=keep) is net
    assert net.head.kernel is net.embed.embedding is variable
    np.testing.assert_array_equal(net.head.kernel[...], expected[keep])
    assert [[str(name.path) for name in tie.names] for tie in lw.ties(net)] == [["embed.embedding", "head.kernel"]]
    assert sum(leaf.size for leaf in lw.tree(Net())) - sum(leaf.size for leaf in lw.tree(net)) == 15
    gradient = nnx.grad(lambda m: m.embed.embedding[...].sum() + m.head.kernel[...].sum())(net)
    assert float(gradient["embed"]["embedding"][...][0, 0]) == 2.0


def test_different_values_are_refused_without_keep() -> None:
    with pytest.raises(lw.TieError, match=r"their values differ; use keep=\"source\""):
        lw.tie(Net(), "head.kernel", to="embed.embedding")


KEPT: dict[str, Callable[[Net], Any]] = {
    "split and merge": lambda net: nnx.merge(*nnx.split(net)),
    "split by filters": lambda net: nnx.merge(*nnx.split(net, nnx.Param, ...)),
    "clone": nnx.clone,
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "nnx.jit": lambda net: nnx.jit(lambda m: m)(net),
    "nnx.recursive_map": lambda net: nnx.recursive_map(lambda path, node: node, net),
    "a map over Variables": lambda net: jax.tree.map(lambda x: x, net, is_leaf=lambda x: isinstance(x, nnx.Variable)),
    "update with its state": lambda net: nnx.update(net, nnx.state(net)) or net,
    "update with a mapped state": lambda net: nnx.update(net, jax.tree.map(jnp.copy, nnx.state(net))) or net,
    "pure dict": lambda net: nnx.update(net, nnx.to_pure_dict(nnx.state(net))) or net,
    "eval_shape, then update": lambda net: _filled(nnx.eval_shape(lambda: tied()), net),
    "vmap": lambda net: nnx.vmap(lambda _: tied(), in_axes=0)(jnp.arange(3)),
}


def _filled(abstract: Any, net: Net) -> Any:
    nnx.update(abstract, nnx.state(net))
    return abstract


@pytest.mark.parametrize("operation", KEPT)
def test_a_tie_survives_what_nnx_does(operation: str) -> None:
    net = KEPT[operation](tied())
    assert is_tied(net)
    assert undone(net) == []
    net.embed.embedding[...] = net.embed.embedding[...] + 1
    np.testing.assert_array_equal(net.head.kernel[...], net.embed.embedding[...])


def test_a_tie_survives_an_update_under_nnx_jit() -> None:
    net = tied()
    before = np.asarray(net.head.kernel[...])

    @nnx.jit
    def double(m: Net) -> None:
        m.embed.embedding[...] = m.embed.embedding[...] * 2

    double(net)
    assert is_tied(net)
    np.testing.assert_array_equal(net.head.kernel[...], before * 2)


def test_a_tie_survives_a_loop_and_recomputation() -> None:
    net = tied()
    before = np.asarray(net.head.kernel[...])

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def add(m: Net, number: jax.Array) -> Net:
        m.embed.embedding[...] = m.embed.embedding[...] + number
        return m

    net = add(net, jnp.arange(3.0))
    nnx.remat(lambda m: m.head.kernel[...].sum())(net)
    assert is_tied(net)
    assert undone(net) == []
    np.testing.assert_allclose(net.head.kernel[...], before + 3, rtol=1e-6)


def test_a_tie_survives_a_save_and_a_restore_by_orbax(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    net, other = tied(), tied()
    net.embed.embedding[...] = net.embed.embedding[...] + 1
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(net))
        checkpointer.wait_until_finished()
        nnx.update(other, checkpointer.restore(tmp_path / "state", nnx.state(other)))
    assert is_tied(other)
    assert undone(other) == []
    np.testing.assert_array_equal(other.head.kernel[...], net.head.kernel[...])


@pytest.mark.parametrize("options", [{"ref": True}, {"hijax": True}, {"hijax": True, "ref": True}], ids=str)
def test_variables_of_other_kinds_are_tied_and_untied(options: dict[str, bool]) -> None:
    net = nnx.Dict(a=nnx.Param(jnp.ones(2), **options), b=nnx.Param(jnp.zeros(2), **options))
    lw.tie(net, "b", to="a", keep="target")
    assert net["b"] is net["a"]
    np.testing.assert_array_equal(net["a"][...], np.zeros(2))
    lw.untie(net, "b")
    assert net["b"] is not net["a"]
    net["b"][...] = jnp.full(2, 5.0)
    np.testing.assert_array_equal(net["a"][...], np.zeros(2))
    assert net["b"].get_metadata() == net["a"].get_metadata()


def _assign_a_parameter(net: Net) -> Net:
    net.head.kernel = nnx.Param(jnp.zeros((5, 3)))
    return net


def _assign_an_array(net: Net) -> Net:
    net.head.kernel = net.head.kernel[...]  # type: ignore[assignment]
    return net


LOST: dict[str, Callable[[Net], Any]] = {
    "jax.tree.map": lambda net: jax.tree.map(lambda x: x, net),
    "jax.jit": lambda net: jax.jit(lambda m: m)(net),
    "eqx.combine": lambda net: eqx.combine(*eqx.partition(net, eqx.is_array)),
    "another Param": _assign_a_parameter,
    "an array": _assign_an_array,
}


@pytest.mark.parametrize("operation", LOST)
def test_where_nnx_loses_a_tie_the_next_walk_warns(operation: str) -> None:
    net = LOST[operation](tied())
    assert not is_tied(net)
    assert undone(net) == ["head.kernel"]


def test_a_tie_that_came_undone_can_be_made_again_or_given_up() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.TieWarning)
        again = lw.tie(_assign_a_parameter(tied()), "head.kernel", to="embed.embedding", keep="source")
        given_up = lw.untie(_assign_a_parameter(tied()), "head.kernel")
        other = lw.tie(_assign_a_parameter(tied()), "head.kernel", to="embed.embedding", keep="target")
    assert is_tied(again)
    assert is_tied(other)
    assert undone(again) == undone(given_up) == undone(other) == []


def test_a_name_that_is_tied_to_another_leaf_leaves_its_old_tie() -> None:
    rngs = nnx.Rngs(0)
    net = nnx.Dict({name: nnx.Linear(3, 3, rngs=rngs) for name in "abc"})
    lw.tie(net, "b.kernel", to="a.kernel", keep="source")
    net["b"].kernel = nnx.Param(net["b"].kernel[...])
    with pytest.warns(lw.TieWarning, match=r"b\.kernel is no longer a\.kernel"):
        lw.tie(net, "b.kernel", to="c.kernel", keep="source")
    assert net["b"].kernel is net["c"].kernel
    assert undone(net) == []


@pytest.mark.parametrize("model", [nnx.Dict, nnx.List, GraphNet])
def test_ties_in_containers_and_graphs_of_nnx_are_recorded_without_a_trace(model: Any) -> None:
    rngs = nnx.Rngs(0)
    layers = [nnx.Linear(3, 3, rngs=rngs) for _ in range(2)]
    net: Any = (
        model() if model is GraphNet else model({"0": layers[0], "1": layers[1]} if model is nnx.Dict else layers)
    )
    first, second = ("layers.0.kernel", "layers.1.kernel") if model is GraphNet else ("0.kernel", "1.kernel")
    lw.tie(net, second, to=first, keep="source")
    net = nnx.merge(*nnx.split(net))
    assert len(lw.ties(net)) == 1
    if model is not GraphNet:
        assert len(net) == 2
        assert list(net) == (["0", "1"] if model is nnx.Dict else [net[0], net[1]])
    layer = (net.layers if model is GraphNet else net)["1" if model is nnx.Dict else 1]
    layer.kernel = nnx.Param(jnp.ones((3, 3)))
    assert undone(net) == [second]


def test_release_leaves_no_trace() -> None:
    net = Net()
    attributes = set(vars(net))
    lw.tie(net, "head.kernel", to="embed.embedding", keep="source")
    assert set(vars(net)) > attributes
    assert lw.release_ties(net) is net
    assert set(vars(net)) == attributes
    assert is_tied(net)
    assert undone(_assign_a_parameter(net)) == []


def test_keep_ties_records_ties_that_were_made_by_hand() -> None:
    net = Net()
    net.head.kernel = net.embed.embedding
    assert undone(_assign_a_parameter(copy.deepcopy(net))) == []
    lw.keep_ties(net)
    assert undone(_assign_a_parameter(copy.deepcopy(net))) == ["head.kernel"]
    assert undone(lw.release_ties(_with_own_head(net))) == []
    with pytest.raises(lw.Unsupported, match="only one value for a tie"):
        lw.keep_ties(tied(), keep="source")


def _with_own_head(net: Net) -> Net:
    return lw.untie(net, "head.kernel")


def test_untie_gives_an_equal_variable_of_the_same_kind_with_its_own_memory() -> None:
    net = tied()
    net.embed.embedding.set_metadata(note="kept")
    assert lw.untie(net, "head.kernel") is net
    assert not is_tied(net)
    assert type(net.head.kernel) is nnx.Param
    assert net.head.kernel.get_metadata("note") == "kept"
    np.testing.assert_array_equal(net.head.kernel[...], net.embed.embedding[...])
    assert undone(net) == []
    equal = lw.ties(net, equal_untied=True).equal_untied
    assert equal is not None
    assert ["embed.embedding", "head.kernel"] in [[str(leaf.path) for leaf in group.leaves] for group in equal]
    net.embed.embedding[...].delete()  # as donation does
    assert float(net.head.kernel[...].sum()) == float(np.asarray(net.head.kernel[...]).sum())


def test_untie_copies_a_module_that_is_used_twice() -> None:
    net = Net()
    net.blocks[1] = net.blocks[0]
    lw.keep_ties(net)
    lw.untie(net, "blocks.1")
    assert net.blocks[1] is not net.blocks[0]
    assert net.blocks[1].kernel is not net.blocks[0].kernel
    np.testing.assert_array_equal(net.blocks[1].kernel[...], net.blocks[0].kernel[...])
    assert len(lw.ties(net)) == 0
    assert undone(net) == []
    net.blocks[0].kernel[...].delete()
    np.asarray(net.blocks[1].kernel[...])


def test_three_names_stay_two_when_one_is_untied() -> None:
    rngs = nnx.Rngs(0)
    net = nnx.Dict({name: nnx.Linear(3, 3, rngs=rngs) for name in "abc"})
    lw.tie(net, "{b,c}.kernel", to="a.kernel", keep="source")
    lw.untie(net, "b.kernel")
    assert net["c"].kernel is net["a"].kernel
    net["c"].kernel = nnx.Param(jnp.ones((3, 3)))
    assert undone(net) == ["c.kernel"]


def test_modules_are_tied_leaf_by_leaf() -> None:
    net = lw.tie(Net(), "blocks.1", to="blocks.0", keep="source")
    assert net.blocks[1].kernel is net.blocks[0].kernel
    assert net.blocks[1].bias is net.blocks[0].bias
    assert net.blocks[1] is not net.blocks[0]


@pytest.mark.parametrize("to_tied", [True, False])
def test_ties_survive_a_save_and_a_load(tmp_path: Path, to_tied: bool) -> None:
    net = tied()
    lw.save(net, tmp_path / "net.safetensors")
    assert lw.verify(tmp_path / "net.safetensors")
    other = tied() if to_tied else Net(1)
    lw.load(other, tmp_path / "net.safetensors")
    assert is_tied(other)
    np.testing.assert_array_equal(other.head.kernel[...], net.embed.embedding[...])
    assert undone(_assign_a_parameter(other)) == ["head.kernel"]


class Special(nnx.Param[Any]):
    pass


def _with_kernel(variable: Any) -> Net:
    net = Net()
    net.head.kernel = variable
    return net


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = {
    "another type": (
        lambda: _with_kernel(Special(jnp.ones((5, 3)))),
        {},
        lw.TieError,
        r"cannot tie head\.kernel to embed\.embedding: one is a Special and the other a Param",
    ),
    "another kind": (
        lambda: _with_kernel(nnx.BatchStat(jnp.ones((5, 3)))),
        {},
        lw.TieError,
        r"head\.kernel is a buffer and embed\.embedding is a parameter",
    ),
    "another shape": (
        lambda: _with_kernel(nnx.Param(jnp.ones((5, 4)))),
        {},
        lw.TieError,
        r"their shapes differ, head\.kernel is 5×4 and embed\.embedding would give 5×3",
    ),
    "another dtype": (
        lambda: _with_kernel(nnx.Param(jnp.ones((5, 3), jnp.bfloat16))),
        {},
        lw.TieError,
        r"cast one first: model\.head\.kernel\.set_value\(model\.head\.kernel\.astype\(jnp\.float32\)\)",
    ),
    "another device": (
        lambda: _with_kernel(nnx.Param(jax.device_put(jnp.ones((5, 3)), jax.devices("cpu")[1]))),
        {},
        lw.TieError,
        r"is on cpu:1 and embed\.embedding is on (cpu|gpu:0); move one first: .*jax\.devices\(\"[cg]pu\"\)\[0\]",
    ),
    "a transpose": (
        lambda: _with_kernel(nnx.Param(jnp.ones((3, 5)))),
        {"transpose": True},
        lw.Unsupported,
        r"flax nnx cannot tie head\.kernel to a transpose of a Variable: .*self\.embed\.attend\(x\)",
    ),
    "a slice": (
        lambda: _with_kernel(nnx.Param(jnp.ones((2, 3)))),
        {"slice": slice(0, 2)},
        lw.Unsupported,
        r"flax nnx cannot tie head\.kernel to a view of a Variable",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_nnx_cannot_tie_is_refused_and_nothing_changes(case: str) -> None:
    make, options, error, message = REFUSED[case]
    net = make()
    kernel, attributes = net.head.kernel, set(vars(net))
    with pytest.raises(error, match=message):
        lw.tie(net, "head.kernel", to="embed.embedding", keep="source", **options)
    assert net.head.kernel is kernel
    assert set(vars(net)) == attributes


def test_traced_and_abstract_variables_are_tied_if_no_value_is_needed() -> None:
    abstract = nnx.eval_shape(tied)
    assert is_tied(abstract)
    lw.untie(abstract, "head.kernel")
    assert not is_tied(abstract)
    assert is_tied(lw.tie(abstract, "head.kernel", to="embed.embedding", keep="source"))
    for keep in (None, "mean"):
        with pytest.raises(lw.Error, match=r"head\.kernel.*traced value"):
            nnx.eval_shape(lambda keep=keep: lw.tie(Net(), "head.kernel", to="embed.embedding", keep=keep))


def test_the_code_of_the_messages_makes_the_tie_possible() -> None:
    net = _with_kernel(nnx.Param(jnp.ones((5, 3), jnp.bfloat16)))
    with pytest.raises(lw.TieError) as error:
        lw.tie(net, "head.kernel", to="embed.embedding", keep="source")
    exec(str(error.value).partition("cast one first: ")[2], {"model": net, "jnp": jnp})
    assert is_tied(lw.tie(net, "head.kernel", to="embed.embedding", keep="source"))


def test_a_state_is_not_tied_but_its_module() -> None:
    with pytest.raises(lw.Unsupported, match=r"cannot tie blocks\.0\.kernel in an nnx\.State: .*tie it in the module"):
        lw.tie(nnx.state(Net()), "blocks.1.kernel", to="blocks.0.kernel", keep="source")


def test_a_module_that_refers_to_the_one_above_is_not_copied() -> None:
    class Child(nnx.Module):
        def __init__(self, parent: nnx.Module) -> None:
            self.parent = parent
            self.weight = nnx.Param(jnp.ones(3))

    class Parent(nnx.Module):
        def __init__(self) -> None:
            self.first = Child(self)
            self.second = self.first

    with pytest.raises(lw.TieError, match="cannot copy second: it refers to the module that contains it"):
        lw.untie(Parent(), "second")


def test_a_tie_in_a_part_of_a_model_is_recorded_together_with_the_rest() -> None:
    rngs = nnx.Rngs(0)
    net = nnx.Dict(inner=nnx.Dict({name: nnx.Linear(3, 3, rngs=rngs) for name in "ab"}), c=nnx.Linear(3, 3, rngs=rngs))
    lw.tie(net, "c.kernel", to="inner.a.kernel", keep="source")
    lw.tie(lw.tree(net)["inner"], "b.kernel", to="a.kernel", keep="source")
    assert net["c"].kernel is net["inner"]["b"].kernel
    net["c"].kernel = nnx.Param(jnp.ones((3, 3)))
    assert undone(net) == ["c.kernel"]
