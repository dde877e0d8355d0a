"""Saving a sharded model: every rank writes its parts into one distributed checkpoint.

The first rank plans who writes what, and makes the checkpoint visible when all have written. Copies of the same part
are written once, by the rank that has the least to write. Until the end, the folder contains the old checkpoint.
"""

import os
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from leafwise.checkpoint.joint_call import JointCall, Rows, model_rows
from leafwise.checkpoint.saving import diverged
from leafwise.checkpoint.saving.diverged import Difference
from leafwise.checkpoint.saving.saved_content import SavedArray, SavedContent
from leafwise.core.parts import sharded_rows
from leafwise.core.path import shown_file
from leafwise.core.tree import Tree
from leafwise.core.work.progress import Count
from leafwise.errors import FileError, RankError, WalkError
from leafwise.files.arrays.pieces import tiled
from leafwise.files.arrays.stored import ITEM_BYTES
from leafwise.files.dcp import writer as dcp_writer
from leafwise.files.dcp.metadata import Shape
from leafwise.files.dcp.record import OWN_FILE, data_name
from leafwise.files.dcp.writer import METADATA, PlannedArray, PlannedBox, SavePlan, WrittenBox, WrittenFile
from leafwise.files.limits import Limits
from leafwise.files.sources import disk as local
from leafwise.files.writing.item_writer import Checkpoint, Item, TiedCopies, stored_arrays
from leafwise.files.writing.writer import FileTransaction, remove_abandoned

_MAX_METADATA_BYTES = 1 << 30

Box = tuple[Shape, Shape]  # the position of the first element, and the shape


class OwnShare(NamedTuple):
    """What this rank writes."""

    plan: SavePlan  # the first rank has all of it, the others only their own parts
    checkpoint: Checkpoint  # without values
    items: dict[str, list[Item]]

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for items in self.items.values() for item in items)


def refused_format(t: Tree) -> WalkError:
    """The error for a sharded model that is saved as safetensors."""
    row = sharded_rows(t)[0]
    columns = t.columns
    (facts,) = columns.facts([row])
    sharding = facts.spec.sharding
    is_split = sharding is not None and sharding.ranks > 1 and set(sharding.placements) != {"replicate"}
    where = "is sharded over processes" if is_split else "belongs to a mesh of processes"
    why = ", and no process has all of it" if is_split else ""
    return WalkError(
        f"cannot save {columns.row_text(row)} as safetensors: it {where} ({sharding}){why}; call "
        'lw.save(…, folder, format="dcp") in every process, and then, if you need safetensors, '
        'lw.edit(folder, "model.safetensors") in one'
    )


class JointSave:
    """One save by several ranks. `plan` uses process groups; `write` may be called in the background."""

    def __init__(self, joint: JointCall, folder: str, metadata: dict[str, str], allows_diverged: bool) -> None:
        self._joint, self._path, self._metadata = joint, folder, metadata
        self._allows_diverged = allows_diverged
        self._folder = os.path.realpath(folder)

    def plan(self, t: Tree, collect: Callable[[], SavedContent], copied: bool) -> OwnShare:
        """Decides what this rank writes. With `copied`, its values are copied, and may change afterwards."""
        joint = self._joint
        joint.agree(model_rows(t))
        content = joint.attempt(collect)
        joint.agree(_content_rows(content, self._metadata))
        checkpoint = content.described(self._metadata)
        parts = [content.parts(array) for array in content.arrays]
        plans: list[SavePlan] = []

        def answer(boxes_of_ranks: list[Any]) -> list[Any]:
            shares, differences = _shares(content.arrays, boxes_of_ranks, joint.team.ranks)
            diverged.report(differences, self._allows_diverged)
            by_name = {array.name: boxes for array, boxes in zip(content.arrays, shares, strict=True)}
            plans.append(dcp_writer.make_plan(checkpoint, boxes=lambda name: by_name[name]))
            try:
                if not os.path.isdir(self._folder):
                    local.disk.make_folder(self._folder)
            except OSError as error:
                raise FileError(f"cannot write {shown_file(self._path)}: {error.strerror or error}") from error
            return [[plans[0].save, rows] for rows in _rows_of_ranks(shares, joint.team.size)]

        sums = joint.attempt(
            lambda: [
                diverged.digests(content, array, own, joint.team.size)
                for array, own in zip(content.arrays, parts, strict=True)
            ]
        )
        sharded = [
            [[part.first, part.shape, digest] for part, digest in zip(own, digests, strict=True)]
            for own, digests in zip(parts, sums, strict=True)
        ]
        save, rows = joint.meet(sharded, answer)
        own = {number: _boxes([boxes])[0] for number, boxes in rows}
        plan = plans[0] if plans else _own_plan(save, content, own, joint.team.rank)
        chosen = [
            (number, next(part for part in parts[number] if (part.first, part.shape) == box))
            for number, boxes in own.items()
            for box in boxes
        ]
        items = joint.attempt(lambda: content.part_items(chosen, copied))
        return OwnShare(plan, checkpoint, items)

    def write(self, share: OwnShare, progress: Count) -> str:
        """Writes the file of this rank, and waits until the checkpoint is complete."""
        joint, failure, written = self._joint, None, None
        try:
            written = self._write_own(share, progress)
        except Exception as error:
            failure = error

        def answer(outcomes: list[Any]) -> list[Any]:
            try:
                if failure is not None:
                    raise failure
                for rank, (text, _) in zip(joint.team.ranks, outcomes, strict=True):
                    if text:
                        raise RankError(f"rank {rank} failed: {text}", rank)
                rows = zip(joint.team.ranks, (row for _, row in outcomes), strict=True)
                files = {rank: _file_of(row) for rank, row in rows if row is not None}
                self._check_shared(files)
                with dcp_writer.ending(share.plan, share.checkpoint, self._folder) as transaction:
                    dcp_writer.finish(share.plan, list(files.values()), share.checkpoint, transaction, self._folder)
            except BaseException:
                _remove_files(self._folder, share.plan.save)
                raise
            return [None] * len(outcomes)

        text = "" if failure is None else " ".join(str(failure).split()) or type(failure).__name__
        try:
            joint.meet([text, written], answer)
        except Exception as error:
            raise (failure or error) from error.__cause__
        return self._path

    def _check_shared(self, files: dict[int, WrittenFile]) -> None:
        """Raises on the first rank if it does not see what another rank has written."""
        for rank, file in files.items():
            if not os.path.exists(os.path.join(self._folder, file.name)):
                raise FileError(
                    f"cannot write {shown_file(self._path)}: the file {file.name} that rank {rank} has written is not "
                    "there; save to a folder that all processes share"
                )

    def _write_own(self, share: OwnShare, progress: Count) -> WrittenFile | None:
        rank = self._joint.team.rank
        if rank not in share.plan.ranks or (rank and not share.items):
            return None
        if not os.path.isdir(self._folder):
            raise FileError(
                f"cannot write {shown_file(self._path)}: the folder that rank {self._joint.team.ranks[0]} has made is "
                "not there; save to a folder that all processes share"
            )
        with FileTransaction(dcp_writer.staged_name(rank)) as transaction:
            path = os.path.join(self._folder, data_name(rank, share.plan.save))
            output = transaction.open(path, os.path.join(self._folder, METADATA))
            copies, streaming = TiedCopies(share.checkpoint), stored_arrays([])
            return dcp_writer.write_rank(share.plan, rank, share.items, output, copies, streaming, progress)


# -- what all ranks must have in common --------------------------------------------------------------------------


def _content_rows(content: SavedContent, metadata: dict[str, str]) -> Rows:
    rows: Rows = [(array.name, f"saved as {array.dtype}") for array in content.arrays]
    rows += [(name, f"tied to {of}{op.describe()}") for name, of, op in content.ties]
    rows += [(name, repr(value)) for name, value in content.scalars.items()]
    rows += [(name, repr(value)) for name, value in content.nodes.items()]
    return [*rows, *((name, repr(value)) for name, value in metadata.items())]


# -- who writes what ---------------------------------------------------------------------------------------------


def _boxes(rows: list[Any]) -> list[list[Box]]:
    return [[(tuple(position), tuple(size)) for position, size in boxes] for boxes in rows]


def _shares(
    arrays: list[SavedArray], boxes_of_ranks: list[Any], team_ranks: Sequence[int]
) -> tuple[list[list[PlannedBox]], list[Difference]]:
    """Which rank writes which part of which array, and of which arrays the copies differ. A part that only one rank has
    is its own, and one whose copies differ is that of the first rank; then the others, the largest first, go to the
    rank that has the least to write."""
    ranks = range(len(boxes_of_ranks))
    differences: list[Difference] = []
    shares: list[list[PlannedBox]] = [[] for _ in arrays]
    loads = [0] * len(ranks)
    several: list[tuple[int, int, Box, list[int]]] = []  # bytes, number of the array, box, ranks that have it
    for number, array in enumerate(arrays):
        holders: dict[Box, list[int]] = {}
        sums: dict[Box, str] = {}  # of the first copy
        other: tuple[int, int] | None = None  # two ranks whose copies differ
        for rank in ranks:
            for position, size, digest in boxes_of_ranks[rank][number]:
                box = tuple(position), tuple(size)
                having = holders.setdefault(box, [])
                having.append(rank)
                if sums.setdefault(box, digest) != digest and other is None:
                    other = rank, having[0]
        if other is not None:
            differences.append(Difference(array, team_ranks[other[0]], team_ranks[other[1]]))
        shape = array.shape
        if not tiled(shape, list(holders), Limits.none()):
            raise WalkError(
                f"cannot save {array.name}: the parts of the ranks do not contain each of its elements exactly once"
            )
        for box, having in holders.items():
            nbytes = prod(box[1]) * ITEM_BYTES[array.dtype]
            if other is not None or (array.facts.spec.sharding is None and array.facts.kind != "parameter"):
                having = having[:1]  # buffers may differ between processes: all are those of one process
            if len(having) > 1:
                several.append((nbytes, number, box, having))
            else:
                shares[number].append(PlannedBox(having[0], *box))
                loads[having[0]] += nbytes
    for nbytes, number, box, having in sorted(several, key=lambda row: -row[0]):
        rank = min(having, key=loads.__getitem__)
        shares[number].append(PlannedBox(rank, *box))
        loads[rank] += nbytes
    return [sorted(boxes, key=lambda box: box.position) for boxes in shares], differences


def _rows_of_ranks(shares: list[list[PlannedBox]], ranks: int) -> list[list[Any]]:
    """For each rank, the numbers of the arrays of which it writes boxes, with these boxes."""
    rows: list[list[Any]] = [[] for _ in range(ranks)]
    for number, boxes in enumerate(shares):
        by_rank: dict[int, list[Any]] = {}
        for box in boxes:
            by_rank.setdefault(box.rank, []).append([box.position, box.size])
        for rank, own in by_rank.items():
            rows[rank].append([number, own])
    return rows


def _own_plan(save: str, content: SavedContent, own: dict[int, list[Box]], rank: int) -> SavePlan:
    """The part of the plan that a rank needs which is not the first."""
    arrays = []
    for number, boxes in own.items():
        array = content.arrays[number]
        planned = [PlannedBox(rank, *box) for box in boxes]
        arrays.append(PlannedArray(array.name, (), array.dtype, array.shape, planned))
    return SavePlan(save, arrays, [], [])


# -- the files ---------------------------------------------------------------------------------------------------


def _file_of(row: Any) -> WrittenFile:
    """What a rank wrote, from JSON."""
    name, nbytes, boxes, values, around = row
    return WrittenFile(
        name,
        nbytes,
        [WrittenBox(box[0], tuple(box[1]), tuple(box[2]), *box[3:]) for box in boxes],
        [(tuple(keys), offset, length) for keys, offset, length in values],
        around,
    )


def _remove_files(folder: str, save: str) -> None:
    """Removes what the ranks wrote for a save that failed, unless its `.metadata` is in place. What a rank writes later
    is removed by the next save."""
    try:
        if f"leafwise/1 {save}".encode() in local.disk.content(os.path.join(folder, METADATA), _MAX_METADATA_BYTES):
            return
    except FileNotFoundError:
        pass
    except OSError:
        return
    matches = OWN_FILE.fullmatch
    remove_abandoned(folder, lambda names: [name for name in names if (own := matches(name)) and own["save"] == save])
