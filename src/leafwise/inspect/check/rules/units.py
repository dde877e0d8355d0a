"""Rules about units: rows and columns that are zero, duplicated or never trained; and matrices of low rank."""

from collections.abc import Sequence
from math import prod

from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.leaf_evidence import LeafEvidence, ValuesOf
from leafwise.inspect.check.rules.registry import Reports, note, report, rule, warning
from leafwise.inspect.indices import lines_along
from leafwise.inspect.stats.rows import Row

_NEARLY_ALL = 0.9  # of the units
_LEAST_SIDE = 64  # rows and columns; the rank of smaller matrices is not checked
_LEADING = 8  # one in this many singular values counts as leading
_MOST_LEADING = 128
_COLLAPSED = 0.99  # share of the sum of squares in the leading singular values


@rule("LW110", "dead units")
def dead_units(evidence: Evidence) -> Reports:
    """Output units of a layer whose weights are all zero, so that they ignore the input. Only a note if the layer is
    frozen, if they are the last units or at least half of them (as after padding or pruning), or if it is not known
    which axis is `out`."""
    weights = [
        (leaf, row, leaf.out_axis)
        for leaf, row in evidence.float_parameters
        if 0 < row.zeros < row.count and (leaf.is_matrix or leaf.is_weight) and "embedding.table" not in leaf.roles
    ]
    for leaf, layer, dead in _zero_lines(weights):
        if dead:
            places = lines_along(leaf.out_axis, dead)
            size = leaf.shape[leaf.out_axis]
            is_layer = bool(layer) and len(dead) == size  # and others are not zero
            are_last = dead == list(range(size - len(dead), size))
            looks_intended = leaf.is_frozen or (not is_layer and (2 * len(dead) >= size or are_last))
            noun = "unit" if leaf.is_weight else "row"
            yield report(
                "warning" if leaf.is_weight and not looks_intended else "note",
                leaf,
                f"{layer}{_count_of(dead, size, noun)} all zero: {places}; prune or reinitialize {_them(dead)}",
                places,
            )


@rule("LW111", "unused inputs")
def unused_inputs(evidence: Evidence) -> Reports:
    """Inputs of a layer whose weights are all zero, so that the layer ignores them."""
    weights = [
        (leaf, row, leaf.in_axis)
        for leaf, row in evidence.float_parameters
        if 0 < row.zeros < row.count and leaf.is_matrix and leaf.is_weight
    ]
    for leaf, layer, unused in _zero_lines(weights):
        if unused:
            size, places = leaf.shape[leaf.in_axis], lines_along(leaf.in_axis, unused)
            yield note(
                leaf, f"{layer}{_count_of(unused, size, 'input')} unused (all weights are zero): {places}", places
            )


@rule("LW112", "dead units in the gradient")
def dead_in_gradient(evidence: Evidence) -> Reports:
    """Output units whose gradient is all zero while that of others is not, for example behind a ReLU that never fires.
    Only a note, since one batch is not all the data."""
    has_nonzero_grads = any(row.zeros < row.count for row in evidence.grad_stats.values())
    weights = [
        (leaf, row, leaf.out_axis)
        for leaf in evidence.leaves
        if leaf.has_grad and leaf.is_weight and (row := leaf.grad_stats) is not None and row.count > 1
    ]
    partly_zero = [(leaf, row, axis) for leaf, row, axis in weights if row.zeros < row.count]
    dead_units_of: dict[int, list[tuple[str, list[int]]]] = {}
    for leaf, layer, dead in _zero_lines(partly_zero, "grad"):
        dead_units_of.setdefault(leaf.number, []).append((layer, dead))
    for leaf, row, axis in weights:
        size = leaf.shape[axis]
        if row.zeros == row.count and has_nonzero_grads:
            yield note(
                leaf,
                f"its gradient is zero for all {size:,} units, while other leaves have nonzero gradients; does the "
                "loss depend on it?",
            )
        for layer, dead in dead_units_of.get(leaf.number, []):
            if dead:
                places = lines_along(axis, dead)
                yield note(
                    leaf,
                    f"{layer}{_count_of(dead, size, 'unit', 'has', 'have')} a zero gradient: {places}; if that lasts "
                    f"for many batches, reinitialize {_them(dead)} or lower the learning rate",
                    places,
                )


@rule("LW113", "duplicate rows")
def duplicate_rows(evidence: Evidence) -> Reports:
    """Rows or columns of a weight that are equal bit by bit. A warning if nearly all units of a layer are copies of
    one, since the symmetry between them was never broken. Otherwise only a note, since some layers start with copies;
    also if the layer is frozen."""
    for leaf, layer, axis, duplicates in evidence.duplicate_rows:
        same = duplicates.same
        if not same:
            continue
        size, noun = leaf.shape[axis], _line_noun(leaf, axis)
        copies = sorted(line for group in same for line in group[1:])
        unbroken = noun == "unit" and max(map(len, same)) > _NEARLY_ALL * size and not leaf.is_frozen
        yield report(
            "warning" if unbroken else "note",
            leaf,
            f"{layer}{_count_of(copies, size, noun)} {'a copy' if len(copies) == 1 else 'copies'} of another, such as "
            f"{lines_along(axis, same[0])}; copies tend to stay equal in training: initialize them with different "
            "values",
            lines_along(axis, copies),
        )


@rule("LW114", "nearly duplicate rows")
def near_duplicate_rows(evidence: Evidence) -> Reports:
    """Rows or columns of a weight that differ by less than a thousandth of their norm. Only a note, since copies may be
    meant to drift apart."""
    from leafwise.inspect.check.duplicate_rows import MOST_MEASURED

    for leaf, layer, axis, duplicates in evidence.duplicate_rows:
        near = duplicates.near
        if near:
            first, second, distance = min(near, key=lambda pair: pair[2])
            noun = _line_noun(leaf, axis)
            least = "at least " * (len(near) == MOST_MEASURED)
            pairs = f"{least}{len(near):,} pairs of {noun}s are" if len(near) > 1 else f"two {noun}s are"
            yield note(
                leaf,
                f"{layer}{pairs} nearly equal: {first} and {second} differ by {distance:.1e} of their norm; "
                "merge them or reinitialize one",
                lines_along(axis, sorted({line for pair in near for line in pair[:2]})),
            )


@rule("LW115", "untouched rows of an embedding")
def untouched_rows(evidence: Evidence) -> Reports:
    """Rows of an embedding that training has not changed, judged by `against=`, or else by the optimizer state, or else
    by the gradient. Only a note, since rare tokens may not have occurred yet."""
    for leaf in evidence.leaves:
        if leaf.roles != {"embedding.table"} or leaf.stack_axes:  # if tied to a head, every row gets a gradient
            continue
        if leaf.path in evidence.changes and evidence.changes[leaf.path].kinds == ("changed",):
            untouched, source = evidence.rows_same_as_before(leaf), "training has not changed"
        elif evidence.coverage.state_of(leaf) is not None:
            [(_, _, untouched)], source = _zero_lines([(leaf, None, 0)], "state"), "no optimizer step has changed"
        elif leaf.has_grad and leaf.grad_stats is not None:
            [(_, _, untouched)], source = _zero_lines([(leaf, leaf.grad_stats, 0)], "grad"), "the gradient is zero for"
        else:
            continue
        untouched = [row for row in untouched if row != leaf.padding_row]
        if untouched:
            places = lines_along(0, untouched)
            yield note(
                leaf,
                f"{_count_of(untouched, leaf.shape[0], 'row')} untouched: {places}; {source} "
                f"{_them(untouched)}; train longer, or remove rare tokens from the vocabulary",
                places,
            )


@rule("LW116", "low rank", opt_in=True)
def low_rank(evidence: Evidence) -> Reports:
    """A matrix whose leading singular values (an eighth of them, at most 128) make up more than 99 % of the sum of
    squares. Runs only if its exact code is selected, since it has to multiply every matrix."""
    from leafwise.inspect.check.spectrum import all_leading_shares

    places = []
    for leaf, row in evidence.float_parameters:
        shape = (leaf.shape[0], prod(leaf.shape[1:])) if leaf.is_matrix else (0, 0)
        if min(shape) >= _LEAST_SIDE and row.finite == row.count and row.absmax:
            places.append((leaf, min(min(shape) // _LEADING, _MOST_LEADING), row.absmax))
    for (leaf, count, _), share in zip(places, all_leading_shares(places), strict=True):
        if share > _COLLAPSED:
            singular_values = min(leaf.shape[0], prod(leaf.shape[1:]))
            yield warning(
                leaf,
                f"{count:,} of {singular_values:,} singular values make up {min(share, 1):.1%} of the sum of squares: "
                "its rank has collapsed; factorize it, or check how it was trained",
            )


def _zero_lines(
    places: Sequence[tuple[LeafEvidence, Row | None, int]], of: ValuesOf = "value"
) -> list[tuple[LeafEvidence, str, list[int]]]:
    """Each leaf with the indices along an axis at which all values are zero; if layers are stacked, for each of them,
    with the beginning of a message. Searches only leaves whose statistics have enough zeros."""
    from leafwise.inspect.check.zero_lines import all_zero_lines, zero_lines

    lines_of: dict[int, list[tuple[str, list[int]]]] = {}
    plain: list[tuple[LeafEvidence, int]] = []
    for leaf, row, axis in places:
        count_of_lines = prod(leaf.shape[number] for number in (axis, *leaf.stack_axes))
        if row is not None and row.zeros < row.count // max(count_of_lines, 1):
            continue
        if not leaf.stack_axes:
            plain.append((leaf, axis))
            continue
        lines_of[leaf.number] = [
            (layer, zero_lines(matrix, 0 if axis == leaf.out_axis else 1).nonzero()[0].tolist())
            for layer, matrix in leaf.layers(of)
        ]
    lines_of |= {leaf.number: [("", lines)] for (leaf, _), lines in zip(plain, all_zero_lines(plain, of), strict=True)}
    return [(leaf, *found) for leaf, _, _ in places for found in lines_of.get(leaf.number, [("", [])])]


def _line_noun(leaf: LeafEvidence, axis: int) -> str:
    """What the lines along an axis are called."""
    if leaf.is_weight:
        return "unit" if axis == leaf.out_axis else "input"
    return "row" if axis == 0 else "column"


def _count_of(lines: list[int], size: int, noun: str, singular: str = "is", plural: str = "are") -> str:
    """How many lines, and a verb: "1 of 16 units is"."""
    return f"{len(lines):,} of {size:,} {noun}s {singular if len(lines) == 1 else plural}"


def _them(lines: list[int]) -> str:
    return "it" if len(lines) == 1 else "them"
