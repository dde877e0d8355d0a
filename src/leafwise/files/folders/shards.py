"""Checkpoints in several files: with an index, as Hugging Face writes them, or without."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any

from leafwise.core.path import listed, shown_file
from leafwise.errors import ChecksumError, FileError
from leafwise.files.checksums import checksum
from leafwise.files.formats import detect
from leafwise.files.formats.safetensors import without_duplicates
from leafwise.files.limits import json_cost
from leafwise.files.record import INDEX as SEALED_INDEX
from leafwise.files.record import KEY, HeaderRecord, add_ties, is_sealed, is_trusted, read_record
from leafwise.files.sources.folder import ENOUGH, Folder, is_index
from leafwise.files.sources.source import Source, closed_on_error
from leafwise.files.stored_file import StoredFile

MAX_INDEX = 1 << 28


def read_index(source: Source, folder: Folder) -> StoredFile:
    """Opens the shards that an index in the folder lists. If a save meanwhile replaces the index and removes the old
    shards, the new index is read."""
    text = _text(source)
    while True:
        try:
            return _read_index(source, text, folder)
        except FileError as error:
            before = text
            folder.forget()
            try:
                text = _text(folder.open(os.path.basename(source.name)))
            except FileError as gone:
                if isinstance(gone.__cause__, FileNotFoundError):
                    raise  # the caller checks whether a single file has replaced it
                raise error from error.__cause__
            if text == before:
                raise


def read_series(folder: Folder, names: list[str]) -> StoredFile:
    """Opens shards without an index, whose names are a numbered series such as `model-00001-of-00002.safetensors`."""
    if missing := list(islice(missing_of_series(names), ENOUGH)):
        match = SERIES.fullmatch(names[0])
        raise _missing(folder, missing, int(match["count"]) if match else 0)
    return _merged(folder, names) if len(names) > 1 else detect.read(folder.open(names[0]))


def _text(source: Source) -> bytes:
    if source.size > MAX_INDEX:
        raise source.error(0, f"the index has {source.size:,} bytes; leafwise reads at most {MAX_INDEX:,}")
    try:
        return bytes(source.read(0, source.size))
    finally:
        source.close()


def listed_in_index(folder: Folder, name: str) -> tuple[set[str], bool]:
    """The shards that an index lists, and whether leafwise wrote it."""
    source = folder.open(name)
    text = _text(source)
    source.limits = folder.limits.anew()  # what is read here is read again if the index is opened
    _, weights = _parsed(source, text)
    return set(weights.values()), is_sealed(text, SEALED_INDEX, 0)


def _parsed(source: Source, text: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The index, and its map from names to shards."""
    source.limits.spend_bytes(3 * json_cost(text) // 2)  # the hook below builds lists of pairs
    try:
        index = json.loads(text, object_pairs_hook=without_duplicates)
        weights = index["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise source.error(0, "the index is not JSON with a weight_map") from error
    if not isinstance(weights, dict) or not weights or not all(isinstance(shard, str) for shard in weights.values()):
        raise source.error(0, "the weight_map of the index does not map names to files")
    return index, weights


def _read_index(source: Source, text: bytes, folder: Folder) -> StoredFile:
    ours = is_trusted(text, SEALED_INDEX, 0, source)
    index, weights = _parsed(source, text)
    record = read_record(index[KEY], {}, source) if ours and isinstance(index.get(KEY), str) else HeaderRecord()
    names = list(dict.fromkeys(weights.values()))
    if record.shards and record.shards.keys() != set(names):
        raise source.error(0, "leafwise's entry and the weight_map list different shards")
    merged = _merged(folder, names, record.shards)
    merged.content = {key: value for key, value in merged.content.items() if key in weights}
    missing = [key for key in weights if key not in merged.content]
    if missing:
        raise source.error(
            0, f"the index says that {missing[0]!a} is in {weights[missing[0]]!a}, but that file does not contain it"
        )
    for key, shard in weights.items():
        if merged.shard_of[key] != shard:
            raise source.error(0, f"the index says that {key!a} is in {shard!a}, but it is in {merged.shard_of[key]!a}")
    if ours:
        merged.record = merged.record or HeaderRecord()
        merged.record.merge(record)
        add_ties(merged.content, merged.record.ties, source)
    index_metadata = index.get("metadata")
    if isinstance(index_metadata, dict):
        merged.metadata = {str(key): value for key, value in index_metadata.items()}
    merged.index_path = source.name
    return merged


def _merged(folder: Folder, names: list[str], seals: dict[str, str] | None = None) -> StoredFile:
    """Opens several files as one. `seals` are the seals that the index lists, by file name: a file with a different
    seal is not the one that the index was written with."""
    content: dict[str, Any] = {}
    shard_of: dict[str, str] = {}
    without: dict[str, None] = {}  # as an ordered set
    first: StoredFile | None = None
    record: HeaderRecord | None = None
    in_order = True
    # Checked before any file is read, because it is cheap: an incomplete download lacks its last files.
    sources, missing = folder.open_all(names)
    with closed_on_error(sources.values()):
        if missing:
            raise _missing(folder, missing, len(names))
        for name, opened in sources.items():
            shard = detect.read(opened)
            if seals and shard.seal != seals[name] and folder.verify:
                raise ChecksumError(
                    f"{shown_file(opened.name)} is not the shard that the index was written with; is it from "
                    "another save, or did another program rewrite it?"
                )
            without.update(dict.fromkeys(shard.without_checksums))
            if shard.record is not None:
                record = record or HeaderRecord()
                record.merge(shard.record)
            first = first or shard
            if not isinstance(shard.content, dict):
                raise shard.source.error(0, "a shard must contain a flat mapping from names to arrays")
            in_order = in_order and _is_sorted(shard.content)
            for key, value in shard.content.items():
                if key in content:
                    raise shard.source.error(0, f"{key!a} is also in {shard_of[key]!a}; a name belongs to one shard")
                content[key] = value
                shard_of[key] = name
    assert first is not None
    if in_order and record is None and first.format == "safetensors":
        # As the safetensors library would write them into one file. A layer that is in two shards then looks like the
        # others.
        content = dict(sorted(content.items()))
    merged = StoredFile(
        first.source, f"{len(names)} {'file' if len(names) == 1 else 'files'}, {first.format}", content, sources=sources
    )
    merged.shard_of = shard_of
    merged.without_checksums = tuple(without)
    merged.record = record
    merged.path = folder.path
    if seals:
        merged.seal = checksum(" ".join(seals.values()).encode())  # without the names, which are new in each save
    merged.bound = len(seals or ())
    merged.unbound = len(names) - merged.bound
    return merged


def _is_sorted(names: Iterable[Any]) -> bool:
    """Whether names are in order. A pickle may have other keys than text, which cannot always be compared."""
    return all(isinstance(name, str) for name in names) and all(first <= second for first, second in pairwise(names))


def _missing(folder: Folder, missing: list[str], count: int) -> FileError:
    names = listed([ascii(name) for name in missing])
    are = "are" if len(missing) > 1 else "is"
    many = f"{'at least ' if len(missing) == ENOUGH else ''}{len(missing):,}"
    error = FileError(
        f"{shown_file(folder.path)}: {many} of {count:,} shards {are} missing: {names}; is the download complete?"
    )
    if folder.has_changed():  # a save is replacing the files: this makes the caller try again
        error.__cause__ = FileNotFoundError()
    return error


def missing_of_series(names: list[str]) -> Iterator[str]:
    """The names that are missing in a numbered series.

    >>> list(missing_of_series(["model-00001-of-00003.bin", "model-00003-of-00003.bin"]))
    ['model-00002-of-00003.bin']
    """
    matches = [match for name in names if (match := SERIES.fullmatch(name)) is not None]
    numbers = {int(match["number"]) for match in matches}
    first, last = matches[0], 0 if 0 in numbers else 1
    for number in range(last, last + int(first["count"])):
        if number not in numbers:
            yield f"{first['stem']}{number:0{len(first['number'])}}{first['rest']}"


SERIES = re.compile(r"(?P<stem>.*?)(?P<number>\d+)(?P<rest>-of-0*(?P<count>\d+).*)", re.ASCII | re.DOTALL)


def is_shard(path: str) -> bool:
    """Whether a file is one of a numbered series, by its name.

    >>> is_shard("a/model-00001-of-00002.safetensors"), is_shard("model.safetensors")
    (True, False)
    """
    name = re.split(r"[/\\]", path)[-1]
    return SERIES.fullmatch(name) is not None and not is_index(name)
