"""Rules about precision: what would not survive another dtype, mixed dtypes, and shapes that are not known yet."""

from collections.abc import Iterator

from leafwise.core.dtypes import is_float
from leafwise.inspect.findings import Level
from leafwise.inspect.looking import Looked
from leafwise.inspect.rows import Row
from leafwise.inspect.rules.registry import Found, note, rule, told, warning
from leafwise.inspect.seen import Seen

_HALF, _BYTE = "float16", "float8_e4m3fn"
_VANISHING = 0.01  # of the values of a leaf, in float16
_VANISHING_IN_A_BYTE = 0.25  # healthy weights lose some percent without a scale


@rule("LW501", "overflows in float16")
def overflows(looked: Looked) -> Found:
    """Parameters with values that float16 has no room for. Only noted: who does not cast does not mind."""
    for seen, row in _wider(looked, _HALF):
        if over := row.outside(_HALF).overflow:
            yield note(
                seen,
                f"{_share(over, row)} would be infinite in float16 (the largest is {row.absmax:.3g}); "
                "use bfloat16, or scale them",
            )


@rule("LW502", "underflows in float16")
def underflows(looked: Looked) -> Found:
    """Parameters of which more than a hundredth would be zero in float16."""
    for seen, row in _wider(looked, _HALF):
        vanish = row.outside(_HALF).vanish
        if vanish > _VANISHING * row.finite:
            yield note(seen, f"{_share(vanish, row)} would be zero in float16; use bfloat16, or scale them")


@rule("LW503", "does not fit float8")
def fits_no_byte(looked: Looked) -> Found:
    """Weights of which some would be infinite in float8_e4m3fn, or more than a quarter zero, if cast without a
    scale."""
    for seen, row in _wider(looked, _BYTE):
        outside = row.outside(_BYTE)
        if outside.overflow or outside.vanish > _VANISHING_IN_A_BYTE * row.finite:
            what = ", ".join(
                f"{_share(count, row)} would be {fate}"
                for count, fate in ((outside.overflow, "beyond its largest"), (outside.vanish, "zero"))
                if count
            )
            yield note(seen, f"{what} in {_BYTE}; scale them before the cast: its range is 2^-9 to 448")


def _wider(looked: Looked, dtype: str) -> Iterator[tuple[Seen, Row]]:
    """Parameters that a cast would make smaller, and that hold more than zeros; for bytes, only matrices."""
    nbytes = 2 if dtype == _HALF else 1
    for seen, row in looked.where(kind="parameter"):
        shrinks = seen.spec.nbytes > nbytes * seen.spec.size or seen.spec.dtype == "bfloat16"
        if shrinks and row.l2 and (dtype == _HALF or (seen.is_matrix and not _is_scaled(looked, seen))):
            yield seen, row


def _is_scaled(looked: Looked, seen: Seen) -> bool:
    """Whether it stands beside values of a byte each, whose scale it may be."""
    columns = looked.columns
    beside = columns.facts(columns.own_rows(columns.row_nodes[seen.leaf]))
    return any(0 < facts.spec.nbytes <= facts.spec.size for facts in beside)


def _share(count: int, row: Row) -> str:
    return f"{count:,} of {row.count:,} values ({count / row.count:.2%})"


@rule("LW511", "mixed dtypes")
def mixed_dtypes(looked: Looked) -> Found:
    """Parameters of one layer with different floating dtypes."""
    layers: dict[int, list[Seen]] = {}
    for seen in looked.leaves:
        if seen.kind == "parameter" and is_float(seen.spec.dtype) and seen.role is not None:
            for row in looked.columns.rows_of(seen.leaf):
                layers.setdefault(looked.columns.row_nodes[row], []).append(seen)
    for its in layers.values():
        dtypes = {seen.spec.dtype: seen.path for seen in its}
        if len(dtypes) > 1 and all(seen.spec.nbytes > seen.spec.size for seen in its):  # bytes have scales beside them
            said = ", ".join(f"{path.rpartition('.')[2]} {dtype}" for dtype, path in dtypes.items())
            yield warning(its[0], f"one layer in several dtypes: {said}; cast the whole layer to one of them")


@rule("LW512", "no shape yet")
def no_shape_yet(looked: Looked) -> Found:
    """Parameters of a lazy layer that has seen no input. An error where an optimizer has it already."""
    for seen in looked.leaves:
        if seen.spec.shape is None and not seen.spec.size and seen.kind != "state":
            level: Level = "error" if looked.stepped and looked.stepped.steps(seen) else "note"
            yield told(level, seen, "it has no shape yet, as of a lazy layer; run one forward, then make the optimizer")
