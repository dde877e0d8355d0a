"""A file that is being written, wherever it will be: what the writers of formats may do with it."""

from typing import Any

from leafwise.core.work.progress import Count
from leafwise.files.sources.source import Source


class Output:
    """A file that is being written. Bytes go to the end of it, or into gaps that were left for them. `path` is its
    final path or URL, and `at` is where `write` goes on."""

    path: str
    at: int

    def write(self, data: Any) -> int:
        """Writes at the end; returns the number of bytes."""
        raise NotImplementedError

    def skip(self, length: int) -> None:
        """Leaves a gap of `length` bytes, for `fill`."""
        raise NotImplementedError

    def fill(self, data: Any, start: int) -> None:
        """Writes into a gap. Several threads may do so."""
        raise NotImplementedError

    def expect(self, stop: int, in_threads: bool = False) -> None:
        """Says where the file will end, and whether several threads will fill a large part of it."""

    def source(self) -> Source:
        """A source with the bytes that were written so far, under the final name. If the file is not kept on this
        machine, only the header may be there."""
        raise NotImplementedError

    def start_writing(self, stop: int) -> None:
        """Says that all bytes before `stop` are final, but for gaps."""

    def counted(self, progress: Count) -> Count:
        """What to call with the number of bytes that were handed over. `progress` counts those that are written."""
        return progress
