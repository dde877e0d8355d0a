"""Reads and verifies values of the source, and checks them before they are cast."""

from collections.abc import Iterable, Sequence
from typing import Any

from leafwise.checkpoint.planning.plan import Plan
from leafwise.core.path import escape
from leafwise.errors import LoadError, Unsupported
from leafwise.files.arrays.live import Live
from leafwise.files.arrays.stored import Stored
from leafwise.files.arrays.subarrays import Box, is_checked_whole, subarray
from leafwise.files.reading import checked_reads


class SourceValues:
    """The arrays of the source of a plan, by row. `place` is the position of this process among those that load
    together, and their number."""

    def __init__(self, plan: Plan, verify: bool, place: tuple[int, int]) -> None:
        self.plan, self.columns, self.verifies, self._place = plan, plan.source.columns, verify, place

    def arrays(self, rows: Sequence[int]) -> list[Stored]:
        """Lazy arrays with the values at rows. Raises if one of them cannot be read."""
        arrays: list[Any] = [None] * len(rows)
        for batch in self.columns.batches(rows):
            for position, value in zip(batch.positions, batch.values, strict=True):
                is_stored = isinstance(value, Stored)
                if reason := value.why_unreadable if is_stored else batch.home.cannot_read(value):
                    name = next(feed.name for feed in self.plan.feeds if feed.source == rows[position])
                    raise LoadError(f"cannot load {name} from this source: {reason}; nothing was changed", self.plan)
                arrays[position] = value if is_stored else Live(batch.home, value)
        return arrays

    def current(self, row: int) -> Any:
        return self.columns.current(row)

    def array(self, row: int) -> Any:
        """Values as a NumPy array: read from a file, or, for a live source, without a copy if possible."""
        return self.read(self.lazy(row), row)

    def lazy(self, row: int) -> Stored:
        """The array at a row, which is not read yet."""
        value = self.current(row)
        return value if isinstance(value, Stored) else Live(self.columns.home(value), value)

    def read(self, array: Stored, row: int) -> Any:
        """The values of a lazy array, which is that at a row, or a part of it, as a NumPy array."""
        try:
            return array.read()
        except Unsupported as error:
            raise LoadError(
                f"cannot load {self.columns.row_text(row)}: {error}; nothing was changed", self.plan
            ) from error

    def subarray(self, row: int, box: Box) -> Stored:
        """A part of an array, which is not read yet."""
        return subarray(self.lazy(row), box)

    def verify(self, arrays: Iterable[tuple[str, Any]]) -> None:
        """Verifies the checksums of arrays, given with a name for errors."""
        if self.verifies:
            checked_reads.verify_arrays([(name, array) for name, array in arrays if isinstance(array, Stored)])

    def verify_parts(self, parts: Iterable[tuple[str, Stored]], wholes: Iterable[tuple[str, Any]]) -> None:
        """Verifies the parts that this process needs of arrays that are loaded by several. If a checksum covers a whole
        array, one of the processes compares it for all."""
        if not self.verifies:
            return
        checked_reads.verify_subarrays([(name, part) for name, part in parts if not is_checked_whole(part)])
        position, count = self._place
        covered = [pair for pair in wholes if isinstance(pair[1], Stored) and is_checked_whole(pair[1])]
        checked_reads.verify_arrays(covered[position::count])

    def check_cast(self, array: Any, dtype: str, name: str) -> None:
        """Raises if a value does not fit into a dtype. A cast may only round."""
        if self.plan.saturate:
            return
        from leafwise.files.casts import SATURATE, misfit

        if reason := misfit(array, dtype):
            raise LoadError(f"cannot load {escape(name)}: {reason}; {SATURATE}; nothing was changed", self.plan)
