"""Checkpoints in several files: with an index, as Hugging Face writes them, or without."""

import json
import os
import re
from itertools import islice
from typing import Any

from leafwise.core.path import shown_file
from leafwise.errors import ChecksumError, FileError
from leafwise.files import detect
from leafwise.files.folder import ENOUGH, INDEX, Folder
from leafwise.files.limits import json_cost
from leafwise.files.record import INDEX as SEALED_INDEX
from leafwise.files.record import KEY, HeaderRecord, add_ties, is_trusted, read_record
from leafwise.files.safetensors import without_duplicates
from leafwise.files.source import Source
from leafwise.files.stored_file import StoredFile

MAX_INDEX = 1 << 28
_NAME = 200  # bytes of memory for the name of a file


def read(folder: Folder) -> StoredFile:
    """Opens the folder; only the header of each file is read."""
    names = folder.names
    folder.limits.spend_bytes(_NAME * len(names))
    # These names are preferred to other files in the folder, such as training_args.bin or adapters. If both exist,
    # safetensors is what other programs load, too.
    for single in ("model.safetensors", "pytorch_model.bin"):
        if single + INDEX in names:
            return read_index(folder.open(single + INDEX), folder)
        if single in names:
            return detect.read(folder.open(single))
    indexes = [name for name in names if name.endswith(INDEX)]
    if indexes:
        # Other programs write shards in two formats side by side; both indexes describe the same checkpoint.
        best = [name for name in indexes if name.endswith(".safetensors" + INDEX)] or indexes
        alone = [name for name in names if name.endswith(".safetensors") and "-of-" not in name]
        if len(best) + len(alone) > 1:
            raise FileError(
                f"{shown_file(folder.path)} contains several checkpoints; open one of them: "
                + ", ".join(map(ascii, [*best, *alone][:8]))
            )
        return read_index(folder.open(best[0]), folder)
    for suffix in (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".params"):
        shards = [name for name in names if name.endswith(suffix)]
        numbered = [name for name in shards if "-of-" in name]
        shards = numbered or shards
        if numbered:
            _check_numbers(folder, numbered)
        if shards:
            return _merged(folder, shards) if len(shards) > 1 else detect.read(folder.open(shards[0]))
    listed = ", ".join(map(ascii, names[:8])) + (", …" if len(names) > 8 else "")
    raise FileError(
        f"{folder.path!r} contains no checkpoint that leafwise can read; it contains: {listed or 'nothing'}"
    )


def read_index(source: Source, folder: Folder) -> StoredFile:
    """Opens the shards that an index in the folder lists. If a save meanwhile replaces the index and removes the old
    shards, the new index is read."""
    text = _text(source)
    while True:
        try:
            return _read_index(source, text, folder)
        except FileError as error:
            before = text
            try:
                text = _text(folder.open(os.path.basename(source.name)))
            except FileError as gone:
                if isinstance(gone.__cause__, FileNotFoundError):
                    raise  # the caller checks whether a single file has replaced it
                raise error from error.__cause__
            if text == before:
                raise


def _text(source: Source) -> bytes:
    if source.size > MAX_INDEX:
        raise source.error(0, f"the index has {source.size:,} bytes; leafwise reads at most {MAX_INDEX:,}")
    try:
        return bytes(source.read(0, source.size))
    finally:
        source.close()


def _read_index(source: Source, text: bytes, folder: Folder) -> StoredFile:
    ours = is_trusted(text, SEALED_INDEX, 0, source)
    folder.limits.spend_bytes(3 * json_cost(text) // 2)  # the hook below builds lists of pairs
    try:
        index = json.loads(text, object_pairs_hook=without_duplicates)
        weights = index["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise source.error(0, "the index is not JSON with a weight_map") from error
    if not isinstance(weights, dict) or not weights or not all(isinstance(shard, str) for shard in weights.values()):
        raise source.error(0, "the weight_map of the index does not map names to files")
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
    return merged


def _merged(folder: Folder, names: list[str], seals: dict[str, str] | None = None) -> StoredFile:
    """Opens several files as one. `seals` are the seals that the index lists, by file name: a file with a different
    seal is not the one that the index was written with."""
    content: dict[str, Any] = {}
    shard_of: dict[str, str] = {}
    without: dict[str, None] = {}  # as an ordered set
    first: StoredFile | None = None
    record: HeaderRecord | None = None
    # Checked before any file is read, because it is cheap: an incomplete download lacks its last files.
    sources, missing = folder.open_all(names)
    try:
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
            for key, value in shard.content.items():
                if key in content:
                    raise shard.source.error(0, f"{key!a} is also in {shard_of[key]!a}; a name belongs to one shard")
                content[key] = value
                shard_of[key] = name
    except BaseException:
        for source in sources.values():
            source.close()
        raise
    assert first is not None
    merged = StoredFile(first.source, f"{len(names)} files, {first.format}", content, sources=sources)
    merged.shard_of = shard_of
    merged.without_checksums = tuple(without)
    merged.record = record
    merged.path = folder.path
    merged.bound = len(seals or ())
    merged.unbound = len(names) - merged.bound
    return merged


def _missing(folder: Folder, missing: list[str], count: int) -> FileError:
    listed = ", ".join(map(ascii, missing[:8])) + (f" and {len(missing) - 8:,} more" if len(missing) > 8 else "")
    are = "are" if len(missing) > 1 else "is"
    many = f"{'at least ' if len(missing) == ENOUGH else ''}{len(missing):,}"
    error = FileError(
        f"{shown_file(folder.path)}: {many} of {count:,} shards {are} missing: {listed}; is the download complete?"
    )
    if folder.has_changed():  # a save is replacing the files: this makes the caller try again
        error.__cause__ = FileNotFoundError()
    return error


def _check_numbers(folder: Folder, names: list[str]) -> None:
    """Raises if files of a numbered series, such as `model-00002-of-00003`, are missing."""
    matches = [re.fullmatch(r"(.*?)(\d+)(-of-0*(\d+).*)", name, re.ASCII | re.DOTALL) for name in names]
    series = {(match[1], match[3], int(match[4])) for match in matches if match is not None}
    if len(series) != 1 or None in matches:  # not a single series, so it is unknown which files are missing
        return
    prefix, suffix, count = series.pop()
    width = len(matches[0][2])  # type: ignore[index]
    numbers = {int(match[2]) for match in matches if match is not None}
    first = 0 if 0 in numbers else 1
    missing = (f"{prefix}{number:0{width}}{suffix}" for number in range(first, first + count) if number not in numbers)
    if listed := list(islice(missing, ENOUGH)):
        raise _missing(folder, listed, count)
