"""Rules about units: rows and columns that are zero, alike, or never touched; and matrices of low rank."""

from math import prod

from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.leaf_evidence import LeafEvidence, ValuesOf
from leafwise.inspect.check.rules.registry import Reports, note, report, rule, warning
from leafwise.inspect.stats.rows import Row

_NEARLY_ALL = 0.9  # of the units
_LEAST = 64  # a matrix with fewer rows or columns has no rank to lose
_LEADING = 8  # of so many singular values, one is called leading
_MOST_LEADING = 128
_COLLAPSED = 0.99  # of the sum of squares in the leading ones


@rule("LW110", "dead units")
def dead_units(evidence: Evidence) -> Reports:
    """Outputs of a layer whose weights are all zero: they say the same whatever comes in. Only noted where the layer is
    frozen, where they are the last ones or at least half, as after padding and pruning, and where nobody says which
    axis is `out`."""
    for leaf, row in evidence.float_leaves(kind="parameter"):
        if not (leaf.is_matrix or leaf.is_weight) or row.zeros == row.count or "embedding.table" in leaf.roles:
            continue
        if dead := _zero_lines(leaf, row, leaf.out_axis):
            size = leaf.shape[leaf.out_axis]
            looks_intended = leaf.is_frozen or 2 * len(dead) >= size or dead == list(range(size - len(dead), size))
            noun = "unit" if leaf.is_weight else "row"
            yield report(
                "warning" if leaf.is_weight and not looks_intended else "note",
                leaf,
                f"{_count_of(len(dead), size, noun)} all zero: {_first_few(dead)}; cut them out, or "
                "initialize them again",
            )


@rule("LW111", "unused inputs")
def unused_inputs(evidence: Evidence) -> Reports:
    """Inputs of a layer whose weights are all zero: what comes in there is not used."""
    for leaf, row in evidence.float_leaves(kind="parameter"):
        if not leaf.is_matrix or not leaf.is_weight or row.zeros == row.count:
            continue
        if unused := _zero_lines(leaf, row, 1 - leaf.out_axis):
            size = leaf.shape[1 - leaf.out_axis]
            yield note(leaf, f"{_count_of(len(unused), size, 'input')} unused: {_first_few(unused)}")


@rule("LW112", "dead units in the gradient")
def dead_in_gradient(evidence: Evidence) -> Reports:
    """Outputs of a layer with a gradient of zeros, where others have some: behind a ReLU that never fires, say. Only
    noted: one batch is not all data."""
    has_nonzero_grads = any(row.zeros < row.count for row in evidence.grad_stats.values())
    for leaf in evidence.leaves:
        row = leaf.grad_stats if leaf.has_grad and leaf.is_weight else None
        if row is None or row.count < 2:
            continue
        size = leaf.shape[leaf.out_axis]
        if row.zeros == row.count and has_nonzero_grads:
            yield note(
                leaf, f"its gradient is all zero, of all {size:,} units, where others have some; does it take part?"
            )
        elif row.zeros < row.count and (dead := _zero_lines(leaf, row, leaf.out_axis, "grad")):
            yield note(
                leaf,
                f"{_count_of(len(dead), size, 'unit')} without gradient: {_first_few(dead)}; if that lasts for many "
                "batches, they are dead: initialize them again, or lower the learning rate",
            )


@rule("LW113", "rows alike")
def duplicate_rows(evidence: Evidence) -> Reports:
    """Rows or columns of a weight that are the same, bit by bit. A warning where nearly all units are one: symmetry
    that was never broken. Otherwise noted, since some layers begin with copies, and so where the layer is frozen."""
    for leaf, axis, duplicates in evidence.duplicate_rows:
        same = duplicates.same
        if not same:
            continue
        size, noun = leaf.shape[axis], _line_noun(leaf, axis)
        copies = sum(len(group) - 1 for group in same)
        unbroken = noun == "unit" and max(map(len, same)) > _NEARLY_ALL * size and not leaf.is_frozen
        yield report(
            "warning" if unbroken else "note",
            leaf,
            f"{_count_of(copies, size, noun)} {'a copy' if copies == 1 else 'copies'} of another, such as "
            f"{_first_few(same[0])}; what is alike stays alike: initialize it from different numbers",
        )


@rule("LW114", "rows nearly alike")
def near_duplicate_rows(evidence: Evidence) -> Reports:
    """Rows or columns of a weight that differ by less than a thousandth of their length. Only noted: copies may be
    meant to drift apart."""
    from leafwise.inspect.check.duplicate_rows import MOST_MEASURED

    for leaf, axis, duplicates in evidence.duplicate_rows:
        near = duplicates.near
        if near:
            first, second, distance = min(near, key=lambda pair: pair[2])
            noun = _line_noun(leaf, axis)
            least = "at least " * (len(near) == MOST_MEASURED)
            pairs = f"{least}{len(near):,} pairs of {noun}s are" if len(near) > 1 else f"two {noun}s are"
            yield note(
                leaf,
                f"{pairs} nearly the same: {first} and {second} differ by {distance:.1e} of their length; merge them, "
                "or initialize one again",
            )


@rule("LW115", "untouched rows of an embedding")
def untouched_rows(evidence: Evidence) -> Reports:
    """Rows of an embedding that training did not touch: as `against=` tells, or else the state of the optimizer, or the
    gradient. Only noted: rare words are rare."""
    from leafwise.inspect.check.duplicate_rows import same_rows

    for leaf in evidence.leaves:
        if leaf.roles != {"embedding.table"}:  # as a head, too, every row has a gradient
            continue
        if leaf.path in evidence.changes and evidence.changes[leaf.path].kinds == ("changed",):
            untouched, source = same_rows(leaf.bands(), evidence.baseline_bands(leaf)), "training has not"
        elif evidence.coverage.state_of(leaf) is not None:
            untouched, source = _zero_lines(leaf, None, 0, "state"), "no step of the optimizer has"
        elif leaf.has_grad and leaf.grad_stats is not None:
            untouched, source = _zero_lines(leaf, leaf.grad_stats, 0, "grad"), "the gradient has not"
        else:
            continue
        untouched = [row for row in untouched if row != leaf.padding_row]
        if untouched:
            yield note(
                leaf,
                f"{_count_of(len(untouched), leaf.shape[0], 'row')} untouched: {_first_few(untouched)}; {source} "
                "reached them so far. Leave such rows out of the vocabulary, or train longer",
            )


@rule("LW116", "low rank", opt_in=True)
def low_rank(evidence: Evidence) -> Reports:
    """A matrix of which an eighth of the singular values, or 128 of them, have 99 % of the squares. Runs only if its
    code is selected, since it multiplies every matrix."""
    from leafwise.inspect.check.spectrum import leading_share

    for leaf, row in evidence.float_leaves(kind="parameter"):
        shape = (leaf.shape[0], prod(leaf.shape[1:])) if leaf.is_matrix else (0, 0)
        if min(shape) < _LEAST or row.finite < row.count or not row.absmax:
            continue
        count = min(min(shape) // _LEADING, _MOST_LEADING)
        share = leading_share(leaf, count, row.absmax)
        if share > _COLLAPSED:
            yield warning(
                leaf,
                f"{count:,} of {min(shape):,} singular values hold {min(share, 1):.1%} of the squares; its rank has "
                "collapsed: factorise it, or look at what it was trained with",
            )


def _zero_lines(leaf: LeafEvidence, row: Row | None, axis: int, of: ValuesOf = "value") -> list[int]:
    """The places along an axis where all is zero. Mostly there are too few zeros for even one."""
    from leafwise.inspect.check.duplicate_rows import zero_lines

    if row is not None and row.zeros < row.count // max(leaf.shape[axis], 1):
        return []
    places: list[int] = zero_lines(leaf, axis, of).nonzero()[0].tolist()
    return places


def _line_noun(leaf: LeafEvidence, axis: int) -> str:
    """What the lines along an axis are called."""
    if leaf.is_weight:
        return "unit" if axis == leaf.out_axis else "input"
    return "row" if axis == 0 else "column"


def _count_of(count: int, size: int, noun: str) -> str:
    return f"{count:,} of {size:,} {noun}s {'is' if count == 1 else 'are'}"


def _first_few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")
