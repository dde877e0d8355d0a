"""Rules about precision: what would not survive another dtype, mixed dtypes, and shapes that are not known yet."""

from collections.abc import Iterator

from leafwise.core.dtypes import is_float
from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.findings import Level
from leafwise.inspect.check.leaf_evidence import LeafEvidence
from leafwise.inspect.check.rules.registry import Reports, note, report, rule, warning
from leafwise.inspect.stats.rows import Row

_FLOAT16, _FLOAT8 = "float16", "float8_e4m3fn"
_VANISHING = 0.01  # of the values of a leaf, in float16
_VANISHING_IN_FLOAT8 = 0.25  # healthy weights lose some percent without a scale


@rule("LW501", "overflows in float16")
def overflows(evidence: Evidence) -> Reports:
    """Parameters with values that float16 has no room for. Only noted: who does not cast does not mind."""
    for leaf, row in _shrinking(evidence, _FLOAT16):
        if over := row.outside(_FLOAT16).overflow:
            yield note(
                leaf,
                f"{_share(over, row)} would be infinite in float16 (the largest is {row.absmax:.3g}); "
                "use bfloat16, or scale them",
            )


@rule("LW502", "underflows in float16")
def underflows(evidence: Evidence) -> Reports:
    """Parameters of which more than a hundredth would be zero in float16."""
    for leaf, row in _shrinking(evidence, _FLOAT16):
        vanish = row.outside(_FLOAT16).vanish
        if vanish > _VANISHING * row.finite:
            yield note(leaf, f"{_share(vanish, row)} would be zero in float16; use bfloat16, or scale them")


@rule("LW503", "does not fit float8")
def does_not_fit_float8(evidence: Evidence) -> Reports:
    """Weights of which some would be infinite in float8_e4m3fn, or more than a quarter zero, if cast without a
    scale."""
    for leaf, row in _shrinking(evidence, _FLOAT8):
        outside = row.outside(_FLOAT8)
        if outside.overflow or outside.vanish > _VANISHING_IN_FLOAT8 * row.finite:
            losses = ", ".join(
                f"{_share(count, row)} would be {fate}"
                for count, fate in ((outside.overflow, "beyond its largest"), (outside.vanish, "zero"))
                if count
            )
            yield note(leaf, f"{losses} in {_FLOAT8}; scale them before the cast: its range is 2^-9 to 448")


def _shrinking(evidence: Evidence, dtype: str) -> Iterator[tuple[LeafEvidence, Row]]:
    """Parameters that a cast would make smaller, and that hold more than zeros; for bytes, only matrices."""
    nbytes = 2 if dtype == _FLOAT16 else 1
    for leaf, row in evidence.float_leaves(kind="parameter"):
        shrinks = leaf.spec.nbytes > nbytes * leaf.spec.size or leaf.spec.dtype == "bfloat16"
        if shrinks and row.l2 and (dtype == _FLOAT16 or (leaf.is_matrix and not _is_scaled(evidence, leaf))):
            yield leaf, row


def _is_scaled(evidence: Evidence, leaf: LeafEvidence) -> bool:
    """Whether it stands beside values of a byte each, whose scale it may be."""
    columns = evidence.columns
    beside = columns.facts(columns.own_rows(columns.row_nodes[leaf.number]))
    return any(0 < facts.spec.nbytes <= facts.spec.size for facts in beside)


def _share(count: int, row: Row) -> str:
    return f"{count:,} of {row.count:,} values ({count / row.count:.2%})"


@rule("LW511", "mixed dtypes")
def mixed_dtypes(evidence: Evidence) -> Reports:
    """Parameters of one layer with different floating dtypes."""
    layers: dict[int, list[LeafEvidence]] = {}
    for leaf in evidence.leaves:
        if leaf.kind == "parameter" and is_float(leaf.spec.dtype) and leaf.role is not None:
            for row in evidence.columns.rows_of(leaf.number):
                layers.setdefault(evidence.columns.row_nodes[row], []).append(leaf)
    for leaves in layers.values():
        dtypes = {leaf.spec.dtype: leaf.path for leaf in leaves}
        # Values of a byte each have their scales beside them, in another dtype.
        if len(dtypes) > 1 and all(leaf.spec.nbytes > leaf.spec.size for leaf in leaves):
            names = ", ".join(f"{path.rpartition('.')[2]} {dtype}" for dtype, path in dtypes.items())
            yield warning(leaves[0], f"one layer in several dtypes: {names}; cast the whole layer to one of them")


@rule("LW512", "no shape yet")
def no_shape_yet(evidence: Evidence) -> Reports:
    """Parameters of a lazy layer that has seen no input. An error where an optimizer has it already."""
    for leaf in evidence.leaves:
        if leaf.spec.shape is None and not leaf.spec.size and leaf.kind != "state":
            level: Level = "error" if evidence.coverage and evidence.coverage.steps(leaf) else "note"
            yield report(
                level, leaf, "it has no shape yet, as of a lazy layer; run one forward, then make the optimizer"
            )
