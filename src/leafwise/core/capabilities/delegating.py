"""Measuring and comparing arrays in other processes. See `core/work/executor_tasks.py`."""

from typing import TYPE_CHECKING, Any, ClassVar

from leafwise.core.capabilities import Capability
from leafwise.core.work.progress import Count

if TYPE_CHECKING:
    from leafwise.core.results.comparison import Comparison
    from leafwise.core.results.moments import Moments
    from leafwise.core.work.executor_tasks import Workers


class Delegating(Capability):
    """For arrays that other processes can reach: those in files. Results have the same bits as in one process."""

    action: ClassVar[str] = "share its values with workers"
    why: ClassVar[str] = "executor= needs a checkpoint; save the model first: lw.save(model, path)"

    def measure(self, workers: "Workers", values: list[Any], histogram: bool, count: Count) -> "list[Moments]":
        """As `Measuring.measure`."""
        raise self.missing("measure arrays in other processes")

    def compare(self, workers: "Workers", pairs: list[tuple[Any, Any]], count: Count) -> "list[Comparison | None]":
        """Compares pairs of arrays of the same dtype and size bit by bit. None for a pair of which a side is not one
        contiguous range of bytes in C order: it must be compared as a whole."""
        raise self.missing("compare arrays in other processes")
