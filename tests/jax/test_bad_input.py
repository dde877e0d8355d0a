"""Unusual leaves and nodes of JAX: each is handled exactly, or refused with an error that names it."""

import collections
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import core, linen, nnx, struct
from flax.training import train_state

import leafwise as lw

TRACED = "it is a traced value inside jit, grad or vmap"
DELETED = "it was deleted, for example because it was donated"


class Net(nnx.Module):
    def __init__(self, seed: int = 0) -> None:
        self.layer = nnx.Linear(3, 2, rngs=nnx.Rngs(seed))
        self.drop = nnx.Dropout(0.1, rngs=nnx.Rngs(seed))


def params(value: float = 1.0) -> dict[str, Any]:
    return {"a": {"w": jnp.full((2, 2), value, "float32")}}


# -- values that cannot be read ------------------------------------------------------------------------------

NEEDS_VALUES: dict[str, Callable[[Any, Path], Any]] = {
    "numpy": lambda model, folder: next(iter(lw.tree(model))).numpy(),
    "stats": lambda model, folder: lw.stats(model),
    "save": lambda model, folder: lw.save(model, folder / "x.safetensors"),
    "save in the background": lambda model, folder: lw.save(model, folder / "x.safetensors", background=True).wait(),
    "diff": lambda model, folder: lw.diff(model, model),
    "check": lambda model, folder: lw.check(model),
    "image": lambda model, folder: lw.image(model, max(lw.tree(model), key=lambda leaf: leaf.size).path),
    "equal": lambda model, folder: lw.ties(model, equal_untied=True),
    "average": lambda model, folder: lw.Average(model),
}


def inside_jit(model: Any, function: Callable[[Any], Any]) -> Any:
    """What a function returns that is called while a model is traced."""
    results = []
    jit = nnx.jit if isinstance(model, nnx.Module) else jax.jit
    jit(lambda traced: results.append(function(traced)) or 0)(model)
    return results[0]


@pytest.mark.parametrize("model", [params(), Net()], ids=["pytree", "nnx"])
def test_a_traced_model_is_shown(model: Any) -> None:
    outside = lw.tree(model)
    text, facts = inside_jit(
        model,
        lambda traced: (str(lw.tree(traced)), {str(leaf.path): (leaf.shape, leaf.dtype) for leaf in lw.tree(traced)}),
    )
    assert "on traced" in text
    assert facts == {str(leaf.path): (leaf.shape, leaf.dtype) for leaf in outside}


@pytest.mark.parametrize("verb", NEEDS_VALUES)
@pytest.mark.parametrize("model", [params(), Net()], ids=["pytree", "nnx"])
def test_what_needs_values_refuses_a_traced_model_and_names_a_leaf(model: Any, verb: str, tmp_path: Path) -> None:
    with pytest.raises(lw.Error, match=TRACED) as error:
        inside_jit(model, lambda traced: NEEDS_VALUES[verb](traced, tmp_path))
    assert any(str(leaf.path) in str(error.value) for leaf in lw.tree(model))


@pytest.mark.parametrize("model", [params(), Net()], ids=["pytree", "nnx"])
def test_a_traced_model_is_not_changed(model: Any) -> None:
    rule = lw.Rule("**", init="zeros")
    for change in (lambda traced: lw.load(traced, model), lambda traced: lw.initialize(traced, rule)):
        with pytest.raises(lw.Error, match=rf"cannot (load|initialize) [\w.]+.*{TRACED}.*nothing was changed"):
            inside_jit(model, change)


def test_gradients_and_batches_are_shown_while_they_are_traced() -> None:
    seen: list[Any] = []

    def loss(tree: Any) -> Any:
        seen.append([(leaf.shape, leaf.device) for leaf in lw.tree(tree)])
        return tree["a"]["w"].sum()

    jax.grad(loss)(params())
    jax.vmap(loss)({"a": {"w": jnp.ones((5, 3))}})
    assert seen == [[((2, 2), "traced")], [((3,), "traced")]]


def donated() -> dict[str, Any]:
    model = params()
    jax.jit(lambda w: w + 1, donate_argnums=0)(model["a"]["w"])
    assert model["a"]["w"].is_deleted()
    return model


def donated_nnx() -> nnx.Module:
    net = nnx.Dict(layer=nnx.Dict(kernel=nnx.Param(jnp.ones((2, 2)))))
    net["layer"]["kernel"][...].delete()
    return net


@pytest.mark.parametrize("make", [donated, donated_nnx])
def test_a_deleted_leaf_is_shown_and_can_be_replaced(make: Callable[[], Any]) -> None:
    model = make()
    path = str(next(iter(lw.tree(model))).path)
    assert "2×2" in str(lw.tree(model))
    loaded = lw.load(model, {path: np.full((2, 2), 3, "float32")})
    np.testing.assert_array_equal(next(iter(lw.tree(loaded))).numpy(), np.full((2, 2), 3))


@pytest.mark.parametrize("verb", NEEDS_VALUES)
@pytest.mark.parametrize("make", [donated, donated_nnx])
def test_what_needs_values_refuses_a_deleted_leaf_by_name(make: Callable[[], Any], verb: str, tmp_path: Path) -> None:
    model = make()
    with pytest.raises(lw.Error, match=DELETED) as error:
        NEEDS_VALUES[verb](model, tmp_path)
    assert str(next(iter(lw.tree(model))).path) in str(error.value)


def test_other_leaves_are_measured_and_the_deleted_one_is_listed() -> None:
    model = {**donated(), "b": jnp.ones(3)}
    stats = lw.stats(model)
    assert list(stats) == ["b"]
    assert DELETED in stats.skipped["a.w"]
    assert [(str(change.path), change.kind) for change in lw.diff(model, model) if change.kind != "same"] == [
        ("a.w", "unknown")
    ]


@pytest.mark.parametrize("kind", ["pytree", "nnx"])
def test_a_background_save_keeps_values_that_are_donated_meanwhile(kind: str, tmp_path: Path) -> None:
    array = jnp.arange(100_000.0)
    model: Any = {"w": array} if kind == "pytree" else nnx.Dict(w=nnx.Param(array))
    saving = lw.save(model, tmp_path / "x.safetensors", background=True)
    new = jax.jit(lambda w: w * 0 + 7, donate_argnums=0)(array)
    array.delete()
    saving.wait()
    assert float(new[1]) == 7
    np.testing.assert_array_equal(lw.tree(tmp_path / "x.safetensors")["w"].numpy(), np.arange(100_000.0, dtype="f"))


# -- round trips ---------------------------------------------------------------------------------------------


def blank(leaf: Any) -> Any:
    """A leaf like this one, with zeros."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jnp.zeros_like(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        return leaf ^ leaf if leaf.dtype == bool else leaf * 0
    return np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else leaf


def facts(leaf: Any) -> Any:
    """What must be equal after a round trip."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), np.asarray(jax.random.key_data(leaf)).tobytes(), leaf.shape
    if isinstance(leaf, jax.Array):
        return "jax", leaf.dtype, leaf.shape, np.asarray(leaf).tobytes(), leaf.weak_type
    return (type(leaf), leaf.dtype, leaf.tobytes()) if isinstance(leaf, np.ndarray) else (type(leaf), leaf)


def round_trip(model: Any, folder: Path) -> None:
    lw.save(model, folder / "x.safetensors")
    assert lw.verify(folder / "x.safetensors")
    target = jax.tree.map(blank, model)
    before = [facts(leaf) for leaf in jax.tree.leaves(target)]
    are_values = not any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(target))
    loaded = lw.load(target, folder / "x.safetensors")
    assert jax.tree.structure(loaded) == jax.tree.structure(model)
    assert list(map(facts, jax.tree.leaves(loaded))) == list(map(facts, jax.tree.leaves(model)))
    assert lw.diff(loaded, model).same
    if are_values:
        assert [facts(leaf) for leaf in jax.tree.leaves(target)] == before


@jax.tree_util.register_pytree_node_class
class Unkeyed:
    """A node that JAX flattens without keys."""

    def __init__(self, first: Any, second: Any, note: str) -> None:
        self.first, self.second, self.note = first, second, note

    def tree_flatten(self) -> tuple[tuple[Any, Any], str]:
        return (self.first, self.second), self.note

    @classmethod
    def tree_unflatten(cls, note: str, children: tuple[Any, Any]) -> "Unkeyed":
        return cls(*children, note)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    weight: Any
    note: str = dataclasses.field(metadata={"static": True}, default="static")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Static:
    number: int


@struct.dataclass
class FlaxStruct:
    weight: Any
    width: int = struct.field(pytree_node=False, default=3)


class Pair(NamedTuple):
    x: Any
    y: Any


OPTIMIZER = optax.adam(1e-3)


def training() -> Any:
    variables = linen.Dense(2).init(jax.random.key(0), jnp.ones((1, 3)))
    state: Any = train_state.TrainState
    return state.create(apply_fn=None, params=variables["params"], tx=OPTIMIZER)


MODELS: dict[str, Callable[[], Any]] = {
    "NumPy and JAX": lambda: {"a": jnp.ones(2), "n": np.arange(3.0), "l": [jnp.ones(1), np.ones(2, "f")]},
    "plain values": lambda: {
        "a": jnp.ones(2),
        "i": 3,
        "f": 2.5,
        "s": "text",
        "n": None,
        "b": True,
        "t": (1, jnp.ones(1)),
    },
    "weak types": lambda: {
        "a": jnp.asarray(1.5),
        "i": jnp.asarray(3),
        "full": jnp.full(2, 2.5),
        "b": jnp.asarray(True),
    },
    "scalars and empty": lambda: {"a": jnp.float32(2), "e": jnp.zeros((0, 3)), "f": jnp.zeros(0, "int8")},
    "no keys": lambda: {"x": Unkeyed(jnp.ones(2), {"y": jnp.ones(1)}, "note")},
    "registered dataclass": lambda: Registered({"a": jnp.ones(2)}, "other"),
    "static": lambda: {"s": Static(3), "w": jnp.ones(2)},
    "flax.struct": lambda: FlaxStruct({"a": jnp.ones(2)}, 5),
    "FrozenDict": lambda: core.freeze({"params": {"dense": {"kernel": jnp.ones((2, 2))}}}),
    "other dicts": lambda: {
        "o": collections.OrderedDict(b=jnp.ones(1), a=jnp.zeros(2)),
        "d": collections.defaultdict(list, {"x": jnp.ones(2)}),
    },
    "named tuples": lambda: {"p": Pair(jnp.ones(1), [jnp.ones(2), (jnp.ones(3),)])},
    "numbers as keys": lambda: {0: jnp.ones(1), 1: {2: jnp.full(2, 2.0)}},
    "numbers and names as keys": lambda: {"a": {0: jnp.ones(1)}, "b": {"0": jnp.full(1, 2.0)}},
    "tuples as keys": lambda: {(0, "a"): jnp.ones(1), (1, "b"): jnp.full(2, 3.0)},
    "dots in keys": lambda: {"a.b": jnp.ones(1), "a": {"c": jnp.full(1, 2.0)}, "x": {"c.d": {"w": jnp.ones(3)}}},
    "a flat dict": lambda: {"a.b": jnp.ones(1), "a.c": jnp.full(1, 2.0)},
    "empty containers": lambda: {"w": jnp.ones(1), "e": {}, "l": [], "t": ()},
    "TrainState": training,
    "Linen's Partitioned": lambda: {"k": linen.Partitioned(jnp.ones((2, 2)), names=("a", None))},
    "Partial": lambda: {"f": jax.tree_util.Partial(jnp.add, jnp.ones(2))},
    "filtered Equinox": lambda: eqx.filter(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0)), eqx.is_array),
    "Equinox's State": lambda: eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "x", mode="ema")[1],
}


@pytest.mark.parametrize("name", MODELS)
def test_values_and_types_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    round_trip(MODELS[name](), tmp_path)


STORED = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
STORED += ["bool", "int8", "uint16", "complex64"]
NOT_STORED = ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e4m3b11fnuz", "float8_e3m4", "float8_e4m3"]


def of_dtype(dtype: str) -> dict[str, Any]:
    return {"a": jnp.asarray([[1.0, 0.5, 1.0], [0.5, 1.0, 1.0]]).astype(dtype)}


@pytest.mark.parametrize("dtype", STORED)
def test_dtypes_survive_a_round_trip(dtype: str, tmp_path: Path) -> None:
    model = of_dtype(dtype)
    lw.save(model, tmp_path / "x.safetensors")
    loaded = lw.load({"a": jnp.zeros((2, 3), dtype)}, tmp_path / "x.safetensors")
    assert facts(loaded["a"]) == facts(model["a"])
    assert lw.diff(loaded, model).same
    other = {"a": model["a"].at[0, 0].set(jnp.zeros((), dtype))}
    assert facts(other["a"]) == facts(model["a"]) or not lw.diff(other, model).same


@pytest.mark.parametrize("dtype", NOT_STORED)
def test_dtypes_that_no_file_stores_are_refused_by_name(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(lw.Error, match=f"cannot save a: safetensors cannot store {dtype}; cast it first"):
        lw.save(of_dtype(dtype), tmp_path / "x.safetensors")
    assert dtype in str(lw.tree(of_dtype(dtype)))


@pytest.mark.parametrize("dtype", sorted({*STORED, *NOT_STORED} - {"complex64"}))
def test_statistics_are_those_of_the_values(dtype: str) -> None:
    model = of_dtype(dtype)
    row, values = lw.stats(model)["a"], np.asarray(model["a"]).astype("float64")
    assert (row.count, row.min, row.max) == (6, values.min(), values.max())
    assert row.mean == pytest.approx(values.mean())


def test_complex_numbers_are_refused_by_name() -> None:
    with pytest.raises(lw.Error, match="there are no statistics of complex64"):
        lw.stats(of_dtype("complex64"))


def test_gradients_of_integers_have_no_values(tmp_path: Path) -> None:
    model = {"g": np.zeros(2, jax.dtypes.float0), "b": jnp.ones(2)}
    assert list(lw.stats(model)) == ["b"]
    assert "g" in lw.stats(model).skipped
    with pytest.raises(lw.Error, match="cannot save g: safetensors cannot store void"):
        lw.save(model, tmp_path / "x.safetensors")


class Unregistered:
    def __init__(self) -> None:
        self.weight = jnp.ones(2)


@pytest.mark.parametrize("value", [jax.nn.relu, Unregistered()])
def test_what_no_file_contains_is_shown_and_refused_by_name(value: Any, tmp_path: Path) -> None:
    model = {"w": jnp.ones(2), "deep": [jnp.ones(1), value]}
    assert f"<{type(value).__name__}>" in str(lw.tree(model))
    with pytest.raises(lw.Error, match=r"cannot save deep\.1: (leafwise does not save|this .* holds arrays)"):
        lw.save(model, tmp_path / "x.safetensors")


class Unflattenable:
    pass


def _fail(node: Any) -> Any:
    raise ValueError("this node is broken")


jax.tree_util.register_pytree_node(Unflattenable, _fail, lambda *_: Unflattenable())


def test_a_node_that_cannot_be_flattened_is_named() -> None:
    with pytest.raises(lw.WalkError, match=r"cannot walk deep\.0: visiting it raised ValueError: this node is broken"):
        lw.tree({"w": jnp.ones(1), "deep": [Unflattenable()]})


# -- keys ----------------------------------------------------------------------------------------------------

IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_keys_survive_a_round_trip(impl: str, tmp_path: Path) -> None:
    round_trip({"k": jax.random.key(3, impl=impl), "many": jax.random.split(jax.random.key(1, impl=impl), 5)}, tmp_path)
    model = nnx.Dict(key=nnx.RngKey(jax.random.key(3, impl=impl)))
    lw.save(model, tmp_path / "nnx.safetensors")
    other = nnx.Dict(key=nnx.RngKey(jax.random.key(0, impl=impl)))
    lw.load(other, tmp_path / "nnx.safetensors")
    assert facts(other["key"].get_value()) == facts(model["key"].get_value())
    assert isinstance(other["key"], nnx.RngKey)


@pytest.mark.parametrize("kind", ["pytree", "nnx", "equinox"])
@pytest.mark.parametrize("first", IMPLEMENTATIONS)
@pytest.mark.parametrize("second", IMPLEMENTATIONS)
def test_keys_of_another_implementation_are_refused(kind: str, first: str, second: str, tmp_path: Path) -> None:
    def model(impl: str) -> Any:
        key = jax.random.key(3, impl=impl)
        return {"pytree": {"k": key}, "nnx": nnx.Dict(k=nnx.RngKey(key)), "equinox": Registered(key)}[kind]

    lw.save(model(first), tmp_path / "x.safetensors")
    for source in (tmp_path / "x.safetensors", model(first)):
        if first == second:
            lw.load(model(second), source)
            continue
        with pytest.raises(lw.LoadError, match=rf"is a key of {second} in the model but of {first}|shape: "):
            lw.load(model(second), source)


# -- abstract models, and dtypes that JAX does not make ------------------------------------------------------


def test_abstract_pytrees_are_shown_and_filled(tmp_path: Path) -> None:
    def init() -> dict[str, Any]:
        return {"w": jnp.ones((2, 3)), "k": jax.random.key(1), "n": {"b": jnp.arange(3)}}

    lw.save(init(), tmp_path / "x.safetensors")
    abstract = jax.eval_shape(init)
    assert {leaf.device for leaf in lw.tree(abstract)} == {"meta"}
    loaded = lw.load(abstract, tmp_path / "x.safetensors")
    assert list(map(facts, jax.tree.leaves(loaded))) == list(map(facts, jax.tree.leaves(init())))
    for verb in ("stats", "save", "numpy"):
        with pytest.raises(lw.Error, match="on meta and has no values"):
            NEEDS_VALUES[verb](abstract, tmp_path)


def test_abstract_arrays_are_filled_with_their_sharding() -> None:
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    abstract = {"w": jax.ShapeDtypeStruct((4, 3), jnp.float32, sharding=sharding)}
    values = np.arange(12, dtype="float32").reshape(4, 3)
    loaded = lw.load(abstract, {"w": values})
    assert loaded["w"].sharding == sharding
    np.testing.assert_array_equal(loaded["w"], values)


def test_abstract_modules_are_filled_in_place(tmp_path: Path) -> None:
    net = Net(5)
    lw.save(net, tmp_path / "x.safetensors")
    abstract = nnx.eval_shape(Net)
    assert {leaf.device for leaf in lw.tree(abstract)} == {"meta"}
    assert lw.load(abstract, tmp_path / "x.safetensors") is abstract
    assert list(map(facts, jax.tree.leaves(abstract))) == list(map(facts, jax.tree.leaves(net)))
    assert abstract.layer(jnp.ones((1, 3))).shape == (1, 2)


def test_wide_numbers_are_never_cut_in_silence(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        wide = {"w": jnp.asarray([1 / 3, 2 / 3]), "i": jnp.asarray([2**40])}
        lw.save(wide, tmp_path / "x.safetensors")
    message = r"JAX makes no arrays of (float|int)64 now; call jax\.config\.update\(\"jax_enable_x64\", True\) first"
    targets = [wide, {"w": jax.ShapeDtypeStruct((2,), "float64"), "i": jax.ShapeDtypeStruct((1,), "int64")}]
    targets += [nnx.Dict({name: nnx.Param(array) for name, array in target.items()}) for target in targets]
    for target in targets:
        with pytest.raises(lw.LoadError, match=rf"cannot load \w: .*{message}; nothing was changed"):
            lw.load(target, tmp_path / "x.safetensors")
    with pytest.raises(lw.LoadError, match="w is float32 in the model but float64 in the checkpoint; pass cast=True"):
        lw.load({"w": jnp.ones(2), "i": jnp.ones(1, "int32")}, tmp_path / "x.safetensors")
    assert lw.stats(wide)["i"].max == 2**40
    with jax.enable_x64(True):
        loaded = lw.load(targets[1], tmp_path / "x.safetensors")
    assert [facts(loaded[name]) for name in wide] == [facts(wide[name]) for name in wide]


def test_new_values_of_arrays_that_cannot_change_are_plain_zeros() -> None:
    zeros = lw.initialize(params(), lw.Rule("**", init="zeros"))["a"]["w"]
    assert np.asarray(zeros).tobytes() == np.zeros((2, 2), "float32").tobytes()


# -- modules of NNX ------------------------------------------------------------------------------------------


class GraphNet(nnx.Module, pytree=False):
    def __init__(self, value: float) -> None:
        self.weight = nnx.Param(jnp.full(2, value))
        self.layers = [nnx.Param(jnp.full(3, value)), nnx.Linear(1, 1, rngs=nnx.Rngs(int(value)))]
        self.array = np.full(2, value)
        self.note = "static"


def containers(value: float) -> nnx.Module:
    return nnx.Dict(
        tree=nnx.Param({"a": jnp.full(2, value), "b": [jnp.full(1, value)]}),
        text=nnx.Variable("text"),
        nothing=nnx.Variable(None),
        number=nnx.Variable(int(value)),
        array=nnx.Param(np.full(2, value)),
        list=nnx.List([nnx.Param(jnp.full(1, value)), nnx.relu]),
        steps=nnx.Sequential(nnx.Linear(1, 1, rngs=nnx.Rngs(int(value))), nnx.relu),
    )


def mutable(value: float, **options: bool) -> nnx.Module:
    return nnx.Dict(w=nnx.Param(jnp.full(2, value), **options))


NNX: dict[str, Callable[[float], Any]] = {
    "pytree=False": GraphNet,
    "containers": containers,
    "ref": lambda value: mutable(value, ref=True),
    "hijax": lambda value: mutable(value, hijax=True),
    "hijax and ref": lambda value: mutable(value, hijax=True, ref=True),
}


@pytest.mark.parametrize("name", NNX)
def test_variables_of_all_kinds_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    source, target = NNX[name](2.0), NNX[name](1.0)
    variables = [leaf.columns.row_values[leaf.row] for leaf in lw.tree(target)]
    lw.save(source, tmp_path / "x.safetensors")
    assert not lw.diff(target, source).same
    assert lw.load(target, tmp_path / "x.safetensors") is target
    assert lw.diff(target, source).same
    assert [
        leaf.columns.row_values[leaf.row] is before for leaf, before in zip(lw.tree(target), variables, strict=True)
    ]
    assert str(lw.tree(target)) == str(lw.tree(source))
    assert jax.tree.structure(nnx.state(target)) == jax.tree.structure(nnx.state(source))
    for new, old in zip(lw.tree(target), lw.tree(source), strict=True):
        assert type(new.value) is type(old.value)
        np.testing.assert_array_equal(new.numpy(), old.numpy())


def test_a_module_that_refers_to_the_one_above_is_shown_and_not_saved(tmp_path: Path) -> None:
    class Child(nnx.Module):
        def __init__(self, parent: nnx.Module) -> None:
            self.parent = parent
            self.weight = nnx.Param(jnp.ones(3))

    class Parent(nnx.Module):
        def __init__(self) -> None:
            self.child = Child(self)

    assert [str(leaf.path) for leaf in lw.tree(Parent())] == ["child.weight"]
    with pytest.raises(lw.Error, match=r"cannot save child\.parent: it is the root, which contains it"):
        lw.save(Parent(), tmp_path / "x.safetensors")
