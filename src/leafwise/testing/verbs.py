"""Every verb, as a function that uses it on a model and asserts what it must do. A home supports a verb, or refuses it
with `lw.Unsupported`; there is nothing between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leafwise as lw


def values_of(obj: Any) -> dict[str, Any]:
    """A copy of all values, by path."""
    return {str(path): np.array(leaf.numpy()) for path, leaf in lw.tree(obj).items()}


def assert_same_values(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for path, array in first.items():
        assert array.dtype == second[path].dtype, path
        assert array.tobytes() == second[path].tobytes(), path


def trained(obj: Any) -> lw.Tree:
    """The parameters of floating point, of which a model has at least two."""
    return lw.tree(obj).select(lambda leaf: leaf.kind == "parameter" and leaf.dtype.startswith(("float", "bfloat")))


def show(build: Callable[[], Any], folder: Path) -> None:
    t = lw.tree(build())
    text = t.text(full=True)
    assert all(leaf.path.name in text for leaf in t)
    assert "<details" in t._repr_html_()


def select(build: Callable[[], Any], folder: Path) -> None:
    t = lw.tree(build())
    first = next(iter(t))
    assert [leaf.path for leaf in t.select(str(first.path))] == [first.path]
    assert len(t.select(lw.where(dtype=first.dtype))) >= 1


def stats(build: Callable[[], Any], folder: Path) -> None:
    obj = build()
    measured = lw.stats(obj)
    for path, array in values_of(obj).items():
        if path in measured and array.size and array.dtype.kind == "f":
            assert measured[path].mean == pytest.approx(array.astype("float64").mean(), rel=1e-5, abs=1e-6)
            assert measured[path].max == array.max()
    assert measured.total.count > 0


def check(build: Callable[[], Any], folder: Path) -> None:
    assert not [finding for finding in lw.check(build()) if finding.level == "error"]


def diff(build: Callable[[], Any], folder: Path) -> None:
    first, second = build(), build()
    assert lw.diff(first, second).same
    changed = lw.initialize(second, [lw.Rule("**", init="normal")])
    paths = {str(leaf.path) for leaf in trained(changed)}
    assert paths <= {str(change.path) for change in lw.diff(first, changed) if change.kind != "same"}


def image(build: Callable[[], Any], folder: Path) -> None:
    matrix = next(leaf for leaf in lw.tree(build()) if len(leaf.shape or ()) == 2 and leaf.dtype.startswith("float"))
    assert lw.image(matrix).cells.size > 0


def ties(build: Callable[[], Any], folder: Path) -> None:
    obj = build()
    assert len(lw.ties(obj)) == len(lw.tree(obj).ties)


def _two_of_one_shape(obj: Any) -> tuple[str, str]:
    by_shape: dict[Any, list[str]] = {}
    for leaf in trained(obj):
        by_shape.setdefault((leaf.shape, leaf.dtype), []).append(str(leaf.path))
    return next((paths[0], paths[1]) for paths in by_shape.values() if len(paths) > 1)


def tie(build: Callable[[], Any], folder: Path) -> None:
    obj = build()
    first, second = _two_of_one_shape(obj)
    obj = lw.tie(obj, second, to=first, keep="source")
    t = lw.tree(obj)
    assert t[second] is t[first]


def untie(build: Callable[[], Any], folder: Path) -> None:
    obj = build()
    ties = lw.tree(obj).ties
    if not ties:
        first, second = _two_of_one_shape(obj)
        obj = lw.tie(obj, second, to=first, keep="source")
        ties = lw.tree(obj).ties
    first, second = (str(name.path) for name in ties[0].names[:2])
    before = values_of(obj)
    obj = lw.untie(obj, second)
    t = lw.tree(obj)
    assert t[second] != t[first]
    assert np.array_equal(values_of(obj)[second], before[first])


def keep_ties(build: Callable[[], Any], folder: Path) -> None:
    obj = lw.keep_ties(build())
    lw.release_ties(obj)


def groups(build: Callable[[], Any], folder: Path) -> None:
    obj = build()
    made = lw.groups(obj, [lw.Rule("**", lr=0.1, weight_decay=0.1), lw.no_decay()])
    assert "weight_decay" in made.text()
    assert sum(len(group["params"]) for group in made) == len(lw.tree(obj).select(lw.where(kind="parameter")))


def freeze(build: Callable[[], Any], folder: Path) -> None:
    obj = build()
    path = str(next(iter(trained(obj))).path)
    obj = lw.freeze(obj, path)
    assert lw.tree(obj)[path].trainable is False
    obj = lw.thaw(obj, path)
    assert lw.tree(obj)[path].trainable is not False


def initialize(build: Callable[[], Any], folder: Path) -> None:
    paths = [str(leaf.path) for leaf in trained(build())]
    rules = [lw.Rule("**", init="normal")]
    first, again, other = (values_of(lw.initialize(build(), rules, seed=seed)) for seed in (0, 0, 1))
    assert_same_values(first, again)
    for path in paths:
        assert not np.array_equal(first[path], other[path]), path


def filled(obj: Any, init: str) -> Any:
    """The model with all trained values 0 or 1."""
    return lw.initialize(obj, [lw.Rule("**", init=init)])


def average(build: Callable[[], Any], folder: Path) -> None:
    obj = filled(build(), "zeros")
    paths = [str(leaf.path) for leaf in trained(obj)]
    mean = lw.Average(obj, decay=0.75)
    mean.update(obj)
    obj = filled(obj, "ones")
    mean.update(obj)
    with mean.applied(obj) as averaged:
        values = values_of(averaged)
        assert all((values[path] == 0.25).all() for path in paths)
    assert all((values_of(obj)[path] == 1).all() for path in paths)


def flat(build: Callable[[], Any], folder: Path) -> None:
    obj = build()
    flattened = lw.flat(obj)
    assert flattened.values.shape == (sum(leaf.size for leaf in trained(obj)),)
    flattened.undo()


def save(build: Callable[[], Any], folder: Path) -> None:
    obj = build()
    path = lw.save(obj, folder / "a.safetensors")
    assert lw.verify(path).ok
    with lw.open(path) as file:
        assert_same_values(values_of(obj), values_of(file))


def plan_and_load(build: Callable[[], Any], folder: Path) -> None:
    obj = build()
    expected = values_of(obj)
    path = lw.save(obj, folder / "a.safetensors")
    target = build()
    target = lw.initialize(target, [lw.Rule("**", init="normal")])
    assert lw.plan(target, path).holds
    assert_same_values(values_of(lw.load(target, path)), expected)
    smaller = {"nothing": np.zeros(2, np.float32)}
    before = values_of(target)
    with pytest.raises(lw.LoadError):
        lw.load(target, lw.save(smaller, folder / "b.safetensors"))
    assert_same_values(values_of(target), before)


VERBS: dict[str, Callable[[Callable[[], Any], Path], None]] = {
    "show": show,
    "select": select,
    "stats": stats,
    "check": check,
    "diff": diff,
    "image": image,
    "ties": ties,
    "tie": tie,
    "untie": untie,
    "keep_ties": keep_ties,
    "groups": groups,
    "freeze": freeze,
    "initialize": initialize,
    "Average": average,
    "flat": flat,
    "save": save,
    "plan and load": plan_and_load,
}
