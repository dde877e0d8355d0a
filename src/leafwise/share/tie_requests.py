"""Requests for ties: all are checked first, then either all are made or none."""

from typing import Any, NamedTuple

from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.tying import Keep, TiedPlaces, Tying
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.dtypes import is_float
from leafwise.core.home import Home, Spec
from leafwise.core.leaf import shape_text
from leafwise.core.memory.ops import SAME, Op
from leafwise.core.path import listed
from leafwise.core.tree import Tree, tree
from leafwise.errors import TieError, Unsupported
from leafwise.share.places import home_of, keep_leaf_ties, names_outside, part_of, place_of, tied_places


class TieRequest(NamedTuple):
    """Asks for the row `target` to become another name of the leaf `source`, seen through `op`."""

    target: int
    source: int
    op: Op


def check_tie_requests(
    columns: Columns, requests: list[TieRequest], keep: Keep | None
) -> list[tuple[Op, dict[int, list[int]]]]:
    """For each op, the rows to tie, by the leaf to tie them to; raises if a row cannot be tied."""
    by_op: dict[object, tuple[Op, list[TieRequest]]] = {}
    for request in requests:
        op = request.op
        by_op.setdefault((op, repr(op.slices), op.order), (op, []))[1].append(request)
    return [(op, _check_op(columns, with_op, op, keep)) for op, with_op in by_op.values()]


def make_ties(t: Tree, requests: list[TieRequest], keep: Keep | None) -> Any:
    """Makes all the ties, or none, and keeps them from then on. Returns the model, or the part that was given."""
    columns = t.columns
    by_home: dict[Home, list[TiedPlaces]] = {}
    for op, new in check_tie_requests(columns, requests, keep):
        for leaf, rows in new.items():
            tied = tied_places(columns, [leaf, *rows])
            tied = tied._replace(ops=(SAME, *[op] * (len(tied.ops) - 1)))
            by_home.setdefault(home_of(columns, leaf), []).append(tied)
    root = columns.node_objects[0]
    for home, ties in by_home.items():
        root = home.capability(Tying).tie(root, ties, keep)
    # The model is walked again: the leaf of a target may have another number now, or the target itself may come first.
    new_tree = tree(root)
    new_columns = new_tree.columns
    targets = {columns.row_text(request.target) for request in requests}
    leaves = {leaf for leaf in new_columns.further_rows if new_columns.row_text(leaf) in targets}
    leaves |= {leaf for row, leaf in new_columns.ties.items() if new_columns.row_text(row) in targets}
    keep_leaf_ties(_again(t, new_tree), sorted(leaves))
    return part_of(t, root)


def _again(t: Tree, walked: Tree) -> Tree:
    """The same part of a new walk."""
    columns, path = walked.columns, t.path
    node = walked[path].root if path.entries else 0
    if t.is_whole:
        return Tree(columns, node)
    names = {t.columns.row_text(row) for row in t.rows}
    return Tree(columns, node, [row for row in Tree(columns, node).rows if columns.row_text(row) in names])


def _check_op(columns: Columns, requests: list[TieRequest], op: Op, keep: Keep | None) -> dict[int, list[int]]:
    """The rows to tie, by the leaf to tie them to, for requests that all have this op."""
    all_targets = {request.target for request in requests}
    new: dict[int, list[int]] = {}
    for target, source, _ in requests:
        leaf = columns.ties.get(target, target)
        if leaf == source:
            _check_tied_by(columns, target, source, op)
            continue
        prefix = f"cannot tie {columns.row_text(target)} to {columns.row_text(source)}{op.describe()}"
        tied_to = [columns.row_text(row) for row in columns.rows_of(leaf) if row not in all_targets]
        tied_to = tied_to or names_outside(columns, target)
        if tied_to:
            raise TieError(
                f"{prefix}: it is already tied to {', '.join(tied_to[:4])}; "
                f'untie it first: lw.untie(model, "{columns.row_text(target)}")'
                + (", or tie all of its names at once with a glob" if columns.row_op(target) == "same" else "")
            )
        _check_pair(columns, target, source, op, prefix)
        new.setdefault(source, []).append(target)
    for source, targets in new.items():
        _check_values(columns, source, targets, op, keep)
    return new


def _check_tied_by(columns: Columns, target: int, source: int, op: Op) -> None:
    """Raises if a row is already tied to the source, but through another op."""
    present = columns.row_op(target)
    if (present, present.slices, present.order) != (op, op.slices, op.order):
        name, to = columns.row_text(target), columns.row_text(source)
        raise TieError(
            f"cannot tie {name} to {to}{op.describe()}: it is already {to}{present.describe()}; "
            f'untie it first: lw.untie(model, "{name}")'
        )


def _check_pair(columns: Columns, target: int, source: int, op: Op, prefix: str) -> None:
    """Raises if a row cannot be tied to a leaf, whatever their values; the message starts with `prefix`."""
    home = home_of(columns, target)
    target_name, source_name = columns.row_text(target), columns.row_text(source)
    arrays = columns.home(columns.current(target))
    if not arrays.ties_by_identity:
        paths = columns.row_path(target), columns.row_path(source)
        why = arrays.capability(Tying).way_to_tie(columns.node_objects[0], *paths, op)
        raise Unsupported(home.name, f"tie {target_name} to {source_name}{op.describe()}", why)
    if home is not (source_home := home_of(columns, source)):
        raise TieError(f"{prefix}: {target_name} belongs to {home.name} and {source_name} to {source_home.name}")
    target_facts, source_facts = columns.facts([target, source])
    if target_facts.kind != source_facts.kind:
        kinds = f"{target_name} is a {target_facts.kind} and {source_name} is a {source_facts.kind}"
        raise TieError(f"{prefix}: {kinds}")
    for row, row_op in ((source, SAME), (target, op)):
        reason = home.capability(Tying).cannot_tie(place_of(columns, row), columns.current(row), row_op)
        if reason:
            raise TieError(f"{prefix}: {columns.row_text(row)} {reason}")
    view = home.spec(_seen(home, columns.current(source), op))
    _check_specs(columns, target, source, view, prefix)


def _seen(home: Home, value: Any, op: Op) -> Any:
    """An array as seen through an op. A plain tie works without the capability to make views."""
    return value if op == "same" else home.capability(Viewing).seen_through(value, op)


def _check_specs(columns: Columns, target_row: int, source_row: int, view: Spec, prefix: str) -> None:
    """Raises if the specs do not allow a tie; `view` is the spec of the source seen through the op."""
    target, source = columns.row_text(target_row), columns.row_text(source_row)
    target_spec, source_spec = (facts.spec for facts in columns.facts([target_row, source_row]))
    if target_spec.shape != view.shape:
        turned = target_spec.shape is not None and target_spec.shape == tuple(reversed(view.shape or ()))
        hint = "; use transpose=True for a transposed view" if turned else ""
        raise TieError(
            f"{prefix}: their shapes differ, {target} is {shape_text(target_spec.shape)} and "
            f"{source} would give {shape_text(view.shape)}{hint}"
        )
    for fact, word in (("dtype", "is"), ("device", "is on")):
        target_fact, source_fact = getattr(target_spec, fact), getattr(source_spec, fact)
        if target_fact != source_fact:
            tying = home_of(columns, target_row).capability(Tying)
            way = tying.way_to_match(place_of(columns, target_row), target_spec, source_spec)
            raise TieError(f"{prefix}: {target} {word} {target_fact} and {source} {word} {source_fact}; {way}")
    if target_spec.trainable != source_spec.trainable:
        frozen, trains = (target, source) if source_spec.trainable else (source, target)
        raise TieError(
            f"{prefix}: {frozen} is frozen and {trains} is not; freeze or thaw one first: "
            f'lw.freeze(model, "{trains}") or lw.thaw(model, "{frozen}")'
        )


def _check_values(columns: Columns, source: int, targets: list[int], op: Op, keep: Keep | None) -> None:
    """Raises if values differ and `keep` does not say which to use."""
    if keep == "source":
        return
    home = home_of(columns, source)
    view = _seen(home, columns.current(source), op)
    same_bits = home.capability(Comparing).same_bits
    try:
        differing = [row for row in targets if not same_bits(view, columns.current(row))]
    except Unsupported as error:
        names = listed([columns.row_text(row) for row in targets], 3)
        raise TieError(
            f"cannot tie {names} to {columns.row_text(source)}: the values cannot be compared: {error}; "
            'use keep="source" to take those of the leaf that they are tied to'
        ) from error
    if not differing:
        return
    first = columns.row_text(differing[0])
    if keep is None:
        raise TieError(
            f"cannot tie {first} to {columns.row_text(source)}{op.describe()}: their values differ; "
            f'use keep="source" for the values of {columns.row_text(source)}, keep="target" for those of {first}, or '
            'keep="mean" for the mean of both'
        )
    values = [columns.current(row) for row in targets]
    for row, value in zip(targets, values, strict=True):
        if keep == "target" and not same_bits(values[0], value):
            raise TieError(
                f'cannot tie {len(targets)} leaves to {columns.row_text(source)} with keep="target": the values of '
                f'{columns.row_text(targets[0])} and {columns.row_text(row)} differ; use keep="source" or keep="mean"'
            )
    if keep == "mean" and not is_float(dtype := columns.facts([source])[0].spec.dtype):
        raise TieError(
            f'cannot tie {first} to {columns.row_text(source)} with keep="mean": {dtype} values have no exact mean; '
            'use keep="source" or keep="target"'
        )
