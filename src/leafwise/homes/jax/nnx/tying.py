"""Tying Variables of Flax NNX: several places refer to one Variable.

NNX keeps references through `nnx.split` and `merge`, its own transforms, copies and pickle. What treats a module as a
plain pytree (`jax.tree.map`, `jax.jit`) makes a Variable for each place, and so does an assignment. A tie that leafwise
made or keeps is therefore also recorded, as a static attribute of the modules above it, which NNX carries along; the
next walk compares.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from flax import nnx

from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.tying import DeclaredTie, Keep, Place, TiedPlaces, Tying
from leafwise.core.home import Spec
from leafwise.core.memory.ops import SAME, Op
from leafwise.core.path import Path
from leafwise.errors import PathError, QueryError, TieError, Unsupported
from leafwise.homes.jax.nnx.home import array_in, child_of, put_array

# The names that are tied, relative to the module: a tuple of keys for each tie. NNX neither prints attributes with this
# prefix nor lists them in an `nnx.Dict`.
TIES = "_pytree__leafwise_ties"

Keys = tuple[str, ...]


class NnxTying(Tying):
    def declared(self, objects: list[Any]) -> list[tuple[int, DeclaredTie]]:
        return [
            (number, DeclaredTie(tuple((key, SAME) for key in keys)))
            for number, obj in enumerate(objects)
            for keys in _recorded(obj)
        ]

    def cannot_tie(self, place: Place, value: Any, op: Op) -> str:
        if op != "same":
            raise Unsupported(
                self.home.name,
                f"tie {place.path} to a {op} of a Variable",
                "a Variable has no views; leave this parameter out, and compute it from the other one in __call__, "
                "such as x @ self.embed.embedding.T, or self.embed.attend(x)",
            )
        if isinstance(place.owner, nnx.State):
            why = "a state lists a tied Variable once; tie it in the module, and make a new state of that"
            raise Unsupported(self.home.name, f"tie {place.path} in an nnx.State", why)
        return ""

    def way_to_match(self, place: Place, spec: Spec, other: Spec) -> str:
        code = Path(place.path).code("model")
        if spec.dtype != other.dtype:
            return f"cast one first: {code}.set_value({code}.astype(jnp.{other.dtype}))"
        if "meta" in (spec.device, other.device):
            return "give the one on meta its values first, with lw.load or nnx.update"
        platform, _, number = other.device.partition(":")
        device = f'jax.devices("{platform}")[{number or 0}]'
        return f"move one first: {code}.set_value(jax.device_put({code}.get_value(), {device}))"

    def tie(self, root: Any, groups: list[TiedPlaces], keep: Keep | None) -> Any:
        for group in groups:
            source, *targets = group.places
            expected = _held(source).var_type
            for place in targets:
                if _held(place).var_type is not expected:
                    raise TieError(
                        f"cannot tie {place.path} to {source.path}: one is a {_held(place).var_type.__name__} and the "
                        f"other a {expected.__name__}, so filters of NNX would no longer find both; make them "
                        "Variables of one type"
                    )
        rebuilding = self.home.capability(Rebuilding)
        for group in groups:
            source, *targets = group.places
            variable = _held(source)
            if keep == "target":
                put_array(variable, _copied(array_in(_held(targets[0]))))
            elif keep == "mean":
                values = [self.home.read(_held(place)).astype(np.float64) for place in group.places]
                rebuilding.updated(variable, (sum(values) / len(values)).astype(self.home.spec(variable).dtype))
            for place in targets:
                rebuilding.replace(place.owner, {place.name: variable})
        return root

    def untie(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        for place in places:
            _forget(objects, _leads_through(place))
            variable = _held(place)
            copied = variable.copy(_copied(array_in(variable)))
            self.home.capability(Rebuilding).replace(place.owner, {place.name: copied})
        return root

    def separate(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        for place in places:
            node = _held(place)
            if any(inside is place.owner for _, inside in nnx.iter_graph(node)):
                raise TieError(f"cannot copy {place.path}: it refers to the module that contains it")
            _forget(objects, _leads_through(place))
            graph, state = nnx.split(node)
            copied = nnx.merge(graph, jax.tree.map(_copied, state))
            self.home.capability(Rebuilding).replace(place.owner, {place.name: copied})
        return root

    def keep_ties(self, root: Any, objects: list[Any], groups: list[TiedPlaces], keep: Keep | None) -> Any:
        if keep is not None:
            raise Unsupported(self.home.name, "keep ties with keep=", "a state of NNX has only one value for a tie")
        for group in groups:
            variable = _held(group.places[0])
            for above, names in group.above:
                if isinstance(above, nnx.Pytree):
                    _record(above, [key for _, key in names], variable)
        return root

    def release_ties(self, root: Any, objects: list[Any], places: list[Place] | None) -> Any:
        for leads_there in [lambda obj, key: True] if places is None else map(_leads_through, places):
            _forget(objects, leads_there)
        return root


def _held(place: Place) -> Any:
    """The Variable or module at a place."""
    return child_of(place.owner, place.name)


def _copied(value: Any) -> Any:
    """A copy with memory of its own, so that both can be donated."""
    return value.copy() if isinstance(value, (jax.Array, np.ndarray)) else value


# -- the record --------------------------------------------------------------------------------------------


def _recorded(obj: Any) -> tuple[Keys, ...]:
    ties: tuple[Keys, ...] = vars(obj).get(TIES, ()) if isinstance(obj, nnx.Pytree) else ()
    return ties


def _record(obj: Any, keys: list[str], variable: Any) -> None:
    """Records that these keys are one Variable, together with keys that were recorded before and still lead to it."""
    before = _recorded(obj)
    also = [key for tie in before if set(tie) & set(keys) for key in tie if _fetched(obj, key) is variable]
    merged = tuple(dict.fromkeys([*keys, *also]))
    _set_record(obj, [merged, *(_without(tie, merged) for tie in before)])


def _forget(objects: list[Any], leads_there: Callable[[Any, str], bool]) -> None:
    """Removes the keys of which `leads_there(object, key)` is true from the records of these objects."""
    for obj in {id(obj): obj for obj in objects}.values():
        if before := _recorded(obj):
            _set_record(obj, [_without(tie, [key for key in tie if leads_there(obj, key)]) for tie in before])


def _without(tie: Keys, keys: Iterable[str]) -> Keys:
    return tuple(key for key in tie if key not in set(keys))


def _set_record(obj: Any, ties: list[Keys]) -> None:
    ties = [tie for tie in ties if len(tie) > 1]
    if ties:
        setattr(obj, TIES, tuple(ties))
    elif TIES in vars(obj):
        delattr(obj, TIES)


def _leads_through(place: Place) -> Callable[[Any, str], bool]:
    """Whether a key, followed from an object, leads to a place, or through the node there."""

    def leads_through(obj: Any, key: str) -> bool:
        names = key.split(".")
        prefixes = [".".join(names[:count]) for count in range(len(names))]
        return any(
            f"{key}.".startswith(f"{prefix}.{place.name}.".lstrip(".")) and _fetched(obj, prefix) is place.owner
            for prefix in prefixes
        )

    return leads_through


def _fetched(obj: Any, key: str) -> Any:
    """What is at a dotted key below an object; None if there is nothing."""
    try:
        return Path(key).fetch(obj)
    except (PathError, QueryError):
        return None
