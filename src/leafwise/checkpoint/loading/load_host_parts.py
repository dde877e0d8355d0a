"""Loading into new memory of the host, which then becomes the arrays of homes that cannot write into theirs, as in JAX.

For an array on several devices, there is memory for the part of each, and only these parts of the file are read.
"""

from collections.abc import Iterator
from itertools import compress
from typing import Any

from leafwise.checkpoint.loading.load_reads import LoadReads, LoadTarget, is_local
from leafwise.checkpoint.loading.source_values import SourceValues
from leafwise.core import registry as homes
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import bundled
from leafwise.errors import ChecksumError, LoadError, Unsupported
from leafwise.files.arrays.stored import Stored, spec_of
from leafwise.files.arrays.subarrays import before_turn
from leafwise.files.reading import checked_reads
from leafwise.files.reading.scattering import ScatteredArray, can_scatter, scatter

_BATCH_BYTES = 1 << 28  # read before arrays are made of them; on other devices, this bounds the memory here


class LoadHostParts:
    """Fills new memory for the leaves of one load."""

    def __init__(self, source: SourceValues, reads: LoadReads, progress: Count) -> None:
        self._plan, self._source, self._reads, self._progress = source.plan, source, reads, progress

    def takes(self, target: LoadTarget) -> bool:
        """Whether the values of a target go through new memory."""
        is_whole = target.subarray is None and not self._reads.is_staged(target)
        return is_whole and target.home.capability(Rebuilding).has_host_parts(target.value)

    def fill(self, targets: list[LoadTarget], checked: bool) -> Iterator[tuple[LoadTarget, Any]]:
        """Reads the values of targets, and returns each with its array. Checksums are compared, and values that are
        cast must fit, unless that was `checked` before."""
        for batch in _batches(targets):
            filled = [(target, self._host_parts(target)) for target in batch]
            scattered = [self._is_scattered(*pair) for pair in filled]
            parts = [
                part
                for pair, is_scattered in zip(filled, scattered, strict=True)
                if not is_scattered
                for part in self._parts(*pair)
            ]
            try:
                arrays = [
                    ScatteredArray(target.feed.name, self._source.current(target.feed.source), host_parts)
                    for target, host_parts in compress(filled, scattered)
                ]
                scatter(arrays, self._source.verifies and not checked, self._progress)
                self._read(parts, checked)
            except ChecksumError:
                self._verify(targets)  # to list every damaged leaf, not only those of the batch
                raise
            for target, some in filled:
                yield target, target.home.capability(Rebuilding).from_host_parts(target.value, some)

    def _host_parts(self, target: LoadTarget) -> list[LocalPart]:
        try:
            host_parts = target.home.capability(Rebuilding).host_parts(target.value)
        except Unsupported as error:
            raise LoadError(f"cannot load {target.feed.name}: {error}; nothing was changed", self._plan) from error
        stored = self._source.current(target.feed.source)
        is_far = isinstance(stored, Stored) and not is_local(stored)
        if len(host_parts) > 1 and is_far:  # so that nothing is downloaded twice
            spec = target.home.spec(target.value)
            shape = spec.shape or ()
            return [LocalPart(checked_reads.empty(spec_of(shape, spec.dtype))[0], (0,) * len(shape), shape)]
        return host_parts

    def _parts(self, target: LoadTarget, host_parts: list[LocalPart]) -> Iterator[LoadTarget]:
        """A target for each part."""
        shape = target.home.spec(target.value).shape
        for number, host_part in enumerate(host_parts):
            handled = homes.find(type(host_part.value))
            assert handled is not None
            box = before_turn(host_part.inside(), target.feed.order)
            subarray = None if host_part.shape == shape else self._source.subarray(target.feed.source, box)
            yield LoadTarget(target.feed, handled[0], host_part.value, True, number, subarray)

    def _is_scattered(self, target: LoadTarget, host_parts: list[LocalPart]) -> bool:
        """Whether the bytes of one array of a file are copied to several parts as they are."""
        stored = self._source.current(target.feed.source)
        is_plain = not target.is_cast and target.feed.order is None and isinstance(stored, Stored)
        return len(host_parts) > 1 and is_plain and can_scatter(stored)

    def _read(self, parts: list[LoadTarget], checked: bool) -> None:
        reads = [self._reads.of(part) for part in parts]
        direct = [read for read in reads if read is not None]
        if not checked:  # what is read whole is compared while it is read
            on_the_way = {part.key for part, read in zip(parts, reads, strict=True) if read and part.subarray is None}
            self._verify([part for part in parts if part.key not in on_the_way])
        for is_section in (False, True):
            requests = [
                request
                for read in direct
                if (read.target.subarray is not None) == is_section
                for request in read.requests
            ]
            checked_reads.fill(requests, self._source.verifies and not checked and not is_section, self._progress)
        for part, read in zip(parts, reads, strict=True):
            if read is None:
                array = self._reads.array(part)
                if part.is_cast and not checked:
                    self._reads.check_cast(array, part)
                part.home.write(part.value, self._reads.cast(array, part))

    def _verify(self, targets: list[LoadTarget]) -> None:
        self._source.verify({target.feed.source: target.feed.name for target in targets}.items())


def _batches(targets: list[LoadTarget]) -> Iterator[list[LoadTarget]]:
    return bundled(targets, lambda target: target.home.spec(target.value).nbytes, _BATCH_BYTES)
