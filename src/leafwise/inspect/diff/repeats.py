"""Comparing the values of two trees again, as after each epoch: the kernels run while the leaves are paired."""

from collections.abc import Sequence

from leafwise.core.capabilities.comparing import Comparing, RepeatedComparison
from leafwise.core.columns import Columns
from leafwise.core.parts import first_rows
from leafwise.core.tree import Tree
from leafwise.inspect.diff.leaf_changes import RepeatedVerdicts


class RepeatedValues:
    """The values of all leaves of two trees, which are being compared on the assumption that they are paired in order.
    Whether they are is not known before they are paired; see `is_of`."""

    def __init__(self, rows: tuple[Sequence[int], Sequence[int]], comparison: RepeatedComparison) -> None:
        self._rows, self._comparison = rows, comparison
        self.specs = comparison.specs, comparison.other_specs

    @classmethod
    def start(cls, a: Tree, b: Tree) -> "RepeatedValues | None":
        """None unless the arrays of both trees were compared before, on a device, and are still where they were."""
        rows = first_rows(a), first_rows(b)
        if not rows[0] or len(rows[0]) != len(rows[1]):
            return None
        try:
            comparison = _started(a.columns, b.columns, *rows)
        except Exception:
            return None  # the other way of comparing raises it again, with the name of a leaf
        return None if comparison is None else cls(rows, comparison)

    def is_of(self, sources: Sequence[int], targets: Sequence[int]) -> bool:
        """Whether these are the rows that are being compared."""
        return _same_rows(self._rows[0], sources) and _same_rows(self._rows[1], targets)

    def wait(self) -> RepeatedVerdicts | None:
        """The verdicts; None if the values must be compared in another way."""
        try:
            result = self._comparison.wait()
        except Exception:
            return None  # as in `start`
        return None if result is None else RepeatedVerdicts(self.specs[0], result)


def _started(
    columns: Columns, others: Columns, rows: Sequence[int], other_rows: Sequence[int]
) -> RepeatedComparison | None:
    first, second = columns.current(rows[0]), others.current(other_rows[0])
    home = columns.home(first)
    comparing = home.capability(Comparing)
    # Most trees are not on a device, which shows in their first leaf.
    if others.home(second) is not home or not comparing.compares_on(home.spec(first).device):
        return None
    return comparing.compare_again(columns.current_arrays(rows), others.current_arrays(other_rows))


def _same_rows(rows: Sequence[int], others: Sequence[int]) -> bool:
    return rows == others if type(rows) is type(others) else list(rows) == list(others)
