"""How a leaf changed, in the result of `lw.diff`."""

from typing import Any, NamedTuple

from leafwise.core.leaf import shape_text
from leafwise.core.path import escape
from leafwise.core.results.comparison import Comparison

# The kinds of change, the most important first: `Change.kind` is the first one that applies.
KINDS = (
    "removed", "added", "unknown", "changed", "reshaped", "transposed", "cast", "untied", "tied", "renamed", "same",
)  # fmt: skip


class Change(NamedTuple):
    """How a leaf or a plain value changed, in the result of `lw.diff`.

    `kinds` are all kinds of change that apply, the most important first. `path` is the path in the first tree, or in
    the second if the leaf was added; `other` is the path in the second tree if it differs. `dtype` and `shape` are
    those in the first tree, `other_dtype` and `other_shape` those in the second. `comparison` says how much the values
    differ, if they were compared. For a plain value, `values` has the value in each tree. `notes` has remarks.

    >>> import torch, leafwise as lw
    >>> d = lw.diff({"w": torch.ones(2), "step": 1}, {"w": torch.zeros(2), "step": 2})
    >>> d["w"].kind, d["w"].comparison.largest, d["step"].values
    ('changed', 1.0, (1, 2))
    """

    kinds: tuple[str, ...]
    path: str
    other: str | None = None
    dtype: str | None = None
    other_dtype: str | None = None
    shape: tuple[int, ...] | None = None
    other_shape: tuple[int, ...] | None = None
    comparison: Comparison | None = None
    values: tuple[Any, Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The most important kind of change."""
        return self.kinds[0]

    @property
    def is_plain(self) -> bool:
        """Whether it is a plain value rather than a leaf."""
        return self.values is not None

    def __repr__(self) -> str:
        place = self.path if self.other is None else f"{self.path} → {self.other}"
        parts = [", ".join(self.kinds)]
        if self.values is not None:
            parts.append(" → ".join(map(_repr, self.values)))
        if self.shape != self.other_shape and self.kind not in ("added", "removed"):
            parts.append(f"{shape_text(self.shape)} → {shape_text(self.other_shape)}")
        if self.comparison is not None and self.comparison.changed:
            comparison = self.comparison
            parts.append(
                f"relative L2 {comparison.relative_l2:.3g}, cosine {comparison.cosine:.6g}, "
                f"largest {comparison.largest:.3g}, {comparison.share:.3%} of {comparison.size:,}"
            )
            if comparison.nonfinite_changed:
                parts.append(nonfinite_text(comparison))
        return escape(f"<{place}: {'; '.join(parts)}>")


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # the repr of a foreign object may raise anything, or never end
        return f"<{type(value).__name__}>"


def nonfinite_text(comparison: Comparison) -> str:
    """How many of the changed values are not finite; the figures do not include them."""
    return f"{comparison.nonfinite_changed:,} of the changed values not finite"
