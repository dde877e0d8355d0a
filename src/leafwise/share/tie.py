"""`lw.tie`: ties names to a leaf."""

import builtins
from typing import Any, TypeVar, overload

from leafwise.core.capabilities.tying import Keep
from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.memory.ops import SAME, Op
from leafwise.core.parts import check_not_gathered, rows_below
from leafwise.core.path import Path
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import PathError, TieError
from leafwise.share.places import (
    check_keep,
    check_not_sharded,
    nodes_matching,
    nothing_matches,
    query_text,
    rows_matching,
)
from leafwise.share.tie_requests import TieRequest, make_ties

M = TypeVar("M")
Slices = builtins.slice | int | tuple[builtins.slice | int, ...]
Pair = tuple[int, int]  # the row that is to be tied, and the row of the leaf that it is tied to


@overload
def tie(
    model: Tree,
    where: Any,
    *,
    to: "str | Path",
    transpose: "bool | tuple[int, ...]" = False,
    slice: "Slices | None" = None,
    keep: "Keep | None" = None,
) -> Any: ...
@overload
def tie(
    model: M,
    where: Any,
    *,
    to: "str | Path",
    transpose: "bool | tuple[int, ...]" = False,
    slice: "Slices | None" = None,
    keep: "Keep | None" = None,
) -> M: ...
def tie(
    model: Any,
    where: Any,
    *,
    to: "str | Path",
    transpose: "bool | tuple[int, ...]" = False,
    slice: "Slices | None" = None,
    keep: "Keep | None" = None,
) -> Any:
    """Ties weights: `where` becomes another name of the leaf `to`. Returns the model.

    - `where` is a path, or a glob for several leaves. If `where` and `to` are paths of modules, every parameter and
      persistent buffer of one is tied to its counterpart in the other.
    - `transpose=True` ties `where` to the transpose of `to`; a tuple gives another order of axes. `slice=` ties it to a
      part of `to`. Then `where` is a live view of `to`, and its gradient goes to `to`.
    - `keep` says which values to keep if they differ: those of `to` (`"source"`), those of `where` (`"target"`), or
      their mean (`"mean"`). Without it, different values are an error.

    The tie is kept from now on, as by `lw.keep_ties`. On an error, nothing is changed. Tie weights before the model is
    sharded, and see `lw.shard_units`.

    >>> import torch, leafwise as lw
    >>> model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(100, 16), "head": torch.nn.Linear(16, 100)})
    >>> model = lw.tie(model, "head.weight", to="embed.weight", keep="source")
    >>> model["head"].weight is model["embed"].weight
    True
    >>> auto = torch.nn.ModuleDict({"encoder": torch.nn.Linear(8, 3), "decoder": torch.nn.Linear(3, 8)})
    >>> auto = lw.tie(auto, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
    >>> torch.equal(auto["decoder"].weight, auto["encoder"].weight.T)
    True
    """
    check_keep(keep)
    with opened(model, "tie", live=True) as t:
        check_not_gathered(t, "tie")
        return _tied(t, where, to, transpose, slice, keep)


def _tied(
    t: Tree, where: Any, to: "str | Path", transpose: "bool | tuple[int, ...]", slices: "Slices | None", keep: Any
) -> Any:
    columns = t.columns
    try:
        source = t[to]
    except PathError as error:
        raise PathError(f"cannot tie {query_text(where)} to {query_text(to)}: {error}") from error
    if isinstance(source, Tree):
        if transpose is not False or slices is not None:
            raise TieError(
                f"cannot tie to {to}: it is a module, and transpose= and slice= are for leaves, such as {to}.weight"
            )
        pairs = _module_pairs(t, where, source)
        op = SAME
    elif isinstance(source, Leaf):
        pairs = _leaf_pairs(t, where, source, to)
        op = _requested_op(source, transpose, slices)
        if op == "same":
            op = columns.row_op(source.row)  # to a view: the same view of its leaf
        elif columns.row_op(source.row) != "same":
            whole = columns.row_text(source.number)
            raise TieError(
                f"{source.path} is itself {whole}{columns.row_op(source.row).describe()}; "
                f'tie to the leaf: lw.tie(model, {query_text(where)}, to="{whole}", …)'
            )
    else:
        raise TieError(f"cannot tie {query_text(where)} to {query_text(to)}: that is a plain value, {source!r}")
    check_not_sharded(t, [row for pair in pairs for row in pair], "tie")
    return make_ties(t, [TieRequest(target, leaf, op) for target, leaf in pairs], keep)


def _requested_op(source: Leaf, transpose: "bool | tuple[int, ...]", slices: Slices | None) -> Op:
    """The op that `transpose=` and `slice=` ask for."""
    shape = source.shape
    if shape is None or (transpose is False and slices is None):
        return SAME
    parts: tuple[builtins.slice | int, ...] | None = None
    ndim = len(shape)
    if slices is not None:
        parts = slices if isinstance(slices, tuple) else (slices,)
        wrong = [part for part in parts if type(part) not in (builtins.slice, int)]
        if wrong or len(parts) > ndim:
            raise TieError(
                f"slice= for {source.path} ({shape_text(shape)}) takes a slice, a number, or a tuple of at most "
                f"{ndim} of them, not {slices!r}"
            )
        if any(isinstance(part, builtins.slice) and (part.step or 1) < 1 for part in parts):
            raise TieError(f"slice= for {source.path} must have steps of 1 or more, not {slices!r}")
        if any(isinstance(part, int) and not -size <= part < size for part, size in zip(parts, shape, strict=False)):
            raise TieError(f"slice={slices!r} is outside {source.path}, which is {shape_text(shape)}")
        parts = tuple(_without_negatives(part, size) for part, size in zip(parts, shape, strict=False))
        parts += (builtins.slice(None),) * (ndim - len(parts))
        ndim -= sum(isinstance(part, int) for part in parts)
    order: tuple[int, ...] | None = None
    if transpose is True:
        if ndim != 2:
            raise TieError(
                f"transpose=True is for matrices, but {source.path} has the shape {shape_text(shape)}; "
                "give the order of its axes, such as transpose=(1, 0, 2, 3)"
            )
        order = 1, 0
    elif transpose is not False:
        order = tuple(transpose)
        if sorted(order) != list(range(ndim)):
            raise TieError(f"transpose={transpose!r} is not a permutation of the {ndim} axes of {source.path}")
        order = None if order == tuple(range(ndim)) else order
    if parts is None or all(part == builtins.slice(None) for part in parts):
        return SAME if order is None else Op("transpose", order=order)
    return Op("view", slices=parts, order=order)


def _without_negatives(part: builtins.slice | int, size: int) -> builtins.slice | int:
    """A slice or index without negative numbers, as the walk describes views."""
    if isinstance(part, int):
        return part % size
    start, stop, step = part.indices(size)
    whole = (start, stop, step) == (0, size, 1)
    return builtins.slice(None) if whole else builtins.slice(start, stop, step if step > 1 else None)


def _leaf_pairs(t: Tree, where: Any, source: Leaf, to: "str | Path") -> list[Pair]:
    columns = t.columns
    rows = rows_matching(t, where)
    if not rows:
        if nodes_matching(t, where):
            raise TieError(f"cannot tie {query_text(where)} to {source.path}: one is a module, the other a leaf")
        error = nothing_matches(t, where)
        raise PathError(f"cannot tie {query_text(where)} to {source.path}: {error}")
    if rows == [source.row] or rows == rows_matching(t, to):
        raise TieError(f"cannot tie {query_text(to)} to itself; name the other leaf")
    leaf = columns.ties.get(source.row, source.row)
    if leaf in rows and leaf != source.row:
        raise TieError(
            f"cannot tie {columns.row_text(leaf)} to {source.path}: this would be a cycle, since {source.path} is "
            f"already {columns.row_text(leaf)}{columns.row_op(source.row).describe()}"
        )
    return [(row, leaf) for row in rows if row != source.row]


def _module_pairs(t: Tree, where: Any, source: Tree) -> list[Pair]:
    columns = t.columns
    nodes = nodes_matching(t, where)
    if not nodes:
        if rows_matching(t, where):
            raise TieError(f"cannot tie {query_text(where)} to {source.path}: one is a leaf, the other a module")
        raise PathError(f"cannot tie {query_text(where)} to {source.path}: {nothing_matches(t, where)}")
    if nodes == [source.root]:
        raise TieError(f"cannot tie {source.path} to itself; name the other module")
    source_rows = _rows_by_name(t, source.root)
    if not source_rows:
        raise TieError(f"cannot tie {query_text(where)} to {source.path}: {source.path} has no parameters")
    pairs = []
    for node in nodes:
        if columns.node_objects[node] is columns.node_objects[source.root]:
            continue
        path = columns.node_text(node)
        inner, outer = sorted((node, source.root), reverse=True)
        if inner < columns.node_ends[outer]:
            raise TieError(f"cannot tie {path} to {source.path}: this would be a cycle, since one contains the other")
        target_rows = _rows_by_name(t, node)
        if target_rows.keys() != source_rows.keys():
            only = [f"{source.path}.{name}" for name in source_rows.keys() - target_rows.keys()]
            only += [f"{path}.{name}" for name in target_rows.keys() - source_rows.keys()]
            raise TieError(
                f"cannot tie {path} to {source.path}: their structures differ, only one of them has "
                f"{', '.join(sorted(only)[:6])}; tie their leaves one by one"
            )
        pairs += [(target_rows[name], columns.ties.get(row, row)) for name, row in source_rows.items()]
    return pairs


def _rows_by_name(t: Tree, node: int) -> dict[str, int]:
    """The rows of parameters and persistent buffers below a node, by their paths relative to it."""
    columns = t.columns
    prefix = len(columns.node_text(node)) + 1 if columns.node_text(node) else 0
    rows = rows_below(t, node)
    return {columns.row_text(row)[prefix:]: row for row in rows if columns.row_kinds[row] != "transient"}
