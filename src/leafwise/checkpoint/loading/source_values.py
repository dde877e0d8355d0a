"""Reads and verifies values of the source, and checks them before they are cast."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from leafwise.checkpoint.planning.plan import Plan
from leafwise.core.path import escape
from leafwise.errors import LoadError, Unsupported
from leafwise.files.arrays.assembled import Live
from leafwise.files.arrays.stored import Stored
from leafwise.files.arrays.subarrays import Box, is_checked_whole, subarray
from leafwise.files.casts import SATURATE, misfit
from leafwise.files.reading import checked_reads


class SourceValues:
    """The arrays of the source of a plan, by row. `place` is the position of this process among those that load
    together, and their number."""

    def __init__(self, plan: Plan, verify: bool, place: tuple[int, int]) -> None:
        self.plan, self.columns, self.verifies, self._place = plan, plan.source.columns, verify, place

    def current(self, row: int) -> Any:
        return self.columns.current(row)

    def array(self, row: int) -> Any:
        """Values as a NumPy array: read from a file, or, for a live source, without a copy if possible."""
        value = self.current(row)
        try:
            return self.columns.home(value).read(value)
        except Unsupported as error:
            raise LoadError(
                f"cannot load {self.columns.row_text(row)}: {error}; nothing was changed", self.plan
            ) from error

    def subarray(self, row: int, box: Box) -> Stored:
        """A part of an array, which is not read yet."""
        value = self.current(row)
        if isinstance(value, Stored):
            return subarray(value, box)
        home = self.columns.home(value)
        return subarray(Live(home.spec(value), partial(home.read, value)), box)

    def verify(self, rows: Iterable[tuple[int, str]]) -> None:
        """Verifies the checksums of values, given by row and by a name for errors."""
        if self.verifies:
            checked_reads.verify_arrays(self._stored(rows))

    def verify_subarrays(self, subarrays: Iterable[tuple[str, Stored]], rows: Iterable[tuple[int, str]]) -> None:
        """Verifies the parts that this process needs of arrays that are loaded by several, given by row. If a checksum
        covers a whole array, one of the processes compares it for all."""
        if not self.verifies:
            return
        checked_reads.verify_subarrays(
            [(name, subarray) for name, subarray in subarrays if not is_checked_whole(subarray)]
        )
        position, count = self._place
        checked_reads.verify_arrays([pair for pair in self._stored(rows) if is_checked_whole(pair[1])][position::count])

    def _stored(self, rows: Iterable[tuple[int, str]]) -> list[tuple[str, Stored]]:
        values = ((name, self.current(row)) for row, name in rows)
        return [(name, value) for name, value in values if isinstance(value, Stored)]

    def check_cast(self, array: Any, dtype: str, name: str) -> None:
        """Raises if a value does not fit into a dtype. A cast may only round."""
        reason = "" if self.plan.saturate else misfit(array, dtype)
        if reason:
            raise LoadError(f"cannot load {escape(name)}: {reason}; {SATURATE}; nothing was changed", self.plan)

    def check_unchanged(self) -> None:
        """Raises if a file has changed since it was opened."""
        values = (self.current(feed.source) for feed in self.plan.feeds)
        sources = {storage.source for value in values if isinstance(value, Stored) for storage in value.storages()}
        checked_reads.unchanged(sources)
