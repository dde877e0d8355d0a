"""`lw.tie` and `lw.untie`."""

import builtins
from typing import Any, NamedTuple

from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.tying import Keep, Place, TiedPlaces, Tying
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.home import Home, Spec, offer
from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.memory import SAME, Op
from leafwise.core.path import Path
from leafwise.core.tree import Tree, tree
from leafwise.errors import PathError, TieError
from leafwise.share.places import (
    check_keep,
    group_of,
    guard,
    home_of,
    nodes_matching,
    nothing_matches,
    place,
    rows_matching,
)

Slices = builtins.slice | int | tuple[builtins.slice | int, ...]


class _Pair(NamedTuple):
    """A name that is to be tied, and the row of the leaf that it is tied to."""

    target: int
    source: int


def tie(
    model: Any,
    where: Any,
    *,
    to: "str | Path",
    transpose: "bool | tuple[int, ...]" = False,
    slice: "Slices | None" = None,
    keep: "Keep | None" = None,
) -> Any:
    """Makes one leaf of several: `where` becomes another name of `to`. Returns the model.

    `where` is a path, or a glob for many. On the paths of modules, every parameter and persistent buffer of one is tied
    to its like in the other. `transpose=True` makes a live transposed view (a tuple gives another order of axes),
    `slice=` a live view of a part; gradients flow to the source. Values that differ need `keep="source"`, `"target"` or
    `"mean"`. The tie is kept from then on, as by `lw.keep_ties`. On an error nothing is changed.

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
    t = tree(model)
    columns = t.columns
    try:
        source = t[to]
    except PathError as error:
        raise PathError(f"cannot tie {_said(where)} to {_said(to)}: {error}") from error
    if isinstance(source, Tree):
        if transpose is not False or slice is not None:
            raise TieError(f"{to} is a module; transpose= and slice= are for leaves, such as {to}.weight")
        pairs = _module_pairs(t, where, source)
        op = SAME
    elif isinstance(source, Leaf):
        pairs = _leaf_pairs(t, where, source)
        op = _asked_op(source, transpose, slice)
        if op == "same":
            op = columns.row_op(source.row)  # to a view: the same view of its leaf
        elif columns.row_op(source.row) != "same":
            whole = columns.row_text(source.number)
            raise TieError(
                f"{source.path} is itself {whole}{columns.row_op(source.row).describe()}; "
                f'tie to the leaf: lw.tie(model, {_said(where)}, to="{whole}", …)'
            )
    else:
        raise TieError(f"cannot tie {_said(where)} to {_said(to)}: that is a plain value, {source!r}")
    return bind(t, [Wish(pair.target, pair.source, op) for pair in pairs], keep)


class Wish(NamedTuple):
    """A row that shall become another name of the leaf `source`, seen by `op`."""

    target: int
    source: int
    op: Op


def check_wishes(columns: Columns, wishes: list[Wish], keep: "Keep | None") -> list[tuple[Op, dict[int, list[int]]]]:
    """The rows to tie, by op and by the leaf they are tied to; raises where any of them cannot be."""
    by_op: dict[object, tuple[Op, list[_Pair]]] = {}
    for target, source, op in wishes:
        by_op.setdefault((op, repr(op.slices), op.order), (op, []))[1].append(_Pair(target, source))
    return [(op, _checked(columns, pairs, op, keep)) for op, pairs in by_op.values()]


def bind(t: Tree, wishes: list[Wish], keep: "Keep | None") -> Any:
    """Makes ties, all of them or none, and has them kept. Returns the model."""
    columns = t.columns
    by_home: dict[Home, list[TiedPlaces]] = {}
    for op, new in check_wishes(columns, wishes, keep):
        for leaf, rows in new.items():
            group = group_of(columns, [leaf, *rows])
            group = group._replace(ops=(SAME, *[op] * (len(group.ops) - 1)))
            by_home.setdefault(home_of(columns, leaf), []).append(group)
    root = columns.node_objects[0]
    for home, groups in by_home.items():
        root = home.capability(Tying).tie(root, groups, keep)
    again = tree(root)
    touched = {columns.row_text(wish.target) for wish in wishes}
    tied = (row for row in again.columns.ties if again.columns.row_text(row) in touched)
    first = (row for row in again.columns.further_rows if again.columns.row_text(row) in touched)
    guard(again, sorted({*first, *map(again.columns.ties.__getitem__, tied)}))
    return root


def _said(where: Any) -> str:
    return f'"{where}"' if isinstance(where, str | Path) else repr(where)


def _asked_op(source: Leaf, transpose: "bool | tuple[int, ...]", slices: Slices | None) -> Op:
    """The op that `transpose=` and `slice=` mean for this leaf."""
    shape = source.shape
    if shape is None or (transpose is False and slices is None):
        return SAME
    parts: tuple[builtins.slice | int, ...] | None = None
    ndim = len(shape)
    if slices is not None:
        parts = slices if isinstance(slices, tuple) else (slices,)
        wrong = [one for one in parts if type(one) not in (builtins.slice, int)]
        if wrong or len(parts) > ndim:
            raise TieError(
                f"slice= takes a slice, a number, or a tuple of at most {ndim} such for {source.path} "
                f"({shape_text(shape)}), not {slices!r}"
            )
        if any(isinstance(one, builtins.slice) and (one.step or 1) < 1 for one in parts):
            raise TieError(f"slice= of {source.path} needs steps of 1 or more, not {slices!r}")
        if any(isinstance(one, int) and not -size <= one < size for one, size in zip(parts, shape, strict=False)):
            raise TieError(f"slice={slices!r} is outside {source.path}, which is {shape_text(shape)}")
        parts = tuple(_plain(one, size) for one, size in zip(parts, shape, strict=False))
        parts += (builtins.slice(None),) * (ndim - len(parts))
        ndim -= sum(isinstance(one, int) for one in parts)
    order: tuple[int, ...] | None = None
    if transpose is True:
        if ndim != 2:
            raise TieError(
                f"transpose=True is for matrices, and {source.path} is {shape_text(shape)}; "
                "give the order of its axes, such as transpose=(1, 0, 2, 3)"
            )
        order = 1, 0
    elif transpose is not False:
        order = tuple(transpose)
        if sorted(order) != list(range(ndim)):
            raise TieError(f"transpose={transpose!r} is not an order of the {ndim} axes of {source.path}")
        order = None if order == tuple(range(ndim)) else order
    if parts is None or all(one == builtins.slice(None) for one in parts):
        return SAME if order is None else Op("transpose", order=order)
    return Op("view", slices=parts, order=order)


def _plain(part: builtins.slice | int, size: int) -> builtins.slice | int:
    """A part counted from the front, as the walk would say it."""
    if isinstance(part, int):
        return part % size
    start, stop, step = part.indices(size)
    whole = (start, stop, step) == (0, size, 1)
    return builtins.slice(None) if whole else builtins.slice(start, stop, step if step > 1 else None)


def _leaf_pairs(t: Tree, where: Any, source: Leaf) -> list[_Pair]:
    columns = t.columns
    rows = rows_matching(t, where)
    if not rows:
        if nodes_matching(t, where):
            raise TieError(f"cannot tie {_said(where)} to {source.path}: one is a module, the other a leaf of it")
        error = nothing_matches(t, where)
        raise PathError(f"cannot tie {_said(where)} to {source.path}: {error}")
    if rows == [source.row]:
        raise TieError(f"cannot tie {source.path} to itself; name the other leaf")
    index = columns.ties.get(source.row, source.row)
    if index in rows and index != source.row:
        raise TieError(
            f"cannot tie {columns.row_text(index)} to {source.path}: a cycle, since {source.path} is "
            f"{columns.row_text(index)}{columns.row_op(source.row).describe()} already"
        )
    return [_Pair(row, index) for row in rows if row != source.row]


def _module_pairs(t: Tree, where: Any, source: Tree) -> list[_Pair]:
    columns = t.columns
    nodes = nodes_matching(t, where)
    if not nodes:
        if rows_matching(t, where):
            raise TieError(f"cannot tie {_said(where)} to {source.path}: one is a leaf, the other a module")
        raise PathError(f"cannot tie {_said(where)} to {source.path}: {nothing_matches(t, where)}")
    if nodes == [source.root]:
        raise TieError(f"cannot tie {source.path} to itself; name the other module")
    mine = _rows_by_name(columns, source.root)
    if not mine:
        raise TieError(f"cannot tie {_said(where)} to {source.path}: there is no parameter below it")
    pairs = []
    for node in nodes:
        if columns.node_objects[node] is columns.node_objects[source.root]:
            continue
        path = columns.node_text(node)
        inner, outer = sorted((node, source.root), reverse=True)
        if inner < columns.node_ends[outer]:
            raise TieError(f"cannot tie {path} to {source.path}: a cycle, since one of them is inside the other")
        theirs = _rows_by_name(columns, node)
        if theirs.keys() != mine.keys():
            only = [f"{source.path}.{name}" for name in mine.keys() - theirs.keys()]
            only += [f"{path}.{name}" for name in theirs.keys() - mine.keys()]
            raise TieError(
                f"cannot tie {path} to {source.path}: they are built differently, only one of them has "
                f"{', '.join(sorted(only)[:6])}; tie leaves one by one instead"
            )
        pairs += [_Pair(theirs[name], columns.ties.get(row, row)) for name, row in mine.items()]
    return pairs


def _rows_by_name(columns: Columns, node: int) -> dict[str, int]:
    """The rows below a node by their names from there: parameters and the buffers that checkpoints hold."""
    start, stop = columns.row_ranges[node]
    front = len(columns.node_text(node)) + 1 if columns.node_text(node) else 0
    rows = range(start, stop)
    return {columns.row_text(row)[front:]: row for row in rows if columns.row_kinds[row] != "transient"}


def _checked(columns: Columns, pairs: list[_Pair], op: Op, keep: Keep | None) -> dict[int, list[int]]:
    """The rows to tie, by the leaf they are tied to; raises where any of them cannot be."""
    asked = {pair.target for pair in pairs}
    new: dict[int, list[int]] = {}
    for target, source in pairs:
        leaf = columns.ties.get(target, target)
        if leaf == source:
            _check_already(columns, target, source, op)
            continue
        names = f"cannot tie {columns.row_text(target)} to {columns.row_text(source)}{op.describe()}"
        others = [columns.row_text(row) for row in columns.rows_of(leaf) if row not in asked]
        others = others or _tied_outside_of_the_tree(columns, target)
        if others:
            raise TieError(
                f"{names}: it is tied to {', '.join(others[:4])} already; "
                f'untie it first: lw.untie(model, "{columns.row_text(target)}")'
                + (", or name all of them on the left" if columns.row_op(target) == "same" else "")
            )
        _check_pair(columns, target, source, op, names)
        new.setdefault(source, []).append(target)
    for source, targets in new.items():
        _check_values(columns, source, targets, op, keep)
    return new


def _tied_outside_of_the_tree(columns: Columns, row: int) -> list[str]:
    """The names that a row is kept tied to, and that lie outside of the tree."""
    rows = columns.rows_of(columns.ties.get(row, row))
    tying = offer(home_of(columns, row), Tying)
    known = [place(columns, other) for other in rows]
    return tying.tied_elsewhere(place(columns, row), known) if tying is not None else []


def _check_already(columns: Columns, target: int, source: int, op: Op) -> None:
    found = columns.row_op(target)
    if (found, found.slices, found.order) != (op, op.slices, op.order):
        raise TieError(
            f"cannot tie {columns.row_text(target)} to {columns.row_text(source)}{op.describe()}: it is "
            f'{columns.row_text(source)}{found.describe()} already; lw.untie(model, "{columns.row_text(target)}") first'
        )


def _check_pair(columns: Columns, target: int, source: int, op: Op, names: str) -> None:
    home = home_of(columns, target)
    if home is not home_of(columns, source):
        raise TieError(f"{names}: one lives in {home.name}, the other in {home_of(columns, source).name}")
    theirs, ours = columns.facts([target, source])
    if theirs.kind != ours.kind:
        raise TieError(f"{names}: one is a {theirs.kind}, the other a {ours.kind}")
    for row in (source, target):
        why = home.capability(Tying).cannot_tie(
            place(columns, row), columns.current(row), op if row == target else SAME
        )
        if why:
            raise TieError(f"{names}: {columns.row_text(row)} {why}")
    seen = home.spec(home.capability(Viewing).seen_through(columns.current(source), op))
    _check_specs(theirs.spec, ours.spec, seen, columns.row_text(target), columns.row_text(source), names)


def _check_specs(theirs: Spec, ours: Spec, seen: Spec, target: str, source: str, names: str) -> None:
    if theirs.shape != seen.shape:
        turned = theirs.shape is not None and theirs.shape == tuple(reversed(seen.shape or ()))
        hint = "; transpose=True makes a transposed view" if turned else ""
        raise TieError(
            f"{names}: shapes cannot match, {target} is {shape_text(theirs.shape)} and "
            f"{source} would give {shape_text(seen.shape)}{hint}"
        )
    owner = target.rpartition(".")[0]
    if theirs.dtype != ours.dtype:
        raise TieError(
            f"{names}: {target} is {theirs.dtype} and {source} is {ours.dtype}; "
            f"cast one first: model.{owner}.to(torch.{ours.dtype})"
        )
    if theirs.device != ours.device:
        raise TieError(
            f"{names}: {target} is on {theirs.device} and {source} on {ours.device}; "
            + (
                f'move one first: model.{owner}.to("{ours.device}")'
                if "meta" not in (theirs.device, ours.device)
                else "materialise the one on meta first: to_empty(), or a load with assign=True"
            )
        )
    if theirs.trainable != ours.trainable:
        frozen, trains = (target, source) if ours.trainable else (source, target)
        raise TieError(
            f"{names}: {frozen} is frozen and {trains} is not; make them alike first, "
            "with requires_grad_(True) or requires_grad_(False)"
        )


def _check_values(columns: Columns, source: int, targets: list[int], op: Op, keep: Keep | None) -> None:
    if keep == "source":
        return
    home = home_of(columns, source)
    seen = home.capability(Viewing).seen_through(columns.current(source), op)
    same_bits = home.capability(Comparing).same_bits
    differing = [row for row in targets if not same_bits(seen, columns.current(row))]
    if not differing:
        return
    first = columns.row_text(differing[0])
    if keep is None:
        raise TieError(
            f"cannot tie {first} to {columns.row_text(source)}{op.describe()}: their values differ; "
            'keep="source" takes those of the one it is tied to, keep="target" its own, keep="mean" their mean'
        )
    values = [columns.current(row) for row in targets]
    if keep == "target" and any(not same_bits(values[0], value) for value in values[1:]):
        raise TieError(
            f'cannot tie {len(targets)} leaves to {columns.row_text(source)} with keep="target": their values differ '
            f'among themselves, {columns.row_text(targets[0])} and others; use keep="source" or keep="mean"'
        )
    if keep == "mean" and "float" not in (dtype := columns.facts([source])[0].spec.dtype):
        raise TieError(f'cannot tie {first} to {columns.row_text(source)} with keep="mean": there is none of {dtype}')


def untie(model: Any, where: Any) -> Any:
    """Gives a tied name an independent copy with equal values. Returns the model.

    `where` is the path of a leaf, a glob, or the path of a module: then every leaf below it that is tied to something
    outside becomes independent, and a module that is used in several places becomes a module of its own there.

    >>> import torch, leafwise as lw
    >>> shared = torch.nn.Linear(4, 4)
    >>> model = lw.untie(torch.nn.Sequential(shared, shared), "1")
    >>> model[1].weight is model[0].weight, torch.equal(model[1].weight, model[0].weight)
    (False, True)
    """
    t = tree(model)
    columns = t.columns
    rows = rows_matching(t, where)
    nodes = [] if rows else nodes_matching(t, where)
    if not rows and not nodes:
        raise PathError(f"cannot untie {_said(where)}: {nothing_matches(t, where)}")
    repeated = [node for node in nodes if _is_used_elsewhere(columns, node)]
    for node in repeated:
        outer = columns.node_text(_outermost_shared(columns, node))
        if outer != columns.node_text(node):
            raise TieError(
                f"cannot untie {columns.node_text(node)}: it lies in {outer}, which is used in several places itself; "
                f'lw.untie(model, "{outer}") gives that place a module of its own'
            )
    inside = [row for node in nodes if node not in repeated for row in _tied_outside(columns, node)]
    rows = _to_leave(columns, [row for row in rows if _is_tied(columns, row)] + inside)
    if not rows and not repeated:
        raise TieError(f"cannot untie {_said(where)}: it is not tied to anything")
    root, objects = columns.node_objects[0], columns.node_objects
    for node in repeated:
        parent = objects[columns.node_parents[node]]
        here = Place(parent, columns.node_names[node], columns.node_text(node))
        root = columns.home(parent).capability(Tying, "untie").separate(root, objects, [here])
    by_home: dict[Home, list[Place]] = {}
    for row in rows:
        by_home.setdefault(home_of(columns, row), []).append(place(columns, row))
    for home, places in by_home.items():
        root = home.capability(Tying, "untie").untie(root, objects, places)
    return root


def _is_tied(columns: Columns, row: int) -> bool:
    """Whether a row is one of several names, or was declared to be."""
    if row in columns.ties or row in columns.further_rows or any(row in rows for rows in columns.undone.values()):
        return True
    return bool(_tied_outside_of_the_tree(columns, row))


def _is_used_elsewhere(columns: Columns, node: int) -> bool:
    return node > 0 and (node in columns.repeats or node in columns.repeats.values())


def _outermost_shared(columns: Columns, node: int) -> int:
    """The highest node, from a node upwards, that is used in several places: separating a lower one changes both."""
    found = node
    while node > 0:
        if _is_used_elsewhere(columns, node):
            found = node
        node = columns.node_parents[node]
    return found


def _tied_outside(columns: Columns, node: int) -> list[int]:
    """The rows below a node whose leaf has a name outside it."""
    inside = range(*columns.row_ranges[node])
    return [
        row
        for row in inside
        if _is_tied(columns, row) and any(other not in inside for other in columns.rows_of(columns.ties.get(row, row)))
    ]


def _to_leave(columns: Columns, rows: list[int]) -> list[int]:
    """Of the rows to untie, one for each place; and where a leaf is to lose all its names, it stays under the first."""
    chosen: list[int] = []
    for row in rows:
        leaf = columns.ties.get(row, row)
        here = _slot(columns, row)
        every = {_slot(columns, other) for other in columns.rows_of(leaf)}
        if len(every) == 1 and len(columns.rows_of(leaf)) > 1:
            module = columns.node_text(_outermost_shared(columns, columns.row_nodes[row]))
            others = [columns.row_text(other) for other in columns.rows_of(leaf) if other != row]
            raise TieError(
                f"cannot untie {columns.row_text(row)} from {', '.join(others[:4])}: they are one parameter of one "
                f'module, used in several places; lw.untie(model, "{module}") gives that place a module of its own'
            )
        all_leave = every <= {_slot(columns, other) for other in rows}
        stays = all_leave and len(every) > 1 and here == _slot(columns, leaf)
        if not stays and here not in {_slot(columns, other) for other in chosen}:
            chosen.append(row)
    return chosen


def _slot(columns: Columns, row: int) -> tuple[int, str]:
    return id(columns.node_objects[columns.row_nodes[row]]), columns.row_names[row]
