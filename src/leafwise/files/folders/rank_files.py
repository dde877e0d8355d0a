"""Files that each process of a training run wrote for itself, opened as one checkpoint.

Tensors of which each file has a part are put together. What is equal in all files is listed once. What differs, such as
the state of a random number generator, is listed for each file, below its name, as `rank0`, `rank1` and so on.
"""

import re
from collections.abc import Sequence
from typing import Any

from leafwise.core.pairing.plain_pairs import same_plain
from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files.arrays.stored import Storage, Stored, Unreadable, as_bytes, spec_of
from leafwise.files.checksums import Crc32
from leafwise.files.formats import detect
from leafwise.files.pickles.torch_shards import Box, PartOfTensor, whole_or_part
from leafwise.files.sources.folder import Folder
from leafwise.files.sources.source import Source, closed_on_error
from leafwise.files.stored_file import StoredFile

_NAME = re.compile(r"(?P<stem>.*?rank[-_]?)(?P<number>\d{1,6})(?P<rest>\D*)", re.ASCII | re.DOTALL | re.IGNORECASE)
_MOST_FILES = 4_096


def is_series(names: Sequence[str]) -> bool:
    """Whether files have the names of the files of several processes.

    >>> is_series(["rank0.pt", "rank1.pt"]), is_series(["rank0.pt", "last.pt"]), is_series(["rank_1.pt"])
    (True, False, False)
    """
    matches = [_NAME.fullmatch(name) for name in names]
    if len(names) < 2 or not all(matches):
        return False
    return len({(match["stem"], match["rest"]) for match in matches if match}) == 1


def read_folder(folder: Folder, names: Sequence[str]) -> StoredFile:
    """Opens files of several processes in a folder, in the order of their numbers."""
    numbers = {name: int(match["number"]) for name in names if (match := _NAME.fullmatch(name))}
    ordered = sorted(names, key=numbers.__getitem__)
    opened = read_files([folder.open(name) for name in ordered], [f"rank{numbers[name]}" for name in ordered])
    opened.path = folder.path
    return opened


def read_files(sources: Sequence[Source], labels: Sequence[str] = ()) -> StoredFile:
    """Opens files of several processes. `labels` are the names under which what differs is listed."""
    try:
        with closed_on_error(sources):
            if len(sources) > _MOST_FILES:
                raise FileError(f"leafwise opens the files of at most {_MOST_FILES:,} processes together")
            files = list(map(detect.read, sources))
            labels = labels or [f"rank{number}" for number in range(len(sources))]
            content = _Merge(labels).merged([file.content for file in files], labels)
    except RecursionError as error:
        raise FileError(f"{shown_file(sources[0].name)}: its content is nested too deeply") from error
    first = files[0]
    merged = StoredFile(
        first.source, f"{len(files)} {'file' if len(files) == 1 else 'files'}, {first.format}", content, first.metadata
    )
    merged.add_sources({file.source.name: file.source for file in files[1:]})
    merged.without_checksums = tuple(dict.fromkeys(name for file in files for name in file.without_checksums))
    merged.unread_objects = [read for file in files for read in file.unread_objects]
    return merged


class _Merge:
    """Puts the contents of files together. Containers that occur in several places are merged once."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._files = len(labels)
        self._done: dict[tuple[int, ...], Any] = {}

    def merged(self, values: list[Any], labels: Sequence[str]) -> Any:
        if len(values) == 1 and not isinstance(values[0], dict | PartOfTensor):
            return values[0]
        key = tuple(map(id, values))
        if key not in self._done:
            self._done[key] = self._merged(values, labels)
        return self._done[key]

    def _merged(self, values: list[Any], labels: Sequence[str]) -> Any:
        first = values[0]
        if all(isinstance(value, Stored) for value in values):
            return self._array(values, labels)
        kinds = {type(value) for value in values}
        if all(isinstance(value, dict) for value in values):
            return self._dict(values, labels)
        if kinds in ({list}, {tuple}) and len({len(value) for value in values}) == 1:
            return type(first)(self.merged(list(items), labels) for items in zip(*values, strict=True))
        if len(kinds) == 1 and all(same_plain(first, value) for value in values[1:]):
            return first
        return dict(zip(labels, values, strict=True))

    def _dict(self, values: list[dict[Any, Any]], labels: Sequence[str]) -> dict[Any, Any]:
        """A dict with the keys of all. A key that some files do not have, such as a layer of another stage of a
        pipeline, is taken from those that have it."""
        merged = {}
        for key in dict.fromkeys(key for value in values for key in value):
            having = [(value[key], label) for value, label in zip(values, labels, strict=True) if key in value]
            merged[key] = self.merged([value for value, _ in having], [label for _, label in having])
        return merged

    def _array(self, values: list[Stored], labels: Sequence[str]) -> Any:
        first = values[0]
        same_form = len({(value.spec.shape, value.spec.dtype) for value in values}) == 1
        if same_form and any(isinstance(value, PartOfTensor) for value in values):
            return self._put_together(values, labels)
        if same_form and all(_same_bytes(first, value) for value in values[1:]):
            return first
        return dict(zip(labels, values, strict=True))

    def _put_together(self, values: list[Stored], labels: Sequence[str]) -> Stored:
        spec = values[0].spec
        shape, by_place = spec.shape or (), dict[str, tuple[Box, str]]()
        for value, label in zip(values, labels, strict=True):
            boxes = value.boxes if isinstance(value, PartOfTensor) else [Box((0,) * len(shape), value)]
            for box in boxes:
                # Keyed by text: a hostile file can choose tuples of numbers that have the same hash.
                other, other_label = by_place.setdefault(str((box.position, box.size)), (box, label))
                if other is not box and not _same_bytes(other.array, box.array):
                    why = f"the files of {other_label} and {label} have different values for its part {box.text()}"
                    return Unreadable(spec_of(shape, spec.dtype, trainable=spec.trainable), why)
        return whole_or_part(shape, spec.dtype, spec.trainable, [box for box, _ in by_place.values()], self._files)


def _same_bytes(first: Stored, second: Stored) -> bool:
    """Whether two arrays of the same shape and dtype have the same bits: by the checksums of their files if they are
    whole entries of a zip, otherwise by reading them."""
    if isinstance(first, Unreadable) or isinstance(second, Unreadable):
        return False
    sums = [_crc_of(array) for array in (first, second)]
    if None not in sums:
        return sums[0] == sums[1]
    return all(as_bytes(a) == as_bytes(b) for a, b in zip(first.parts(), second.parts(), strict=True))


def _crc_of(array: Stored) -> int | None:
    run: tuple[Storage, int, int] | None = array.plain_run()
    if run is None or (run[1], run[2]) != (0, run[0].nbytes) or not isinstance(run[0].checksums, Crc32):
        return None
    return run[0].checksums.wanted
