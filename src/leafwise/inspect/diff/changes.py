"""What `lw.diff` says of a leaf."""

from collections.abc import Set
from typing import Any, NamedTuple

from leafwise.core.comparing import Comparison
from leafwise.core.leaf import shape_text
from leafwise.core.path import escape

# What a change may be, the weightiest first: that is what it is called by.
KINDS = (
    "removed", "added", "unknown", "changed", "reshaped", "transposed", "cast", "untied", "tied", "renamed", "same",
)  # fmt: skip


class Change(NamedTuple):
    """What became of a leaf, or of a plain value: every kind of change that it went through, the weightiest first.

    `path` is where it stands in the first tree, or in the second where it was added there; `other` is where it stands
    in the second, where that is elsewhere. `comparison` says how far the values are apart, where they were compared;
    `values` are both plain values. `notes` say more.
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
        """The weightiest kind."""
        return self.kinds[0]

    @property
    def is_plain(self) -> bool:
        """Whether it is a plain value rather than a leaf."""
        return self.values is not None

    def __repr__(self) -> str:
        place = self.path if self.other is None else f"{self.path} → {self.other}"
        said = [", ".join(self.kinds)]
        if self.values is not None:
            said.append(" → ".join(map(repr, self.values)))
        if self.shape != self.other_shape and self.kind not in ("added", "removed"):
            said.append(f"{shape_text(self.shape)} → {shape_text(self.other_shape)}")
        if self.comparison is not None and self.comparison.changed:
            found = self.comparison
            said.append(
                f"relative L2 {found.relative_l2:.3g}, cosine {found.cosine:.6g}, largest {found.largest:.3g}, "
                f"{found.share:.3%} of {found.size:,}"
            )
            if found.nonfinite_changed:
                said.append(nonfinite_text(found))
        return escape(f"<{place}: {'; '.join(said)}>")


def nonfinite_text(found: Comparison) -> str:
    """How many of those that changed are not finite: of these, figures say nothing."""
    return f"{found.nonfinite_changed:,} of those that changed not finite"


def in_order(kinds: "Set[str]") -> tuple[str, ...]:
    """Kinds, the weightiest first."""
    return tuple(kind for kind in KINDS if kind in kinds)
