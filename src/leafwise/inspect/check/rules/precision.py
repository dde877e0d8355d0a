"""Rules about precision and shape: values lost in a cast, mixed dtypes, and shapes that are not known yet."""

from collections.abc import Iterator

from leafwise.core.dtypes import is_float
from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.findings import Level
from leafwise.inspect.check.leaf_evidence import LeafEvidence
from leafwise.inspect.check.rules.registry import Reports, note, report, rule, warning
from leafwise.inspect.stats.rows import Row

_FLOAT16, _FLOAT8 = "float16", "float8_e4m3fn"
_VANISHING = 0.01  # share of the values of a leaf that may become zero in float16
_VANISHING_IN_FLOAT8 = 0.25  # healthy weights lose a few percent if cast without a scale


@rule("LW501", "overflows in float16")
def overflows(evidence: Evidence) -> Reports:
    """Parameters with values too large for float16. Only a note, since it matters only if you cast them."""
    for leaf, row in _shrinking(evidence, _FLOAT16):
        if over := row.outside(_FLOAT16).overflow:
            yield note(
                leaf,
                f"{_share(over, row)} would be infinite in float16 (the largest is {row.absmax:.3g}); "
                "use bfloat16, or scale them",
            )


@rule("LW502", "underflows in float16")
def underflows(evidence: Evidence) -> Reports:
    """Parameters of which more than 1 % of the values would become zero in float16."""
    for leaf, row in _shrinking(evidence, _FLOAT16):
        vanish = row.outside(_FLOAT16).vanish
        if vanish > _VANISHING * row.finite:
            yield note(leaf, f"{_share(vanish, row)} would be zero in float16; use bfloat16, or scale them")


@rule("LW503", "does not fit float8")
def does_not_fit_float8(evidence: Evidence) -> Reports:
    """Matrices with values too large for float8_e4m3fn, or of which more than a quarter would become zero, if cast
    without a scale."""
    for leaf, row in _shrinking(evidence, _FLOAT8):
        outside = row.outside(_FLOAT8)
        lossy = outside.overflow or outside.vanish > _VANISHING_IN_FLOAT8 * row.finite
        if lossy and not _is_scaled(evidence, leaf):
            losses = ", ".join(
                f"{_share(count, row)} would {fate}"
                for count, fate in ((outside.overflow, "overflow"), (outside.vanish, "be zero"))
                if count
            )
            yield note(leaf, f"{losses} in {_FLOAT8}; scale them before the cast, since its range is 2^-9 to 448")


def _shrinking(evidence: Evidence, dtype: str) -> Iterator[tuple[LeafEvidence, Row]]:
    """Parameters that the cast would shrink and that are not all zero; for float8, only matrices."""
    nbytes = 2 if dtype == _FLOAT16 else 1
    for leaf, row in evidence.float_parameters:
        shrinks = leaf.spec.nbytes > nbytes * leaf.spec.size or leaf.spec.dtype == "bfloat16"
        if shrinks and row.l2 and (dtype == _FLOAT16 or leaf.is_matrix):
            yield leaf, row


def _is_scaled(evidence: Evidence, leaf: LeafEvidence) -> bool:
    """Whether the same node also has a leaf of one byte per value, whose scale this leaf may be."""
    columns = evidence.columns
    beside = columns.facts(columns.own_rows(columns.row_nodes[leaf.number]))
    return any(0 < facts.spec.nbytes <= facts.spec.size for facts in beside)


def _share(count: int, row: Row) -> str:
    return f"{count:,} of {row.count:,} values ({count / row.count:.2%})"


@rule("LW511", "mixed dtypes")
def mixed_dtypes(evidence: Evidence) -> Reports:
    """Parameters of one layer with different floating-point dtypes."""
    layers: dict[int, list[LeafEvidence]] = {}
    for leaf in evidence.leaves:
        if leaf.kind == "parameter" and is_float(leaf.spec.dtype) and leaf.role is not None:
            for row in evidence.columns.rows_of(leaf.number):
                layers.setdefault(evidence.columns.row_nodes[row], []).append(leaf)
    for leaves in layers.values():
        dtypes = {leaf.spec.dtype: leaf.path for leaf in leaves}
        # Weights of one byte per value have scales of another dtype in the same layer.
        if len(dtypes) > 1 and all(leaf.spec.nbytes > leaf.spec.size for leaf in leaves):
            names = ", ".join(f"{path.rpartition('.')[2]} {dtype}" for dtype, path in dtypes.items())
            yield warning(leaves[0], f"this layer has several dtypes: {names}; cast the whole layer to one of them")


@rule("LW512", "no shape yet")
def no_shape_yet(evidence: Evidence) -> Reports:
    """Parameters of a lazy layer that has not seen any input yet. An error if an optimizer already has them."""
    for leaf in evidence.leaves:
        if leaf.spec.shape is None and not leaf.spec.size and leaf.kind != "state":
            level: Level = "error" if evidence.coverage and evidence.coverage.steps(leaf) else "note"
            message = "its shape is not known yet (lazy layer); run one forward pass before you make the optimizer"
            yield report(level, leaf, message)
