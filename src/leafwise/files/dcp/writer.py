"""Writes a distributed checkpoint: a folder that `torch.distributed.checkpoint` loads, with leafwise's record in it.

Several processes can write one: `make_plan` says which process writes which part of which array, `write_rank` writes
the file of one process and returns what it wrote, and `finish` writes the record and `.metadata`, which makes the
checkpoint visible. A single process does the same; see `write`.

Every save uses new names, and `.metadata` is renamed into place last. Until then the folder contains the old
checkpoint, and from then on the new one. Only afterwards are the files of the old one removed.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.progress import Count
from leafwise.errors import FileError
from leafwise.files.checksums import CHUNK, running_checksum
from leafwise.files.dcp import opening
from leafwise.files.dcp.metadata import Shape, StoredBox, StoredTensor, metadata_bytes
from leafwise.files.dcp.names import Keys, TorchNames, flat_name
from leafwise.files.dcp.record import (
    OWN_FILE,
    OWN_RECORD,
    RecordedArray,
    RecordedBox,
    data_header,
    data_name,
    record_bytes,
    record_name,
)
from leafwise.files.dcp.torch_items import tensor_zip, value_zip
from leafwise.files.pickles.pickle_writer import can_pickle
from leafwise.files.sources import disk as local
from leafwise.files.sources.folder import Folder, StagedFolder
from leafwise.files.writing.destination import check_names
from leafwise.files.writing.item_writer import Checkpoint, Item, PlacedItem, TiedCopies, stored_arrays, write_items
from leafwise.files.writing.output import Output
from leafwise.files.writing.streaming import Streaming
from leafwise.files.writing.writer import FileTransaction, remove_abandoned, write_errors

METADATA = ".metadata"
_ALIGNED = 64  # bytes; the offset of each array is a multiple of it
_TORCH_FILE = re.compile(r"__\d+_\d+\.distcp", re.ASCII)


# -- the plan --------------------------------------------------------------------------------------------------


class PlannedBox(NamedTuple):
    """A part of an array: the process that writes it, the position of its first element, and its shape."""

    rank: int
    position: Shape
    size: Shape


class PlannedArray(NamedTuple):
    """An array: its name in leafwise, its keys in PyTorch, its dtype and shape, and its parts."""

    name: str
    keys: Keys
    dtype: str
    shape: Shape
    boxes: list[PlannedBox]


class SavePlan(NamedTuple):
    """Who writes what. Every process needs the same plan."""

    save: str  # eight hexadecimal digits, which are new for each save
    arrays: list[PlannedArray]
    values: list[tuple[Keys, Any]]  # plain values for PyTorch, which process 0 writes; leafwise has them in its record
    further: list[tuple[Keys, str]]  # further names of arrays for PyTorch

    @property
    def ranks(self) -> list[int]:
        """The processes that write a file."""
        return sorted({0, *(box.rank for array in self.arrays for box in array.boxes)})


def make_plan(checkpoint: Checkpoint, boxes: Callable[[str], list[PlannedBox]] | None = None) -> SavePlan:
    """Plans a save. The items of the checkpoint describe whole arrays; `boxes` returns the parts of an array and who
    writes each. By default, process 0 writes everything."""
    names = [item.name for item in checkpoint.items]
    ties = [(name, of) for name, of, op in checkpoint.ties if op == "same" and name not in set(names)]
    keys_of = _keys_of([*names, *(name for name, _ in ties)], checkpoint)
    arrays = []
    for item in checkpoint.items:
        parts = [PlannedBox(0, (0,) * len(item.shape), item.shape)] if boxes is None else boxes(item.name)
        arrays.append(PlannedArray(item.name, keys_of[item.name], item.dtype, item.shape, parts))
    taken = {flat_name(keys) for keys in keys_of.values()}
    values = []
    for keys, value in TorchNames(keys_of, checkpoint.scalars, checkpoint.keyed).of_values():
        name = flat_name(keys)
        if name not in taken and can_pickle(value):
            taken.add(name)
            values.append((keys, value))
    return SavePlan(secrets.token_hex(4), arrays, values, [(keys_of[name], of) for name, of in ties])


def _keys_of(names: Sequence[str], checkpoint: Checkpoint) -> dict[str, Keys]:
    torch_names = TorchNames(names, checkpoint.scalars, checkpoint.keyed)
    keys_of = {name: torch_names.of_array(name) for name in names}
    if len(set(map(flat_name, keys_of.values()))) < len(keys_of):  # two arrays would have the same name
        return {name: (name,) for name in names}
    return keys_of


# -- the file of one process ------------------------------------------------------------------------------------


class WrittenBox(NamedTuple):
    """A part of an array that was written: the offset and length of its item, the offset of its first byte, and the
    checksums of its chunks."""

    name: str
    position: Shape
    size: Shape
    offset: int
    length: int
    start: int
    sums: list[str]


class WrittenFile(NamedTuple):
    """The file of one process, and what is in it. `values` are the offset and length of each plain value, and `around`
    is the checksum of all bytes that do not belong to arrays."""

    name: str
    nbytes: int
    boxes: list[WrittenBox]
    values: list[tuple[Keys, int, int]]
    around: str


def write_rank(
    plan: SavePlan,
    rank: int,
    items: Mapping[str, Sequence[Item]],
    output: Output,
    copies: TiedCopies,
    streaming: Streaming,
    progress: Count,
) -> WrittenFile:
    """Writes the file of one process. `items` are its parts of each array, in the order of the plan; each has the shape
    of the part."""
    header = data_header(rank, plan.save)
    output.write(header)
    around_arrays = running_checksum()
    around_arrays.update(header)
    values = []
    for keys, value in plan.values if rank == 0 else ():
        data = value_zip(value)
        values.append((keys, output.at, len(data)))
        output.write(data)
        around_arrays.update(data)
    placed: list[PlacedItem] = []
    boxes: list[WrittenBox] = []
    at = output.at
    mine = [(array, [box for box in array.boxes if box.rank == rank]) for array in plan.arrays]
    pairs = [pair for array, own in mine if own for pair in zip(own, _items_of(items, array, own), strict=True)]
    for box, item in sorted(pairs, key=lambda pair: copies.holds(pair[1])):
        around = tensor_zip(box.size, item.dtype)
        padding = -(at + len(around.before)) % _ALIGNED
        start = at + padding + len(around.before)
        length = len(around.before) + item.nbytes + len(around.after)
        placed.append(PlacedItem(item, bytes(padding) + around.before, around.after))
        around_arrays.update(placed[-1].before)
        around_arrays.update(around.after)
        boxes.append(WrittenBox(item.name, box.position, box.size, at + padding, length, start, []))
        at += padding + length
    sums = write_items(output, placed, copies, streaming, progress)
    written = [box._replace(sums=digits) for box, digits in zip(boxes, sums, strict=True)]
    return WrittenFile(data_name(rank, plan.save), at, written, values, around_arrays.hexdigest())


def _items_of(items: Mapping[str, Sequence[Item]], array: PlannedArray, boxes: list[PlannedBox]) -> Sequence[Item]:
    """The items of an array, which must be those of the plan."""
    given = items.get(array.name, ())
    shapes, dtypes = [item.shape for item in given], {item.dtype for item in given}
    if shapes != [box.size for box in boxes] or dtypes != {array.dtype}:
        raise FileError(
            f"cannot write {array.name!r}: the plan has {array.dtype} of {[box.size for box in boxes]}, and this "
            f"process has {', '.join(sorted(dtypes)) or 'nothing'} of {shapes}; nothing was written"
        )
    return given


# -- the end -----------------------------------------------------------------------------------------------------


def finish(
    plan: SavePlan, files: Sequence[WrittenFile], checkpoint: Checkpoint, transaction: FileTransaction, folder: str
) -> None:
    """Writes the record and `.metadata`, which makes the checkpoint visible when the transaction ends. `files` are
    those of all processes. Only the kinds and roles of the items count, which may be those of one process."""
    numbers = {file.name: number for number, file in enumerate(files)}
    written: dict[str, list[tuple[WrittenFile, WrittenBox]]] = {}
    for file in files:
        for box in file.boxes:
            written.setdefault(box.name, []).append((file, box))
    tensors, recorded = [], []
    for array in plan.arrays:
        parts = written.get(array.name, [])
        if sorted((box.position, box.size) for _, box in parts) != sorted(box[1:] for box in array.boxes):
            raise FileError(f"cannot write {array.name!r}: not all of its parts were written; nothing was saved")
        boxes = [StoredBox(box.position, box.size, file.name, box.offset, box.length) for file, box in parts]
        tensors.append(StoredTensor(array.keys, array.dtype, array.shape, boxes))
        own = [RecordedBox(numbers[file.name], box.start, box.position, box.size) for file, box in parts]
        recorded.append(RecordedArray(array.name, array.dtype, array.shape, own))
    by_name = {array.name: tensor for array, tensor in zip(plan.arrays, tensors, strict=True)}
    tensors += [by_name[of]._replace(keys=keys) for keys, of in plan.further]
    values = {keys: (file.name, offset, length) for file in files for keys, offset, length in file.values}
    metadata = metadata_bytes(tensors, values, f"leafwise/1 {plan.save}")
    described = {item.name: item for item in checkpoint.items}
    entry = checkpoint.entry(
        chunk=CHUNK,
        sums="".join(digits for array in recorded for _, box in written.get(array.name, []) for digits in box.sums),
        kinds="".join(described[array.name].kind for array in recorded),
        roles=[described[array.name].role for array in recorded],
    )
    sizes = [(file.name, file.nbytes, file.around) for file in files]
    like = os.path.join(folder, METADATA)
    transaction.open(os.path.join(folder, record_name(plan.save)), like).write(
        record_bytes(entry, metadata, sizes, recorded, checkpoint.metadata)
    )
    transaction.open(like).write(metadata)


def ending(plan: SavePlan, checkpoint: Checkpoint, folder: str) -> FileTransaction:
    """The transaction for `finish`. When it ends, it reads everything back, makes the new checkpoint visible, and
    removes the files of the old one."""
    former = _files_of_former(folder)

    def check_staged(staged: dict[str, Output]) -> None:
        files = {os.path.basename(output.path): output.source for output in staged.values()}
        read = partial(opening.read, StagedFolder(folder, files, beside=True))
        check_names(folder, "checkpoint", read, checkpoint.names, checkpoint.scalars.keys())

    return FileTransaction(staged_name(0), check_staged, lambda: _remove_former(folder, plan.save, former))


def staged_name(rank: int) -> str:
    """What identifies the unfinished files of a process, so that the next save of the same process removes them."""
    return f"__{rank}.distcp"


def _files_of_former(folder: str) -> set[str]:
    """The data files of the checkpoint that PyTorch wrote into the folder, if there is one."""
    with suppress(FileError, OSError):
        files = Folder(folder)
        if any(map(_TORCH_FILE.fullmatch, files.names)):  # otherwise it is not worth reading the pickle
            return {name for name in opening.data_files(files) if _TORCH_FILE.fullmatch(name)}
    return set()


def _remove_former(folder: str, save: str, former: Iterable[str]) -> None:
    """Removes the files of earlier saves in the folder."""
    former = set(former)

    def is_former(name: str) -> bool:
        match = OWN_FILE.fullmatch(name) or OWN_RECORD.fullmatch(name)
        return name in former or (match is not None and match["save"] != save)

    remove_abandoned(folder, lambda names: list(filter(is_former, names)))


# -- one process -------------------------------------------------------------------------------------------------


def write(checkpoint: Checkpoint, path: str, progress: Count, workers: Workers | None = None) -> str:
    """Writes a checkpoint into a folder, durably; returns its path. Whatever happens, the folder contains the old
    checkpoint or the new one. If there are workers, they write arrays of files."""
    folder = os.path.realpath(path)
    is_new = not os.path.isdir(folder)
    if is_new:
        with write_errors(path):
            local.disk.make_folder(folder)
    try:
        _write_into(folder, checkpoint, progress, workers)
    except BaseException:
        if is_new:
            with suppress(OSError):  # another program may have written into it
                local.disk.remove_folder(folder)
        raise
    return path


def _write_into(folder: str, checkpoint: Checkpoint, progress: Count, workers: Workers | None) -> None:
    copies = TiedCopies(checkpoint)
    streaming = stored_arrays(checkpoint.items, workers)
    plan = make_plan(checkpoint)
    items = {item.name: [item] for item in checkpoint.items}
    with ending(plan, checkpoint, folder) as transaction:
        output = transaction.open(os.path.join(folder, data_name(0, plan.save)), os.path.join(folder, METADATA))
        file = write_rank(plan, 0, items, output, copies, streaming, progress)
        streaming.check_sources()
        finish(plan, [file], checkpoint, transaction, folder)
