"""Which parameter of a Block each array in the `.params` file of an exported model is.

`HybridBlock.export` and `Module.save_checkpoint` write `arg:` or `aux:` before each name. In MXNet 2.x the rest is the
parameter's path. In 1.x it is the name of the layer that MXNet made up, such as `resnetv10_stage1_conv0_weight`: layers
of each kind are counted in the order in which they were made.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from leafwise.core.capabilities.naming import Naming

_COUNTED = re.compile(r"(?P<scope>.*?)(?P<kind>[a-z]+)(?P<number>\d+)_(?P<part>[a-z0-9_]+)")


class _Owned(NamedTuple):
    """A parameter of a Block: its path, the name that MXNet 1.x gives it, and what it belongs to."""

    path: str
    parameter: Any
    owner: Any
    part: str


class GluonNaming(Naming):
    def stored_names(self, root: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        return symbol_names(root, shapes)


def symbol_names(block: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """The path of the parameter for each name in the file. Names that are not found are left out."""
    bare = {name: name.partition(":")[2] if name.startswith(("arg:", "aux:")) else name for name in shapes}
    owned = _owned(block)
    paths = {entry.path for entry in owned}
    path_of = {name: rest for name, rest in bare.items() if rest in paths}
    if not path_of:
        path_of = _by_own_names(block, bare, owned) or _by_counting(bare, shapes, owned)
    return {name: path for name, path in path_of.items() if name != path}


def _owned(block: Any) -> list[_Owned]:
    owned = []
    for path, parameter in block.parameters_by_path().items():
        above, _, part = path.rpartition(".")
        owned.append(_Owned(path, parameter, block.get_submodule(above), part))
    return owned


def _by_own_names(block: Any, bare: Mapping[str, str], owned: list[_Owned]) -> dict[str, str]:
    """By the names that MXNet 1.x gives parameters, whatever the prefix of the whole network is."""
    prefix = getattr(block, "prefix", "")
    path_of = {entry.parameter.name: entry.path for entry in reversed(owned)}
    if all(rest in path_of for rest in bare.values()):
        return {name: path_of[rest] for name, rest in bare.items()}
    inside = {name.removeprefix(prefix): path for name, path in path_of.items() if name.startswith(prefix)}
    first = next(iter(bare.values()), "")
    for end in [match.end() for match in re.finditer("_", first)]:
        their_prefix = first[:end]
        if all(rest.startswith(their_prefix) and rest[end:] in inside for rest in bare.values()):
            return {name: inside[rest[end:]] for name, rest in bare.items()}
    return {}


def _by_counting(bare: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], owned: list[_Owned]) -> dict[str, str]:
    """By the order in which layers of each kind were made. Only if all names are of one scope, every kind has as many
    layers in the file as in the Block, and all shapes agree; otherwise nothing."""
    counted = {name: _COUNTED.fullmatch(rest) for name, rest in bare.items()}
    if not counted or not all(counted.values()) or len({match["scope"] for match in counted.values() if match}) > 1:
        return {}
    theirs: dict[str, dict[int, dict[str, str]]] = {}
    for name, match in counted.items():
        assert match is not None
        theirs.setdefault(match["kind"], {}).setdefault(int(match["number"]), {})[match["part"]] = name
    ours: dict[str, dict[int, dict[str, _Owned]]] = {}
    stored_once = {id(entry.parameter): entry for entry in reversed(owned)}.values()  # a shared one has several paths
    for entry in sorted(stored_once, key=lambda entry: entry.parameter.number):
        ours.setdefault(_kind(entry.owner), {}).setdefault(id(entry.owner), {})[entry.part] = entry
    path_of = {}
    for kind, layers in theirs.items():
        mine = list(ours.get(kind, {}).values())
        if len(mine) != len(layers):
            return {}
        for (_, parts), own_parts in zip(sorted(layers.items()), mine, strict=True):
            for part, name in parts.items():
                entry = own_parts.get(part)
                if entry is None or not _fits(entry.parameter.shape, shapes[name]):
                    return {}
                path_of[name] = entry.path
    return path_of


def _kind(owner: Any) -> str:
    """What MXNet 1.x calls a layer of this class: conv, not conv2d."""
    alias = getattr(owner, "_alias", None)
    return str(alias()) if callable(alias) else type(owner).__name__.lower()


def _fits(mine: Any, theirs: tuple[int, ...]) -> bool:
    return mine is None or (
        len(mine) == len(theirs) and all(size in (-1, 0, other) for size, other in zip(mine, theirs, strict=True))
    )
