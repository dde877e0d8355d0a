"""What a load reads for each leaf: straight into the memory of an array, or to an array on a device."""

from typing import Any, NamedTuple

from leafwise.checkpoint.loading.source_values import SourceValues
from leafwise.checkpoint.planning.plan import Feed, turned
from leafwise.core.capabilities.loading import Landing, Loading
from leafwise.core.home import Home, Spec
from leafwise.files.arrays.stored import Storage, Stored, as_bytes, spec_of
from leafwise.files.arrays.subarrays import is_checked_whole
from leafwise.files.casts import cast_to
from leafwise.files.reading import checked_reads
from leafwise.files.reading.checked_reads import ReadRequest
from leafwise.files.reading.landings import Transfers
from leafwise.files.sources.source import BytesSource

TargetKey = tuple[int, int]  # identifies a target: the row of the leaf, and the number of the part
_Runs = list[tuple[Storage, int, int, int]]  # storages, the byte to begin at, the byte of the array, how many bytes


class LoadTarget(NamedTuple):
    """A leaf that gets values, or a part of it in this process: the array they go into, and its home.

    A part has a `number`, and `subarray` are the values of the source for it."""

    feed: Feed
    home: Home
    value: Any
    fresh: bool  # whether `value` is new memory that will replace the current array
    number: int = 0
    subarray: Stored | None = None

    @property
    def is_cast(self) -> bool:
        return "cast" in self.feed.how

    @property
    def key(self) -> TargetKey:
        return self.feed.row, self.number

    @property
    def dtype(self) -> str:
        return self.home.spec(self.value).dtype

    @property
    def is_far(self) -> bool:
        """Whether it is a part that is on another machine, so that it is read only once."""
        return self.subarray is not None and not is_local(self.subarray)


class TargetReads(NamedTuple):
    """What to read for one target, and how it gets to its device, if it is on one."""

    target: LoadTarget
    requests: list[ReadRequest]
    landing: Landing | None = None


class KeptRead(NamedTuple):
    """What to read for one target to spare memory of its device, from where it is copied to its landing later."""

    target: LoadTarget
    landing: Landing
    spare: Landing
    request: ReadRequest


def is_local(array: Stored) -> bool:
    """Whether a stored array is on this machine."""
    return all(storage.source.is_local for storage in array.storages())


class LoadReads:
    """Finds out what to read for the targets of one load, and reads what goes through arrays of the host."""

    def __init__(self, source: SourceValues, staged: dict[TargetKey, Any], transfers: Transfers) -> None:
        self._source, self._staged, self.transfers = source, staged, transfers

    def is_staged(self, target: LoadTarget) -> bool:
        """Whether the values for a target were copied first."""
        return target.key in self._staged

    def of(self, target: LoadTarget) -> TargetReads | None:
        """What to read for a target; None if its values must be converted on the CPU."""
        return self._to_device(target, False) or self._into_memory(target)

    def to_check(self, target: LoadTarget) -> TargetReads | None:
        """What to read to check, on the device of a target, whether its values can be cast there."""
        return self._to_device(target, True)

    def to_keep(self, targets: list[LoadTarget]) -> list[KeptRead]:
        """What to read to spare memory of devices: whole values that are verified on the way."""
        reads = []
        for target in targets:
            read = self._to_device(target, False)
            if read is not None and len(read.requests) == 1:
                (request,) = read.requests
                if request.whole and request.storage.checksums is not None:
                    reads.append((target, request))
        landings = [request.target for _, request in reads if not isinstance(request.target, memoryview)]
        return [
            KeptRead(target, landing, spare, request._replace(target=spare))
            for (target, request), landing, spare in zip(reads, landings, self.transfers.spare(landings), strict=True)
            if spare is not None
        ]

    def stored(self, target: LoadTarget) -> Any:
        """The values of the source for a target."""
        return self._source.current(target.feed.source) if target.subarray is None else target.subarray

    def array(self, target: LoadTarget) -> Any:
        """The values of the source for a target, with its axes."""
        array = self._staged.get(target.key)
        if array is None:
            array = self._source.array(target.feed.source) if target.subarray is None else self.subarray(target)
        return turned(array, target.feed.order)

    def subarray(self, target: LoadTarget) -> Any:
        """The values of the source for a target that is a part."""
        assert target.subarray is not None
        if self._source.verifies and target.is_far and not is_checked_whole(target.subarray):
            return checked_reads.checked_subarray(target.feed.name, target.subarray)
        return target.subarray.read()

    def check_cast(self, array: Any, target: LoadTarget) -> None:
        """Raises if one of the values for a target does not fit into its dtype. A cast may only round."""
        self._source.check_cast(array, target.dtype, target.feed.name)

    def cast(self, array: Any, target: LoadTarget) -> Any:
        """The values for a target in its dtype."""
        return cast_to(array, target.dtype, self._source.plan.saturate) if target.is_cast else array

    def _into_memory(self, target: LoadTarget) -> TargetReads | None:
        value, feed = self.stored(target), target.feed
        if self.is_staged(target) or feed.order is not None or target.is_cast or not isinstance(value, Stored):
            return None
        runs = value.runs()
        view = None if runs is None else target.home.capability(Loading).writable_bytes(target.value)
        if runs is None or view is None or len(view) != value.spec.nbytes:
            return None
        requests = [
            ReadRequest(storage, start, view[at : at + nbytes], feed.name) for storage, start, at, nbytes in runs
        ]
        return TargetReads(target, requests)

    def _to_device(self, target: LoadTarget, only_check: bool) -> TargetReads | None:
        feed = target.feed
        loading = target.home.capability(Loading)
        if not loading.has_landings(target.value) or (stored := self._bytes(target)) is None:
            return None
        runs, spec = stored
        landing = loading.landing(target.value, spec, feed.order, only_check)
        if landing is None or (len(runs) > 1 and not landing.is_flat) or self.transfers.of(landing) is None:
            return None
        parts = [landing] if len(runs) == 1 else [landing.part(at, nbytes) for _, _, at, nbytes in runs]
        requests = [ReadRequest(run[0], run[1], part, feed.name) for run, part in zip(runs, parts, strict=True)]
        return TargetReads(target, requests, landing)

    def _bytes(self, target: LoadTarget) -> tuple[_Runs, Spec] | None:
        """Where the values of the source are: in files, in copies of them, or in the memory of a live source."""
        value, array = self.stored(target), self._staged.get(target.key)
        if array is not None:
            is_plain = array.flags.c_contiguous and array.dtype.isnative
            return _in_memory(as_bytes(array), spec_of(array.shape, array.dtype.name)) if is_plain else None
        if isinstance(value, Stored):
            runs = value.runs()
            return None if runs is None else (runs, value.spec)
        home = self._source.columns.home(value)
        view = home.capability(Loading).writable_bytes(value)
        return None if view is None else _in_memory(view, home.spec(value))


def _in_memory(view: memoryview, spec: Spec) -> tuple[_Runs, Spec]:
    return [(Storage(BytesSource("", view), 0, len(view)), 0, 0, len(view))], spec
