"""Comparing tensors on a device with values in files or in memory of the host, which are streamed to the device."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from leafwise.core.capabilities.comparing import OtherArray
from leafwise.core.results.comparison import Comparison, merged_comparisons
from leafwise.core.work.progress import Count
from leafwise.homes.torch.gpu.launching import start_kernels
from leafwise.homes.torch.gpu.uploading import PieceSource, Segment, Uploader, source_of
from leafwise.homes.torch.tensors import dtype_name
from leafwise.kernels.dtypes import item_bytes
from leafwise.kernels.triton import cuda_comparing
from leafwise.kernels.triton.cuda_comparing import Outcomes, PairColumns

_STAGING = 128 << 20  # bytes of each of the two buffers on the device
_ALIGNMENT = 256  # of arrays in a buffer
ACTION = "values of tensors on a GPU are compared"


class StreamedPair(NamedTuple):
    """A contiguous tensor on the device, and an array elsewhere. `side` is the side of the array; `number` is that of
    the pair, for errors."""

    tensor: torch.Tensor
    array: OtherArray
    number: int
    side: int


class _Part(NamedTuple):
    """Some elements of a pair: where they begin and end, and the place of the array's in the buffer."""

    pair: int
    start: int
    stop: int
    at: int


def compare_streamed(
    pairs: list[StreamedPair], device: torch.device, count: Count
) -> list[tuple[Comparison, bool]] | None:
    """How each pair compares, and whether casting one side gives the other. Pairs are compared a part at a time: while
    one part is compared, the next ones are read and copied. None if the system refuses pinned memory, or if kernels
    cannot run."""
    if not pairs:
        return []
    bundles = list(_bundles(pairs))
    length = max((parts[-1].at + _nbytes(pairs, parts[-1]) for parts in bundles), default=0)
    staging = [torch.empty(length, dtype=torch.uint8, device=device) for _ in bundles[:2]]
    with Uploader(device, sum(_nbytes(pairs, part) for parts in bundles for part in parts)) as uploader:
        if uploader.pool is None:
            return None
        streaming = _Streaming(pairs, bundles, staging, uploader)
        following = streaming.start(0) if bundles else []
        for number, parts in enumerate(bundles):
            copies = following
            if number + 1 < len(bundles):  # while the copies of a bundle are awaited, those of the next one are made
                following = streaming.start(number + 1)
            if not streaming.compare(number, copies):
                return None
            count(sum(_first_nbytes(pairs[part.pair], part) for part in parts))
        streaming.check_ends()
        return _results(pairs, streaming.waits)


class _Streaming:
    """The bundles of parts on their way through two buffers on the device."""

    def __init__(
        self, pairs: list[StreamedPair], bundles: list[list[_Part]], staging: list[torch.Tensor], uploader: Uploader
    ) -> None:
        self._pairs, self._bundles, self._staging, self._uploader = pairs, bundles, staging, uploader
        assert uploader.pool is not None
        self._device, self._stream = uploader.pool.device, uploader.pool.stream
        self._sources = [source_of(pair.array, pair.number, pair.side) for pair in pairs]
        self._used: list[Any] = [None, None]  # events that the kernels which read a buffer are done
        self.waits: list[tuple[list[_Part], Callable[[], Outcomes]]] = []

    def start(self, number: int) -> list["Future[None]"]:
        """Starts copying a bundle, after the kernels have finished with its buffer."""
        if self._used[number % 2] is not None:
            self._stream.wait_event(self._used[number % 2])
        segments = []
        for part in self._bundles[number]:
            start = part.start * item_bytes(self._pairs[part.pair].array.dtype)
            segments.append(Segment(self._sources[part.pair], start, part.at, _nbytes(self._pairs, part)))
        return self._uploader.start(self._staging[number % 2], segments)

    def compare(self, number: int, copies: list["Future[None]"]) -> bool:
        """Starts comparing a bundle, after it was copied. False if kernels cannot run."""
        for copy in copies:
            copy.result()
        columns = _columns(self._pairs, self._bundles[number], self._staging[number % 2])
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

        def launch() -> Callable[[], Outcomes]:
            return cuda_comparing.compare(cuda_comparing.table_of(columns, self._device), with_norms=True)

        wait = start_kernels(self._device, launch, ACTION)
        if wait is None:
            return False
        if self._stream is not None:
            self._used[number % 2] = torch.cuda.current_stream(self._device).record_event()
        self.waits.append((self._bundles[number], wait))
        return True

    def check_ends(self) -> None:
        for source in self._sources:
            if isinstance(source, PieceSource):
                source.check_end()


def uploaded(pair: StreamedPair, device: torch.device) -> torch.Tensor | None:
    """The array of a pair as a contiguous tensor on a device; None if the system refuses pinned memory."""
    array = pair.array
    nbytes = array.size * item_bytes(array.dtype)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    with Uploader(device, nbytes) as uploader:
        if uploader.pool is None:
            return None
        source = source_of(array, pair.number, pair.side)
        for copy in uploader.start(target, [Segment(source, 0, 0, nbytes)]):
            copy.result()
        if isinstance(source, PieceSource):
            source.check_end()
    tensor: torch.Tensor = target.view(getattr(torch, array.dtype)).view(array.shape)
    return tensor


def _nbytes(pairs: list[StreamedPair], part: _Part) -> int:
    return (part.stop - part.start) * item_bytes(pairs[part.pair].array.dtype)


def _first_nbytes(pair: StreamedPair, part: _Part) -> int:
    dtype = pair.array.dtype if pair.side == 0 else dtype_name(pair.tensor.dtype)
    return (part.stop - part.start) * item_bytes(dtype)


def _bundles(pairs: list[StreamedPair]) -> Iterator[list[_Part]]:
    """The parts of all pairs, in bundles that fit into a buffer."""
    bundle: list[_Part] = []
    end = 0
    for number, pair in enumerate(pairs):
        item = item_bytes(pair.array.dtype)
        step = max(_STAGING // item // cuda_comparing.CHUNK, 1) * cuda_comparing.CHUNK
        for start in range(0, pair.array.size, step):
            stop = min(start + step, pair.array.size)
            at = -(-end // _ALIGNMENT) * _ALIGNMENT
            if bundle and at + (stop - start) * item > _STAGING:
                yield bundle
                bundle, at = [], 0
            bundle.append(_Part(number, start, stop, at))
            end = at + (stop - start) * item
    if bundle:
        yield bundle


def _columns(pairs: list[StreamedPair], parts: list[_Part], staging: torch.Tensor) -> PairColumns:
    """The parts as pairs of arrays on the device, with each on its side."""
    addresses: tuple[list[int], list[int]] = ([], [])
    dtypes: tuple[list[str], list[str]] = ([], [])
    for part in parts:
        tensor, array, _, side = pairs[part.pair]
        addresses[side].append(staging.data_ptr() + part.at)
        addresses[1 - side].append(tensor.data_ptr() + part.start * tensor.element_size())
        dtypes[side].append(array.dtype)
        dtypes[1 - side].append(dtype_name(tensor.dtype))
    return PairColumns(*addresses, [part.stop - part.start for part in parts], *dtypes, [0] * len(parts))


def _results(
    pairs: list[StreamedPair], waits: list[tuple[list[_Part], Callable[[], Outcomes]]]
) -> list[tuple[Comparison, bool]]:
    comparisons: list[list[Comparison]] = [[] for _ in pairs]
    forth, back = [True] * len(pairs), [True] * len(pairs)
    for parts, wait in waits:
        outcomes = wait()
        for number, part in enumerate(parts):
            comparisons[part.pair].append(outcomes.comparisons[number])
            forth[part.pair] &= outcomes.forth[number]
            back[part.pair] &= outcomes.back[number]
    results = []
    for number, pair in enumerate(pairs):
        comparison = merged_comparisons(comparisons[number])
        if not comparison.changed:
            comparison = Comparison(pair.array.size, 0)
        results.append((comparison, forth[number] or back[number]))
    return results
