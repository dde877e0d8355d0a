"""Carrying out the copies of a load: each executor takes the copies that it can do in its way, and returns the others.

- `to_devices` reads into buffers from which a device copies, casts and reorders.
- `into_memory` reads the bytes of files straight into the memory of arrays.
- `into_new_memory` does the same with new memory, which then becomes the arrays of homes that cannot write into theirs.

What none of them takes is read as a NumPy array, and written by its home.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.checkpoint.loading.copies import Copy, by_home, is_local
from leafwise.checkpoint.loading.source_values import SourceValues
from leafwise.checkpoint.planning.plan import turned
from leafwise.core import registry as homes
from leafwise.core.capabilities.loading import Landing, Loading
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.path import listed
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import bundled
from leafwise.errors import ChecksumError, LoadError, Unsupported
from leafwise.files.arrays.live import Copied
from leafwise.files.arrays.stored import Storage, spec_of
from leafwise.files.arrays.subarrays import before_turn, is_checked_whole, subarray
from leafwise.files.reading import checked_reads
from leafwise.files.reading.checked_reads import Read, ScatteredParts
from leafwise.files.sources.source import LocalSource

if TYPE_CHECKING:  # only loads to a device need it
    from leafwise.files.reading.landings import Transfers

_BATCH_BYTES = 1 << 28  # read before arrays are made of them; on other devices, this bounds the memory here


class Kept(NamedTuple):
    """A copy whose values are in spare memory of its device, and its landing there."""

    copy: Copy
    landing: Landing
    spare: Landing


class _Landed(NamedTuple):
    copy: Copy
    landing: Landing
    reads: list[Read]


class Copier:
    """Carries out the copies of one load."""

    def __init__(self, source: SourceValues, progress: Count, transfers: "Transfers") -> None:
        self._source, self._progress, self._transfers = source, progress, transfers

    def copy(self, copies: list[Copy], verify: bool) -> list[Copy]:
        """Copies what needs no NumPy array in between. With `verify`, compares checksums on the way, except of parts,
        which have been verified. Returns the copies that are left."""
        on_host = [copy for copy in copies if copy.casts == "host"]
        left = self.to_devices([copy for copy in copies if copy.casts != "host"] if on_host else copies, verify)
        return on_host + self.into_memory(left, verify)

    # -- to devices ------------------------------------------------------------------------------------

    def to_devices(self, copies: list[Copy], verify: bool) -> list[Copy]:
        landed, left = self._landed(copies, only_check=False)
        self._fill([(entry.copy, entry.reads) for entry in landed], verify)
        # Values that do not fit, or that a device casts in another way, are cast on the host.
        left += [entry.copy for entry in landed if entry.copy.casts and not entry.landing.fits()]
        return [copy._replace(casts="host") if copy.casts else copy for copy in left]

    def checked_on_devices(self, copies: list[Copy], verify: bool) -> list[Copy]:
        """Reads values that are cast to their devices, without writing them, to find out whether they can be cast
        there. Returns the copies with what is known then."""
        landed, left = self._landed(copies, only_check=True)
        self._fill([(entry.copy, entry.reads) for entry in landed], verify, counts=False)
        fitting = [(entry.copy, "device" if entry.landing.fits() else "host") for entry in landed]
        return [*left, *(copy._replace(casts=casts, verified=True) for copy, casts in fitting)]

    def kept_on_devices(self, copies: list[Copy]) -> tuple[list[Kept], list[Copy]]:
        """Reads values to spare memory of their devices, and verifies them on the way. When everything is known to be
        right, they are moved from there; otherwise they would have to be read a second time."""
        landed, left = self._landed([copy for copy in copies if not copy.casts], only_check=False)
        left += [copy for copy in copies if copy.casts]
        wanted: list[_Landed] = []
        for entry in landed:
            is_one = len(entry.reads) == 1 and entry.reads[0].whole and entry.reads[0].storage.checksums is not None
            wanted.append(entry) if is_one else left.append(entry.copy)
        spare = self._transfers.spare([entry.landing for entry in wanted])
        kept, reads = [], []
        for entry, landing in zip(wanted, spare, strict=True):
            if landing is None:
                left.append(entry.copy)
            else:
                kept.append(Kept(entry.copy, entry.landing, landing))
                reads.append(entry.reads[0]._replace(target=landing))
        checked_reads.fill(reads, True, self._progress, self._transfers)
        return kept, left

    def move(self, kept: list[Kept]) -> list[Copy]:
        """Copies values from spare memory of devices to where they belong."""
        self._transfers.move([(entry.landing, entry.spare) for entry in kept])
        return [entry.copy for entry in kept]

    def _landed(self, copies: list[Copy], only_check: bool) -> tuple[list[_Landed], list[Copy]]:
        landed: list[_Landed] = []
        left: list[Copy] = []
        for home, of_home in by_home(copies).items():
            stored = [(copy.array.spec, copy.feed.order) for copy in of_home]
            landings = home.capability(Loading).landings([copy.target for copy in of_home], stored, only_check)
            for copy, landing in zip(of_home, landings, strict=True):
                reads = None if landing is None else self._landing_reads(copy, landing)
                left.append(copy) if landing is None or reads is None else landed.append(_Landed(copy, landing, reads))
        return landed, left

    def _landing_reads(self, copy: Copy, landing: Landing) -> list[Read] | None:
        runs = copy.array.runs()
        if runs is None or (len(runs) > 1 and not landing.is_flat) or self._transfers.of(landing) is None:
            return None
        parts = [landing] if len(runs) == 1 else [landing.part(at, nbytes) for _, _, at, nbytes in runs]
        return [
            Read(storage, start, part, copy.feed.name) for (storage, start, *_), part in zip(runs, parts, strict=True)
        ]

    # -- into memory -----------------------------------------------------------------------------------

    def into_memory(self, copies: list[Copy], verify: bool) -> list[Copy]:
        taken, left = _memory_reads(copies)
        self._fill(taken, verify)
        return left

    def _fill(self, taken: list[tuple[Copy, list[Read]]], verify: bool, counts: bool = True) -> None:
        """Carries out reads. The parts of arrays were verified before: those that share a checksum together."""
        progress = self._progress if counts else lambda count: None
        wholes = [read for copy, reads in taken if copy.part is None for read in reads]
        parts = [read for copy, reads in taken if copy.part is not None for read in reads]
        checked_reads.fill(wholes, verify, progress, self._transfers)
        if parts:
            checked_reads.fill(parts, False, progress, self._transfers)

    # -- into new memory, which becomes arrays ---------------------------------------------------------

    def into_new_memory(self, copies: list[Copy], checked: bool) -> tuple[Iterator[tuple[Copy, Any]], list[Copy]]:
        """Reads values into new memory, and returns each copy with the array that is made of it; and the copies that
        are left. Checksums are compared, and values that are cast must fit, unless that was `checked` before."""
        taken: list[Copy] = []
        left: list[Copy] = []
        for home, of_home in by_home(copies).items():
            are_taken = home.capability(Rebuilding).have_host_parts([copy.target for copy in of_home])
            for copy, is_taken in zip(of_home, are_taken, strict=True):
                (taken if is_taken and copy.part is None and not _is_staged(copy) else left).append(copy)
        return self._made_of_memory(taken, checked), left

    def _made_of_memory(self, copies: list[Copy], checked: bool) -> Iterator[tuple[Copy, Any]]:
        verify = self._source.verifies and not checked
        for batch in bundled(copies, lambda copy: copy.spec.nbytes, _BATCH_BYTES):
            filled = self._with_host_parts(batch)
            scattered: list[tuple[Copy, list[Read]]] = []
            pieces: list[Copy] = []
            for copy, host_parts in filled.values():
                storage = _scattered_storage(copy, host_parts)
                if storage is None:
                    pieces += _pieces(copy, host_parts)
                else:
                    scattered.append(
                        (copy, [Read(storage, 0, ScatteredParts(copy.array.spec, host_parts), copy.feed.name)])
                    )
            try:
                self._fill(scattered, verify)
                self._fill_pieces(pieces, verify, checked)
            except ChecksumError:
                self.verify(copies)  # to list every damaged leaf, not only those of the batch
                raise
            for home, of_home in by_home(batch).items():
                all_parts = [filled[copy.key][1] for copy in of_home]
                made = home.capability(Rebuilding).from_host_parts([copy.target for copy in of_home], all_parts)
                yield from zip(of_home, made, strict=True)

    def _with_host_parts(self, copies: list[Copy]) -> dict[tuple[int, int | None], tuple[Copy, list[LocalPart]]]:
        """Copies with the memory that each of them fills."""
        filled = {}
        for home, of_home in by_home(copies).items():
            try:
                made = home.capability(Rebuilding).host_parts([copy.target for copy in of_home])
            except Unsupported as error:
                names = listed([copy.feed.name for copy in of_home], 3)
                raise LoadError(f"cannot load {names}: {error}; nothing was changed", self._source.plan) from error
            for copy, host_parts in zip(of_home, made, strict=True):
                if len(host_parts) > 1 and not is_local(copy.array):  # so that nothing is downloaded twice
                    shape = copy.spec.shape or ()
                    whole, _ = checked_reads.empty(spec_of(shape, copy.spec.dtype))
                    host_parts = [LocalPart(whole, (0,) * len(shape), shape)]
                filled[copy.key] = copy, host_parts
        return filled

    def _fill_pieces(self, pieces: list[Copy], verify: bool, checked: bool) -> None:
        taken, left = _memory_reads(pieces)
        if verify:  # what is read whole is compared while it is read
            self.verify([*left, *(copy for copy, _ in taken if copy.part is not None)])
        self._fill(taken, verify)
        for copy in left:
            if not checked:
                self.check_cast(copy)
            copy.home.write(copy.target, self.cast_values(copy))

    def verify(self, copies: Iterable[Copy]) -> None:
        """Verifies the checksums of whole arrays."""
        self._source.verify(
            [
                (copy.feed.name, copy.array if copy.part is None else self._source.lazy(copy.feed.source))
                for copy in copies
            ]
        )

    # -- through arrays of NumPy -----------------------------------------------------------------------

    def stored_values(self, copy: Copy) -> Any:
        """The values for a copy, with the axes of the source."""
        if self._source.verifies and copy.is_far and not is_checked_whole(copy.array):
            return checked_reads.checked_subarray(copy.feed.name, copy.array)
        return self._source.read(copy.array, copy.feed.source)

    def values(self, copy: Copy) -> Any:
        """The values for a copy, with the axes of the target."""
        return turned(self.stored_values(copy), copy.feed.order)

    def check_cast(self, copy: Copy) -> None:
        """Raises if one of the values does not fit into the dtype of the target. A cast may only round."""
        if copy.casts == "host":
            self._source.check_cast(self.values(copy), copy.spec.dtype, copy.feed.name)

    def cast_values(self, copy: Copy) -> Any:
        """The values for a copy, with the axes and the dtype of the target."""
        values = self.values(copy)
        if not copy.casts:
            return values
        from leafwise.files.casts import cast_to

        return cast_to(values, copy.spec.dtype, self._source.plan.saturate)


def _memory_reads(copies: list[Copy]) -> tuple[list[tuple[Copy, list[Read]]], list[Copy]]:
    """What to read straight into the memory of arrays, and the copies for which that is not possible."""
    taken: list[tuple[Copy, list[Read]]] = []
    left = [copy for copy in copies if copy.casts or copy.feed.order is not None]
    plain = [copy for copy in copies if not copy.casts and copy.feed.order is None] if left else copies
    for home, of_home in by_home(plain).items():
        views = home.capability(Loading).writable_bytes([copy.target for copy in of_home])
        for copy, view in zip(of_home, views, strict=True):
            runs = copy.array.runs() if view is not None and len(view) == copy.array.spec.nbytes else None
            if runs is None or view is None:
                left.append(copy)
            else:
                reads = [
                    Read(storage, start, view[at : at + nbytes], copy.feed.name) for storage, start, at, nbytes in runs
                ]
                taken.append((copy, reads))
    return taken, left


def _is_staged(copy: Copy) -> bool:
    return isinstance(copy.array, Copied)


def _scattered_storage(copy: Copy, host_parts: list[LocalPart]) -> Storage | None:
    """The storage of an array in a local file whose bytes are copied to several parts as they are."""
    is_plain = len(host_parts) > 1 and not copy.casts and copy.feed.order is None
    run = copy.array.plain_run() if is_plain else None
    if run is None or not isinstance(run[0].source, LocalSource) or run[1:] != (0, run[0].nbytes):
        return None
    return run[0]


def _pieces(copy: Copy, host_parts: list[LocalPart]) -> Iterator[Copy]:
    """A copy to each part of the memory for an array."""
    for number, part in enumerate(host_parts):
        home = homes.home_of(part.value)
        if part.shape == copy.spec.shape:
            yield copy._replace(home=home, target=part.value)
        else:
            array = subarray(copy.array, before_turn(part.inside(), copy.feed.order))
            yield copy._replace(array=array, home=home, target=part.value, part=number)
