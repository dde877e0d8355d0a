"""Rules about units: rows and columns that are zero, alike, or never touched; and matrices of low rank."""

from math import prod

from leafwise.inspect.check.evidence import Looked
from leafwise.inspect.check.leaf_evidence import Of, Seen
from leafwise.inspect.check.rules.registry import Found, note, rule, told, warning
from leafwise.inspect.stats.rows import Row

_NEARLY_ALL = 0.9  # of the units
_LEAST = 64  # a matrix with fewer rows or columns has no rank to lose
_LEADING = 8  # of so many singular values, one is called leading
_MOST_LEADING = 128
_COLLAPSED = 0.99  # of the sum of squares in the leading ones


@rule("LW110", "dead units")
def dead_units(looked: Looked) -> Found:
    """Outputs of a layer whose weights are all zero: they say the same whatever comes in. Only noted where the layer is
    frozen, where they are the last ones or at least half, as after padding and pruning, and where nobody says which
    axis is `out`."""
    for seen, row in looked.where(kind="parameter"):
        if not (seen.is_matrix or seen.is_weight) or row.zeros == row.count or "embedding.table" in seen.roles:
            continue
        if dead := _zero_lines(seen, row, seen.out_axis):
            size = seen.shape[seen.out_axis]
            meant = seen.is_fixed or 2 * len(dead) >= size or dead == list(range(size - len(dead), size))
            yield told(
                "warning" if seen.is_weight and not meant else "note",
                seen,
                f"{_of(dead, size, 'unit' if seen.is_weight else 'row')} all zero: {_some(dead)}; cut them out, or "
                "initialise them again",
            )


@rule("LW111", "unused inputs")
def unused_inputs(looked: Looked) -> Found:
    """Inputs of a layer whose weights are all zero: what comes in there is not used."""
    for seen, row in looked.where(kind="parameter"):
        if not seen.is_matrix or not seen.is_weight or row.zeros == row.count:
            continue
        if unused := _zero_lines(seen, row, 1 - seen.out_axis):
            yield note(seen, f"{_of(unused, seen.shape[1 - seen.out_axis], 'input')} unused: {_some(unused)}")


@rule("LW112", "dead units in the gradient")
def dead_in_gradient(looked: Looked) -> Found:
    """Outputs of a layer with a gradient of zeros, where others have some: behind a ReLU that never fires, say. Only
    noted: one batch is not all data."""
    some_pull = any(row.zeros < row.count for row in looked.grad_rows.values())
    for seen in looked.leaves:
        row = seen.grad if seen.has_grad and seen.is_weight else None
        if row is None or row.count < 2:
            continue
        size = seen.shape[seen.out_axis]
        if row.zeros == row.count and some_pull:
            yield note(
                seen, f"its gradient is all zero, of all {size:,} units, where others have some; does it take part?"
            )
        elif row.zeros < row.count and (dead := _zero_lines(seen, row, seen.out_axis, "grad")):
            yield note(
                seen,
                f"{_of(dead, size, 'unit')} without gradient: {_some(dead)}; if that lasts for many batches, they are "
                "dead: initialise them again, or lower the learning rate",
            )


@rule("LW113", "rows alike")
def alike(looked: Looked) -> Found:
    """Rows or columns of a weight that are the same, bit by bit. A warning where nearly all units are one: symmetry
    that was never broken. Otherwise noted, since some layers begin with copies, and so where the layer is frozen."""
    for seen, axis, same, _ in looked.alike:
        if not same:
            continue
        size, what = seen.shape[axis], _called(seen, axis)
        copies = sum(len(group) - 1 for group in same)
        unbroken = what == "unit" and max(map(len, same)) > _NEARLY_ALL * size and not seen.is_fixed
        yield told(
            "warning" if unbroken else "note",
            seen,
            f"{_of(range(copies), size, what)} {'a copy' if copies == 1 else 'copies'} of another, such as "
            f"{_some(same[0])}; what is alike stays alike: initialise it from different numbers",
        )


@rule("LW114", "rows nearly alike")
def nearly_alike(looked: Looked) -> Found:
    """Rows or columns of a weight that differ by less than a thousandth of their length. Only noted: copies may be
    meant to drift apart."""
    from leafwise.inspect.check.duplicate_rows import MOST_MEASURED

    for seen, axis, _, near in looked.alike:
        if near:
            one, other, away = min(near, key=lambda pair: pair[2])
            what = _called(seen, axis)
            least = "at least " * (len(near) == MOST_MEASURED)
            pairs = f"{least}{len(near):,} pairs of {what}s are" if len(near) > 1 else f"two {what}s are"
            yield note(
                seen,
                f"{pairs} nearly the same: {one} and {other} differ by {away:.1e} of their length; merge them, or "
                "initialise one again",
            )


@rule("LW115", "untouched rows of an embedding")
def untouched_rows(looked: Looked) -> Found:
    """Rows of an embedding that training did not touch: as `against=` tells, or else the state of the optimizer, or the
    gradient. Only noted: rare words are rare."""
    from leafwise.inspect.check.duplicate_rows import same_rows

    for seen in looked.leaves:
        if seen.roles != {"embedding.table"}:  # as a head, too, every row has a gradient
            continue
        if seen.path in looked.changes and looked.changes[seen.path].kinds == ("changed",):
            untouched, what = same_rows(seen.bands(), looked.bands_before(seen)), "training has not"
        elif looked.stepped.reached(seen) is not None:
            untouched, what = _zero_lines(seen, None, 0, "state"), "no step of the optimizer has"
        elif seen.has_grad and seen.grad is not None:
            untouched, what = _zero_lines(seen, seen.grad, 0, "grad"), "the gradient has not"
        else:
            continue
        untouched = [row for row in untouched if row != seen.padding]
        if untouched:
            yield note(
                seen,
                f"{_of(untouched, seen.shape[0], 'row')} untouched: {_some(untouched)}; {what} reached them so far. "
                "Leave such rows out of the vocabulary, or train longer",
            )


@rule("LW116", "low rank", asked=True)
def low_rank(looked: Looked) -> Found:
    """A matrix of which an eighth of the singular values, or 128 of them, have 99 % of the squares. Runs only if its
    code is selected, since it multiplies every matrix."""
    from leafwise.inspect.check.spectrum import leading

    for seen, row in looked.where(kind="parameter"):
        shape = (seen.shape[0], prod(seen.shape[1:])) if seen.is_matrix else (0, 0)
        if min(shape) < _LEAST or row.finite < row.count or not row.absmax:
            continue
        some = min(min(shape) // _LEADING, _MOST_LEADING)
        share = leading(seen, some, row.absmax)
        if share > _COLLAPSED:
            yield warning(
                seen,
                f"{some:,} of {min(shape):,} singular values hold {min(share, 1):.1%} of the squares; its rank has "
                "collapsed: factorise it, or look at what it was trained with",
            )


def _zero_lines(seen: Seen, row: Row | None, axis: int, of: Of = "value") -> list[int]:
    """The places along an axis where all is zero. Mostly there are too few zeros for even one."""
    from leafwise.inspect.check.duplicate_rows import zero_lines

    if row is not None and row.zeros < row.count // max(seen.shape[axis], 1):
        return []
    found: list[int] = zero_lines(seen, axis, of).nonzero()[0].tolist()
    return found


def _called(seen: Seen, axis: int) -> str:
    if seen.is_weight:
        return "unit" if axis == seen.out_axis else "input"
    return "row" if axis == 0 else "column"


def _of(some: "list[int] | range", size: int, what: str) -> str:
    return f"{len(some):,} of {size:,} {what}s {'is' if len(some) == 1 else 'are'}"


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")
